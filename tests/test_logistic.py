"""BayesianLogisticRegression: its posterior against numbers that know nothing of the package.

Two classes are compared with grid quadrature in float64, which reproduces the numbers quoted in
the field cases; three classes with their importance-sampling table.
"""

import numpy as np
import pytest

from skbayes_shard import BayesianLogisticRegression
from tests import field_cases as cases
from tests.field_cases import LOG37_AT, best_gaussian, exact_logistic

HMC = {"method": "hmc"}
SVI = {"method": "svi"}
METHODS = [pytest.param(HMC, id="hmc"), pytest.param(SVI, id="svi")]
GUIDES = [
    pytest.param({"method": "svi", "guide": "mean_field"}, id="mean_field"),
    pytest.param({"method": "svi", "guide": "low_rank"}, id="low_rank"),
]


def fit(options, X, y, **fit_params):
    return BayesianLogisticRegression(**{"random_state": 0, **options}).fit(X, y, **fit_params)


def moments(model):
    """Means and standard deviations of (slopes, intercept) of a two-class model."""
    mean = np.r_[model.coef_[0], model.intercept_]
    return mean, np.r_[model.coef_std_[0], model.intercept_std_]


def assert_close(model, exact, mean_within=0.3, sd_within=(0.8, 1.2)):
    """Means in units of the exact standard deviation; standard deviations as ratios."""
    mean, sd = moments(model)
    np.testing.assert_array_less(np.abs(mean - exact.mean) / exact.sd, mean_within)
    np.testing.assert_array_less(sd_within[0], sd / exact.sd)
    np.testing.assert_array_less(sd / exact.sd, sd_within[1])


# ---------------------------------------------------------------- the references themselves


def test_references_reproduce_the_quoted_numbers():
    """F07, F25, F29, F30 and F50 quote exact two-class values, good to the last digit given."""
    X, y = cases.g_log37()
    units = np.array([1e6, 1e3])
    far = exact_logistic(X * units, y, LOG37_AT * units).proba
    np.testing.assert_allclose(far, [0.430, 0.837, 0.226, 0.987], atol=6e-4)
    sep = exact_logistic(*cases.g_sep(), [[1.0]])
    got = [sep.mean[0], sep.sd[0], sep.proba[0]]
    np.testing.assert_allclose(got, [2.297, 0.607, 0.885], atol=6e-4)
    wide = exact_logistic(*cases.g_sep(), [[1.0]], prior=10, intercept_prior=10, reach=14.0)
    np.testing.assert_allclose(wide.mean[0], 13.08, atol=6e-3)
    np.testing.assert_allclose([wide.sd[0], wide.proba[0]], [5.7, 0.9935], rtol=0.01)
    rare = exact_logistic(*cases.g_imb()).proba
    np.testing.assert_allclose([rare.mean(), rare.max()], [0.0298, 0.249], atol=6e-4)
    X, y, weight = cases.g_wt()
    weighted = exact_logistic(X, y, weight=weight)
    np.testing.assert_allclose(weighted.mean, [2.086, 0.711], atol=6e-4)
    np.testing.assert_allclose(weighted.sd, [0.615, 0.506], atol=6e-4)
    three_rows = exact_logistic(*cases.g_n3(), [[1.0]]).proba
    np.testing.assert_allclose(three_rows, 0.694, atol=6e-4)


# ---------------------------------------------------------------- two classes


PLAIN = ("g_log37", "g_n3", "g_sep", "g_imb", "g_col", "g_mb")


@pytest.mark.parametrize("case", PLAIN)
@pytest.mark.parametrize("options", METHODS)
def test_posterior_is_exact(options, case):
    """F02, F07, F29: means within 0.3 exact sd, sds within 20 %, probabilities within 0.02."""
    X, y = getattr(cases, case)()
    at = X[:10]
    exact = exact_logistic(X, y, at)
    model = fit(options, X, y)
    assert_close(model, exact)
    np.testing.assert_allclose(model.predict_proba(at)[:, 1], exact.proba, atol=0.02)


@pytest.mark.parametrize("options", GUIDES)
@pytest.mark.parametrize("case", ["g_log37", "g_sep", "g_mb"])
def test_guides_come_close(options, case):
    """Monte Carlo guides: means within 0.5 exact sd, sds 0.5x to 1.6x, probabilities 0.04."""
    X, y = getattr(cases, case)()
    at = X[:10]
    exact = exact_logistic(X, y, at)
    model = fit(options, X, y)
    assert_close(model, exact, 0.5, (0.5, 1.6))
    np.testing.assert_allclose(model.predict_proba(at)[:, 1], exact.proba, atol=0.04)


