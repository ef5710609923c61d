"""BayesianLogisticRegression: draws, tables, probabilities and labels agree with each other."""

import numpy as np
import pandas as pd
import pytest
from scipy.special import softmax

from skbayes_shard import BayesianLogisticRegression
from tests import field_cases as cases
from tests.field_cases import LOG37_AT, expit

COLUMNS = ["mean", "sd", "5%", "95%", "ess_bulk", "ess_tail", "r_hat"]
METHODS = ["hmc", "svi"]
SHAPES = ["two", "three"]


@pytest.fixture(scope="module")
def fitted():
    """Fits by (method, number of classes); never refitted."""
    X2, y2 = cases.g_log37()
    X3, y3 = cases.g_k3()
    data = {"two": (X2, np.array(["no", "yes"])[y2]), "three": (X3, y3 * 10)}
    return {
        (method, shape): BayesianLogisticRegression(method=method, random_state=0).fit(*data[shape])
        for method in METHODS
        for shape in SHAPES
    }


def rows_of(shape):
    return LOG37_AT if shape == "two" else np.array([[-1.0], [0.0], [2.0]])


def by_hand(draws, X):
    """Class probabilities of each draw, in NumPy."""
    logits = np.einsum("skd,nd->snk", draws["coef"], X) + draws["intercept"][:, None]
    if logits.shape[-1] > 1:
        return softmax(logits, axis=-1)
    return np.concatenate([1 - expit(logits), expit(logits)], axis=-1)


