"""Pickles, copies, changed parameters and seeds: what a fit remembers, and what it leaves alone."""

import copy
import pickle

import joblib
import numpy as np
import pandas as pd
import pytest

from skbayes_shard import BayesianLogisticRegression
from tests import field_cases as cases
from tests.field_cases import FAST

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

ENGINES = list(FAST)
X, Y = cases.g_log37()


def make(engine, **changes):
    return BayesianLogisticRegression(**{**FAST[engine], "random_state": 0, **changes})


# ---------------------------------------------------------------- F82, F85: persistence


def through_pickle(model, folder):
    return pickle.loads(pickle.dumps(model))


def through_joblib(model, folder):
    joblib.dump(model, folder / "model.joblib")
    return joblib.load(folder / "model.joblib")


def through_memmap(model, folder):
    joblib.dump(model, folder / "model.joblib")
    return joblib.load(folder / "model.joblib", mmap_mode="r")


def through_copy(model, folder):
    return copy.deepcopy(model)


@pytest.mark.parametrize("trip", [through_pickle, through_joblib, through_memmap, through_copy])
@pytest.mark.parametrize("engine", [*ENGINES, "low_rank"])
def test_round_trip(engine, trip, tmp_path):
    """F82, F85: predictions, draws, labels, names and parameters come back the same."""
    changes = {"prior_scale": 0.7, "class_weight": {"a": 2.0, "b": 1.0}}
    if engine == "low_rank":
        engine, changes = "mean_field", {**changes, "guide": "low_rank"}
    frame = pd.DataFrame(X, columns=["age", "income"])
    model = make(engine, **changes).fit(frame, np.array(["b", "a"])[Y])
    back = trip(model, tmp_path)
    np.testing.assert_allclose(back.predict_proba(frame), model.predict_proba(frame), atol=1e-6)
    np.testing.assert_array_equal(back.predict(frame), model.predict(frame))
    for n_draws in (None, 40):
        before = model.sample_posterior(n_draws, random_state=0)
        after = back.sample_posterior(n_draws, random_state=0)
        np.testing.assert_allclose(after["coef"], before["coef"], atol=1e-6)
        np.testing.assert_allclose(after["intercept"], before["intercept"], atol=1e-6)
    assert back.classes_.tolist() == ["a", "b"]
    assert back.feature_names_in_.tolist() == ["age", "income"]
    assert back.get_params() == model.get_params()
    pd.testing.assert_frame_equal(back.summary(), model.summary())


def test_setting_a_parameter_does_not_refit():
    """F85: set_params of an unrelated parameter leaves predictions as they are."""
    model = make("hmc").fit(X, Y)
    before = model.predict_proba(X)
    model.set_params(prior_scale=9.0, n_draws=7, method="svi")
    np.testing.assert_array_equal(model.predict_proba(X), before)


@pytest.mark.parametrize(
    "changes", [{"fit_intercept": False}, {"prior_scale": 100.0}, {"n_chains": 9}], ids=str
)
@pytest.mark.parametrize("engine", ["hmc", "svi"])
def test_the_fit_remembers_how_it_was_made(engine, changes):
    """F85: nothing that describes the fit is read from parameters that changed since."""
    wide = np.c_[X, np.zeros(len(X))]
    model = make(engine).fit(wide, Y)
    before = model.predict_proba(wide), model.sample_posterior(40, random_state=0)
    model.set_params(**changes)
    np.testing.assert_array_equal(model.predict_proba(wide), before[0])
    after = model.sample_posterior(40, random_state=0)
    for name, value in before[1].items():
        np.testing.assert_array_equal(after[name], value)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_refit_forgets(engine):
    """A refit on other columns, classes and names leaves what a fresh fit leaves."""
    frame = pd.DataFrame(np.c_[X, X[:, :1], np.zeros(37)], columns=list("abcd"))
    model = make(engine).fit(frame, np.arange(37) % 3)
    again, fresh = model.fit(X, Y), make(engine).fit(X, Y)
    assert vars(again).keys() == vars(fresh).keys()
    assert not hasattr(again, "feature_names_in_")
    np.testing.assert_array_equal(again.coef_, fresh.coef_)
    np.testing.assert_array_equal(again.predict_proba(X), fresh.predict_proba(X))


# ---------------------------------------------------------------- F96: randomness


@pytest.mark.parametrize("engine", ENGINES)
def test_seeds(engine):
    """F96: equal seeds give equal fits, whatever their type; None gives others."""
    fits = [
        make(engine, random_state=seed).fit(X, Y).posterior_.flat("coef")
        for seed in (0, np.int64(0), 1, np.random.RandomState(7), np.random.RandomState(7))
    ]
    np.testing.assert_array_equal(fits[0], fits[1])
    assert not np.array_equal(fits[0], fits[2])
    np.testing.assert_array_equal(fits[3], fits[4])
    without = [make(engine, random_state=None).fit(X, Y).posterior_.flat("coef") for _ in "ab"]
    assert not np.array_equal(*without)


@pytest.mark.parametrize("engine", ENGINES)
def test_global_generator_is_left_alone(engine):
    """F96: with a seed, neither fit nor predict nor sampling moves NumPy's global generator."""
    np.random.seed(1)  # noqa: NPY002
    expected = np.random.rand()  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    model = make(engine).fit(X, Y)
    model.predict(X)
    model.sample_posterior(20, random_state=0)
    model.sample_predictive(X, 20, random_state=0)
    assert np.random.rand() == expected  # noqa: NPY002


def test_generator_is_refused_or_taken():
    """F96: a Generator is taken, or refused by a ValueError that names random_state."""
    model = make("svi", random_state=np.random.default_rng(0))
    try:
        model.fit(X, Y)
    except ValueError as error:
        assert "random_state" in str(error)