@pytest.mark.parametrize(
    ("options", "times"),
    [
        pytest.param({"n_draws": 4000}, 1, id="split"),
        pytest.param({"n_draws": 4000, "n_leapfrog": 4}, 1, id="split, fixed"),
        pytest.param({"n_draws": 4000, "sampler": "leapfrog", "n_leapfrog": 5}, 2, id="leapfrog"),
    ],
)
@pytest.mark.parametrize("case", ["g_log37", "g_sep"])
def test_long_chains_leave_no_bias(options, times, case):
    """16,000 draws: means within 0.05 exact sd, sds within 4 %, probabilities within 0.004.

    With 12,000 effective draws or more that is 5 standard errors of the mean, and 4 or more of
    the others. Plain leapfrogs of equal length resonate and leave 4,000: twice as much.
    """
    X, y = getattr(cases, case)()
    exact = exact_logistic(X, y)
    model = fit(options, X, y)
    assert_close(model, exact, 0.05 * times, (1 - 0.04 * times, 1 + 0.04 * times))
    proba, sd = model.predict_proba(X, return_std=True)
    np.testing.assert_allclose(proba[:, 1], exact.proba, atol=0.004 * times)
    np.testing.assert_allclose(sd[:, 1], exact.proba_sd, atol=0.004 * times)


@pytest.mark.parametrize("prior", [1.0, 3.0, 10.0])
@pytest.mark.parametrize("case", ["g_log37", "g_sep", "g_imb"])
def test_structured_guide_is_the_nearest_gaussian(case, prior):
    """The structured guide is the full Gaussian with the least KL: 0.02 sd, sds within 5 %.

    Means come without noise; 4,096 draws tell a deviation to 1.1 %.
    """
    X, y = getattr(cases, case)()
    mean, sd = best_gaussian(X, y, prior=prior, intercept_prior=prior)
    scales = {"prior_scale": prior, "intercept_prior_scale": prior}
    got_mean, got_sd = moments(fit({**SVI, **scales}, X, y))
    np.testing.assert_array_less(np.abs(got_mean - mean) / sd, 0.02)
    np.testing.assert_allclose(got_sd, sd, rtol=0.05)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_chains_move_apart_and_agree():
    """F13: R-hat below 1.05, sds within 20 %, and chains accept at different steps."""
    X, y = cases.g_log37()
    exact = exact_logistic(X, y)
    # One kick is accepted less often than the default, so there are rejections to compare.
    model = fit({"n_leapfrog": 1, "n_draws": 2000}, X, y)
    assert model.summary()["r_hat"].max() < 1.05
    assert_close(model, exact)
    draws = model.posterior_.draws["coef"][:, :, 0]
    moved = np.any(np.diff(draws, axis=1) != 0, axis=-1)
    for one in range(4):
        for other in range(one):
            assert np.mean(moved[one] != moved[other]) >= 0.01


@pytest.mark.parametrize("options", METHODS)
def test_features_in_other_units(options):
    """F25: columns times 1e6 and 1e3 give the exact probabilities of an unpenalised fit."""
    X, y = cases.g_log37()
    units = np.array([1e6, 1e3])
    model = fit(options, X * units, y)
    proba = model.predict_proba(LOG37_AT * units)[:, 1]
    np.testing.assert_allclose(proba, [0.430, 0.837, 0.226, 0.987], atol=0.02)
    plain = fit(options, X, y).predict(X)
    assert np.sum(model.predict(X * units) == plain) >= 35
    assert np.isfinite(model.coef_).all() and np.isfinite(model.coef_std_).all()


@pytest.mark.parametrize("value", [0.0, 1.0, 1e-6], ids=["zeros", "ones", "1e-6"])
@pytest.mark.parametrize("options", METHODS)
def test_constant_column(options, value):
    """F27: a column without information changes nothing; its coefficient keeps its prior."""
    X, y = cases.g_log37()
    wide = np.c_[X, np.full(len(X), value)]
    model, plain = fit(options, wide, y), fit(options, X, y)
    at = np.c_[LOG37_AT, np.full(len(LOG37_AT), value)]
    assert np.isfinite(model.summary()[["mean", "sd"]]).all(axis=None)
    change = model.predict_proba(at) - plain.predict_proba(LOG37_AT)
    assert np.abs(change).max() < 0.03
    if value < 1:
        assert abs(model.coef_[0, 2]) < 0.15
        assert model.coef_std_[0, 2] == pytest.approx(1, rel=0.15)
        moved = np.abs(model.coef_[0, :2] - plain.coef_[0]) / plain.coef_std_[0]
        assert moved.max() < 0.3


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("options", METHODS)
def test_separation_with_a_wide_prior(options):
    """F29: prior sd 10 on separated data gives slope 13.08, sd 5.7, P(1 | x = 1) 0.9935.

    Such a tail may well leave the default number of draws short, and HMC then says so.
    """
    X, y = cases.g_sep()
    wide = {"prior_scale": 10.0, "intercept_prior_scale": 10.0}
    model = fit({**options, **wide}, X, y)
    assert model.coef_[0, 0] == pytest.approx(13.08, abs=0.5 * 5.7)
    assert model.coef_std_[0, 0] == pytest.approx(5.7, rel=0.4)
    assert model.predict_proba([[1.0]])[0, 1] == pytest.approx(0.9935, abs=0.02)