# ---------------------------------------------------------------- probabilities


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", SHAPES)
def test_probabilities_average_over_draws(fitted, method, shape):
    """predict_proba is the mean over kept draws, return_std their sd: to 1e-5, in NumPy."""
    model, X = fitted[method, shape], rows_of(shape)
    each = by_hand(model.sample_posterior(), X)
    proba, std = model.predict_proba(X, return_std=True)
    np.testing.assert_allclose(proba, each.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(std, each.std(axis=0), atol=1e-5)
    np.testing.assert_allclose(model.predict_proba(X), proba, atol=0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", SHAPES)
def test_scores_agree(fitted, method, shape):
    """Log probabilities, decision function and labels all say what predict_proba says."""
    model = fitted[method, shape]
    X = np.linspace(-3, 3, 501)[:, None] * np.ones(model.n_features_in_)
    proba, scores = model.predict_proba(X), model.decision_function(X)
    np.testing.assert_allclose(proba.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), proba, rtol=1e-5)
    np.testing.assert_array_equal(model.predict(X), model.classes_[np.argmax(proba, axis=1)])
    if shape == "two":
        assert scores.shape == (501,)
        np.testing.assert_array_equal(model.predict(X) == "yes", scores > 0)
        np.testing.assert_allclose(expit(scores.astype(float)), proba[:, 1], rtol=1e-4)
        assert np.all(np.diff(scores[np.argsort(proba[:, 1], kind="stable")]) >= 0)
    else:
        assert scores.shape == (501, 3)
        np.testing.assert_array_equal(np.argsort(scores, axis=1), np.argsort(proba, axis=1))


@pytest.mark.parametrize("method", METHODS)
def test_probabilities_far_out(fitted, method):
    """Far outside the data nothing is NaN, exactly 0 or exactly 1."""
    model = fitted[method, "two"]
    X = np.array([[1e30, 0], [-1e30, 1e30], [1e6, -1e6], [0, 0]])
    proba, std = model.predict_proba(X, return_std=True)
    assert np.all((proba > 0) & (proba < 1))
    assert np.isfinite(std).all()
    assert np.isfinite(model.decision_function(X)).all()
    assert np.isfinite(model.predict_log_proba(X)).all()


@pytest.mark.parametrize("method", METHODS)
def test_float32_stays_float32(fitted, method):
    """float32 rows give float32 probabilities, those of the same rows in float64 to 1e-5."""
    model, X = fitted[method, "two"], LOG37_AT
    proba = model.predict_proba(X.astype(np.float32))
    assert proba.dtype == np.float32
    np.testing.assert_allclose(proba, model.predict_proba(X), atol=1e-5)
    X, y = cases.g_log37()
    refit = BayesianLogisticRegression(method=method, random_state=0).fit(X.astype(np.float32), y)
    assert refit.coef_.dtype == np.float32
    np.testing.assert_allclose(refit.coef_, model.coef_, atol=0.05)


# ---------------------------------------------------------------- draws


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", SHAPES)
def test_sample_posterior_shapes(fitted, method, shape):
    """Arrays (draws, classes or 1, features) and (draws, classes or 1), NumPy, finite."""
    model = fitted[method, shape]
    n_rows, n_features = (1, 2) if shape == "two" else (3, 1)
    kept = 2000 if method == "hmc" else 500
    for n_draws, expected in ((None, kept), (7, 7)):
        draws = model.sample_posterior(n_draws, random_state=0)
        assert list(draws) == ["coef", "intercept"]
        assert draws["coef"].shape == (expected, n_rows, n_features)
        assert draws["intercept"].shape == (expected, n_rows)
        for value in draws.values():
            assert type(value) is np.ndarray
            assert np.isfinite(value).all()


def test_hmc_draws_are_kept_draws(fitted):
    """A subset of an HMC fit holds different kept draws, coefficients with their intercepts."""
    model = fitted["hmc", "two"]
    kept, some = model.sample_posterior(), model.sample_posterior(300, random_state=1)
    joined = np.c_[kept["coef"][:, 0], kept["intercept"]]
    chosen = np.c_[some["coef"][:, 0], some["intercept"]]
    where = [np.flatnonzero((joined == row).all(axis=1)) for row in chosen]
    assert all(len(found) for found in where)
    # Rejections repeat draws, so rows may recur in `kept`; as many of them at most.
    assert len(np.unique(chosen, axis=0)) > 200


@pytest.mark.parametrize("method", METHODS)
def test_draws_follow_the_seed(fitted, method):
    """Same seed, same draws; another seed, others; no seed leaves the object as it was."""
    model = fitted[method, "two"]
    first, again = (model.sample_posterior(50, random_state=3)["coef"] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, model.sample_posterior(50, random_state=4)["coef"])
    # With None the global generator chooses, as in scikit-learn.
    np.random.seed(0)  # noqa: NPY002
    one = model.sample_posterior(50)["coef"]
    assert not np.array_equal(one, model.sample_posterior(50)["coef"])


def test_hmc_cannot_invent_draws(fitted):
    """Asking an HMC fit for more than 2000 draws is an error that says both numbers."""
    with pytest.raises(ValueError, match=r"n_draws=2001.*2000"):
        fitted["hmc", "two"].sample_posterior(2001)


@pytest.mark.parametrize("shape", SHAPES)
def test_svi_draws_any_number(fitted, shape):
    """5000 draws of an SVI fit have the mean coef_ and the sd coef_std_ of the fit."""
    model = fitted["svi", shape]
    coef = model.sample_posterior(5000, random_state=0)["coef"]
    assert len(coef) == 5000
    assert np.all(np.abs(coef.mean(axis=0) - model.coef_) < 0.1 * coef.std(axis=0))
    np.testing.assert_allclose(coef.std(axis=0), model.coef_std_, rtol=0.15)


@pytest.mark.parametrize("n_draws", [0, -1, 2.5, "3"])
@pytest.mark.parametrize("method", METHODS)
def test_impossible_numbers_of_draws(fitted, method, n_draws):
    """n_draws that is no positive integer is a ValueError that names it."""
    with pytest.raises(ValueError, match="n_draws"):
        fitted[method, "two"].sample_posterior(n_draws)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", SHAPES)
def test_predictive_frequencies(fitted, method, shape):
    """Labels drawn from the posterior predictive are as frequent as predict_proba says."""
    model, X = fitted[method, shape], rows_of(shape)
    labels = model.sample_predictive(X, 2000, random_state=0)
    assert labels.shape == (2000, len(X))
    assert set(np.unique(labels)) <= set(model.classes_)
    frequency = np.stack([(labels == c).mean(axis=0) for c in model.classes_], axis=1)
    # Four standard errors of 2000 labels.
    np.testing.assert_allclose(frequency, model.predict_proba(X), atol=0.045)
    again = model.sample_predictive(X, 2000, random_state=0)
    np.testing.assert_array_equal(labels, again)
    assert len(model.sample_predictive(X)) == (2000 if method == "hmc" else 500)


def test_predictive_rows_are_independent_given_the_draw(fitted):
    """Equal rows get labels of their own: they agree as often as E[p² + (1 - p)²]."""
    model, X = fitted["hmc", "two"], np.repeat(LOG37_AT[:1], 2, axis=0)
    labels = model.sample_predictive(X, random_state=0)
    p = by_hand(model.sample_posterior(), X[:1])[:, 0, 1]
    agree = np.mean(p**2 + (1 - p) ** 2)
    assert np.mean(labels[:, 0] == labels[:, 1]) == pytest.approx(agree, abs=0.045)


# ---------------------------------------------------------------- tables


@pytest.mark.parametrize("method", METHODS)
def test_summary_names_features_and_classes(method):
    """One row for each scalar: coef[class, feature] and intercept[class], in that order."""
    X, y = cases.g_k3()
    frame = pd.DataFrame({"age": X[:, 0], "income": X[::-1, 0]})
    labels = np.array(["wolf", "ant", "cat"])[y]
    model = BayesianLogisticRegression(method=method, random_state=0).fit(frame, labels)
    table = model.summary()
    animals = ["ant", "cat", "wolf"]
    names = [f"coef[{a}, {f}]" for a in animals for f in ("age", "income")]
    assert list(table.index) == names + [f"intercept[{a}]" for a in animals]
    assert list(table.columns) == COLUMNS
    assert table[["ess_bulk", "ess_tail", "r_hat"]].notna().all(axis=None) == (method == "hmc")


@pytest.mark.parametrize("method", METHODS)
def test_summary_holds_the_moments(fitted, method):
    """Two classes: the row is that of the second class; sds are coef_std_, means near coef_."""
    model = fitted[method, "two"]
    table = model.summary()
    assert list(table.index) == ["coef[yes, x0]", "coef[yes, x1]", "intercept[yes]"]
    sd = np.r_[model.coef_std_[0], model.intercept_std_]
    mean = np.r_[model.coef_[0], model.intercept_]
    # Standard deviations of an SVI fit come from more draws than are kept.
    np.testing.assert_allclose(table["sd"], sd, rtol=1e-4 if method == "hmc" else 0.12)
    np.testing.assert_array_less(np.abs(table["mean"] - mean) / sd, 0.15)
    assert np.all((table["5%"] < table["mean"]) & (table["mean"] < table["95%"]))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", SHAPES)
def test_fitted_attributes_are_host_arrays(fitted, method, shape):
    """F17: what fit publishes is NumPy, with scikit-learn's shapes."""
    model = fitted[method, shape]
    n_rows, n_features = (1, 2) if shape == "two" else (3, 1)
    assert model.coef_.shape == model.coef_std_.shape == (n_rows, n_features)
    assert model.intercept_.shape == model.intercept_std_.shape == (n_rows,)
    assert model.n_iter_ >= 1
    for name, value in vars(model).items():
        assert not type(value).__module__.startswith("jax"), name
    assert all(type(value) is np.ndarray for value in model.posterior_.draws.values())


def test_labels_keep_their_kind():
    """F43, F85: booleans, text, floats and integers come back as they went in."""
    X, y = cases.g_log37()
    for labels in (y == 1, np.array(["b", "a"])[y], y * 2.0 - 1, y.astype(np.int8), y * 1000 - 7):
        model = BayesianLogisticRegression(method="svi", random_state=0).fit(X, labels)
        assert model.classes_.dtype == labels.dtype
        np.testing.assert_array_equal(model.classes_, np.unique(labels))
        assert model.predict(X).dtype == labels.dtype
        assert np.mean(model.predict(X) == labels) > 0.7
