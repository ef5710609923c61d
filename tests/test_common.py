"""scikit-learn's contract: its own checks, parameters, tags and feature names."""

import inspect

import numpy as np
import pandas as pd
import pytest
from sklearn.base import ClassifierMixin, clone, is_classifier, is_regressor
from sklearn.model_selection import StratifiedKFold, check_cv, cross_val_score
from sklearn.utils import estimator_html_repr, get_tags
from sklearn.utils.estimator_checks import (
    check_dataframe_column_names_consistency,
    check_param_validation,
    parametrize_with_checks,
)

from skbayes_shard import BayesianLogisticRegression
from tests import field_cases as cases
from tests.field_cases import FAST

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

ENGINES = list(FAST)
REPETITION = (
    "demands equality to 1e-7 between a weighted and a repeated row, where Monte Carlo draws "
    "differ; test_logistic.py::test_weights_equal_repetition compares the posteriors"
)
EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": REPETITION,
    "check_sample_weight_equivalence_on_sparse_data": REPETITION,
}
X, Y = cases.g_log37()


def make(engine, **changes):
    return BayesianLogisticRegression(**{**FAST[engine], "random_state": 0, **changes})


# ---------------------------------------------------------------- scikit-learn's checks


@parametrize_with_checks(
    [BayesianLogisticRegression(**options) for options in FAST.values()],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_sklearn_checks(estimator, check):
    """Every check of scikit-learn passes, but those listed with a reason."""
    check(estimator)


@pytest.mark.parametrize(
    "check", [check_dataframe_column_names_consistency, check_param_validation]
)
@pytest.mark.parametrize("engine", ENGINES)
def test_checks_outside_the_list(engine, check):
    """Two checks that scikit-learn runs on its own estimators only."""
    check("BayesianLogisticRegression", make(engine))


# ---------------------------------------------------------------- F87: parameters

NON_DEFAULT = {
    "method": "svi",
    "prior_scale": 2.5,
    "intercept_prior_scale": np.float64(0.3),
    "fit_intercept": False,
    "n_chains": 3,
    "n_warmup": 11,
    "n_draws": 12,
    "sampler": "leapfrog",
    "n_leapfrog": 5,
    "guide": "low_rank",
    "max_iter": 17,
    "tol": 0.5,
    "learning_rate": 0.01,
    "num_particles": 2,
    "batch_size": 64,
    "class_weight": {0: 1.0, 1: 2.0},
    "devices": [0],
    "precision": "bfloat16",
    "random_state": np.random.RandomState(3),
    "verbose": 1,
}


def test_every_parameter_is_covered():
    """The list above names each parameter once, none at its default."""
    defaults = inspect.signature(BayesianLogisticRegression).parameters
    assert NON_DEFAULT.keys() == defaults.keys()
    assert all(NON_DEFAULT[name] != p.default for name, p in defaults.items())


def test_parameters_are_stored_as_given():
    """get_params returns the very objects; clone, set_params and repr take them all."""
    model = BayesianLogisticRegression(**NON_DEFAULT)
    assert all(model.get_params()[name] is value for name, value in NON_DEFAULT.items())
    twin = clone(model)
    assert twin.get_params().keys() == NON_DEFAULT.keys()
    plain = {k: v for k, v in NON_DEFAULT.items() if k != "random_state"}
    assert {k: v for k, v in twin.get_params().items() if k != "random_state"} == plain
    assert model.set_params(**model.get_params()) is model
    assert all(model.get_params()[name] is value for name, value in NON_DEFAULT.items())
    text = repr(model)
    assert text.startswith("BayesianLogisticRegression(")
    assert "guide='low_rank'" in text


def test_positional_parameters_are_refused():
    """Parameters have names; only they can be told apart twenty at a time."""
    with pytest.raises(TypeError):
        BayesianLogisticRegression("svi")


def test_unknown_parameters_are_refused():
    """set_params with a name that does not exist is an error that names it."""
    with pytest.raises(ValueError, match="n_samples"):
        BayesianLogisticRegression().set_params(n_samples=3)


@pytest.mark.parametrize("fitted", [False, True])
def test_html_repr(fitted):
    """A notebook shows the estimator, fitted or not, and compiles nothing to do so."""
    model = make("svi").fit(X, Y) if fitted else make("svi")
    with cases.compilations() as compiled:
        assert "BayesianLogisticRegression" in estimator_html_repr(model)
        assert model._repr_html_()
    assert compiled == []


# ---------------------------------------------------------------- F90: tags


def test_tags():
    """A classifier of many classes that takes sparse X, no NaN, and needs y."""
    model = BayesianLogisticRegression()
    assert is_classifier(model)
    assert not is_regressor(model)
    tags = get_tags(model)
    assert tags.estimator_type == "classifier"
    assert tags.classifier_tags.multi_class
    assert tags.input_tags.sparse
    assert not tags.input_tags.allow_nan
    assert tags.target_tags.required
    assert not tags.non_deterministic


def test_mixin_comes_first():
    """F90: in the other order scikit-learn would not see a classifier."""
    order = BayesianLogisticRegression.__mro__
    assert order.index(ClassifierMixin) < [c.__name__ for c in order].index("BaseEstimator")


def test_folds_are_stratified():
    """F90: cross-validation takes the estimator for a classifier."""
    folds = check_cv(3, Y, classifier=is_classifier(BayesianLogisticRegression()))
    assert isinstance(folds, StratifiedKFold)
    scores = cross_val_score(make("svi"), X, Y, cv=3, error_score="raise")
    assert scores.mean() > 0.6


# ---------------------------------------------------------------- F89: feature names


@pytest.mark.parametrize("names", [["b", "a"], ["a", "c"], ["a"], ["a", "b", "z"]], ids=str)
def test_other_columns_are_refused(names):
    """F89: other names, another order or number of columns: ValueError in sklearn's words."""
    model = make("svi").fit(pd.DataFrame(X, columns=["a", "b"]), Y)
    assert model.feature_names_in_.tolist() == ["a", "b"]
    wide = pd.DataFrame(np.c_[X, X], columns=["a", "b", "c", "z"])
    with pytest.raises(ValueError, match="feature names"):
        model.predict(wide[names])


def test_frame_and_array_agree():
    """A frame and its values give the same fit; values at predict earn sklearn's warning."""
    frame = pd.DataFrame(X, columns=["a", "b"], index=np.arange(37)[::-1])
    model, plain = make("svi").fit(frame, pd.Series(Y)), make("svi").fit(X, Y)
    np.testing.assert_array_equal(model.coef_, plain.coef_)
    np.testing.assert_array_equal(model.predict_proba(frame), plain.predict_proba(X))
    assert not hasattr(plain, "feature_names_in_")
    with pytest.warns(UserWarning, match="valid feature names"):
        model.predict(X)