@pytest.mark.parametrize("options", METHODS)
def test_rare_class(options):
    """F30: 2 positives in 200 rows give P(1) of 0.0298 on average and 0.249 at most."""
    X, y = cases.g_imb()
    proba = fit(options, X, y).predict_proba(X)
    assert proba[:, 1].mean() == pytest.approx(0.0298, abs=0.01)
    assert proba[:, 1].max() == pytest.approx(0.249, abs=0.05)
    assert np.all((proba > 0) & (proba < 1))


# ---------------------------------------------------------------- weights


@pytest.mark.parametrize("options", METHODS)
def test_weights_count_rows(options):
    """F50: weights 0, 1, 2 give slope 2.086 (0.615), intercept 0.711 (0.506)."""
    X, y, weight = cases.g_wt()
    exact = exact_logistic(X, y, weight=weight)
    model = fit(options, X, y, sample_weight=weight)
    # Unweighted, the means would be off by 0.17 and 0.69 of these standard deviations.
    assert_close(model, exact, 0.15, (0.8, 1.2))


@pytest.mark.parametrize("options", [HMC, SVI, {"method": "svi", "guide": "mean_field"}])
def test_no_weights_are_ones(options):
    """F50: weight None and ones are the same fit to the last bit."""
    X, y, _ = cases.g_wt()
    bare, ones = fit(options, X, y), fit(options, X, y, sample_weight=np.ones(len(y)))
    np.testing.assert_array_equal(bare.coef_, ones.coef_)


@pytest.mark.parametrize("options", [{**HMC, "n_draws": 4000}, {**SVI, "num_particles": 2000}])
def test_weights_equal_repetition(options):
    """F50: weight 0 is a row left out and weight 2 a row given twice: 0.1 posterior sd."""
    X, y, weight = cases.g_wt()
    weighted = fit(options, X, y, sample_weight=weight)
    times = weight.astype(int)
    repeated = fit(options, np.repeat(X, times, axis=0), np.repeat(y, times))
    (mean, sd), (mean_2, sd_2) = moments(weighted), moments(repeated)
    np.testing.assert_array_less(np.abs(mean - mean_2) / sd_2, 0.1)
    np.testing.assert_allclose(sd, sd_2, rtol=0.1)


@pytest.mark.parametrize("options", METHODS)
def test_class_weight_multiplies_sample_weight(options):
    """class_weight is a weight by class: the same fit as with the product given by hand."""
    X, y = cases.g_log37()
    own = np.linspace(0.5, 1.5, len(y))
    by_class = fit({**options, "class_weight": {0: 3.0, 1: 0.5}}, X, y, sample_weight=own)
    by_hand = fit(options, X, y, sample_weight=own * np.where(y == 0, 3.0, 0.5))
    np.testing.assert_allclose(by_class.coef_, by_hand.coef_, rtol=1e-5)
    balanced = fit({**options, "class_weight": "balanced"}, X, y)
    counts = np.bincount(y)[y]
    by_hand = fit(options, X, y, sample_weight=len(y) / (2 * counts))
    np.testing.assert_allclose(balanced.coef_, by_hand.coef_, rtol=1e-5)


# ---------------------------------------------------------------- priors and intercept


@pytest.mark.parametrize(
    ("prior", "intercept_prior"), [(0.1, 1.0), (5.0, 0.2), (1.0, 10.0)], ids=str
)
@pytest.mark.parametrize("options", METHODS)
def test_prior_scales(options, prior, intercept_prior):
    """Each prior scale acts on its own parameter, on X as given (here shifted by 3)."""
    X, y = cases.g_log37()
    X = X[:, :1] + 3
    scales = {"prior_scale": prior, "intercept_prior_scale": intercept_prior}
    exact = exact_logistic(X, y, prior=prior, intercept_prior=intercept_prior)
    assert_close(fit({**options, **scales}, X, y), exact)


@pytest.mark.parametrize("options", METHODS)
def test_without_intercept(options):
    """fit_intercept=False: the posterior through the origin; the intercept is exactly zero."""
    X, y = cases.g_log37()
    X = X + np.array([1.0, -0.5])
    exact = exact_logistic(X, y, LOG37_AT, intercept_prior=None)
    model = fit({**options, "fit_intercept": False}, X, y)
    np.testing.assert_array_less(np.abs(model.coef_[0] - exact.mean) / exact.sd, 0.3)
    np.testing.assert_allclose(model.coef_std_[0], exact.sd, rtol=0.2)
    np.testing.assert_array_equal(model.intercept_, [0.0])
    assert list(model.sample_posterior()) == ["coef"]
    proba = model.predict_proba(LOG37_AT)[:, 1]
    np.testing.assert_allclose(proba, exact.proba, atol=0.02)
    assert proba[0] == pytest.approx(0.5, abs=1e-6)
