"""Bad input: an error that names what and where, at once, and an object left unfitted."""

import time

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import NotFittedError

from skbayes_shard import BayesianLogisticRegression
from tests import field_cases as cases
from tests.field_cases import compilations

X, Y = cases.g_log37()
METHODS = ["hmc", "svi"]


def altered(value, row=5, column=1, dtype=float):
    out = X.astype(dtype)
    out[row, column] = value
    return out


def y_with_nan():
    out = Y.astype(float)
    out[3] = np.nan
    return out


def weight_with(value):
    out = np.ones(len(Y))
    out[7] = value
    return out


def data(id_, *match, X=X, y=Y, weight=None):
    """A call of fit, and patterns that the message must hold."""
    return pytest.param({"X": X, "y": y, "sample_weight": weight}, match, id=id_)


BAD_DATA = [
    data("nan in X", "X", "NaN", X=altered(np.nan)),
    data("inf in X", "X", "infinity", X=altered(np.inf)),
    data("minus inf in X", "X", "infinity", X=altered(-np.inf)),
    data("beyond float32", "X", "float32", "column 1", X=altered(1e39)),
    data("beyond float32, below", "X", "float32", "column 0", X=altered(-1e39, column=0)),
    data("nan in sparse X", "X", "NaN", X=sparse.csr_matrix(altered(np.nan))),
    data("beyond float32, sparse", "X", "float32", "1", X=sparse.csr_array(altered(1e39))),
    data("text in X", "could not convert string to float", X=altered("a", dtype=object)),
    data("complex X", "[Cc]omplex", X=X + 1j),
    data("1-d X", "2D array", "1D", X=X[:, 0]),
    data("3-d X", "X|array", "dim", X=X[None]),
    data("scalar X", "2D array", X=1.0),
    data("no rows", "0 sample", "minimum of 1", X=X[:0], y=Y[:0]),
    data("no rows, sparse", "0 sample", X=sparse.csr_matrix(X[:0]), y=Y[:0]),
    data("no columns", "0 feature", X=X[:, :0]),
    data("lengths differ", "inconsistent numbers of samples", "37", "36", y=Y[1:]),
    data("no y", "y", "None", y=None),
    data("2-d y", "y", "1d array", y=np.c_[Y, Y]),
    data("nan in y", "y", "NaN", y=y_with_nan()),
    data("inf in y", "y", "infinity", y=np.where(np.isnan(y_with_nan()), np.inf, Y)),
    data("labels of two types", "y", "'int'", "'str'", y=np.array(["a", 1] * 19, object)[:37]),
    data("a missing label", "y", "missing", "row 3", y=np.where(np.arange(37) == 3, None, "a")),
    data("one class", "y", "class", "'a'", y=np.full(37, "a")),
    data("one class, one row", "class", X=X[:1], y=Y[:1]),
    data("continuous y", "Unknown label type", y=np.random.RandomState(0).normal(size=37)),
    data("negative weight", "sample_weight", "[Nn]egative", weight=weight_with(-1)),
    data("nan weight", "sample_weight", "NaN", weight=weight_with(np.nan)),
    data("inf weight", "sample_weight", "infinity", weight=weight_with(np.inf)),
    data("weight beyond float32", "sample_weight", "float32", weight=weight_with(1e39)),
    data("no weight at all", "[Ss]ample.weight", "zero", weight=np.zeros(37)),
    data("short weights", "sample_weight", "37", weight=np.ones(36)),
    data("weights that add up too far", "sample_weight", "float32", weight=np.full(37, 1e38)),
    data("2-d weights", "[Ss]ample.weight", "1D", weight=np.ones((37, 2))),
]


def settings(name, value, *match):
    return pytest.param({name: value}, (name, *match), id=f"{name}={value!r}"[:40])


BAD_SETTINGS = [
    settings("method", "nuts", "'hmc'", "'svi'", "'nuts'"),
    settings("method", None),
    settings("guide", "full", "'structured'", "'mean_field'", "'low_rank'", "'full'"),
    settings("sampler", "nuts", "'split'", "'leapfrog'"),
    settings("precision", "float16", "'float32'"),
    settings("n_chains", 0, "Got 0"),
    settings("n_chains", -2, "-2"),
    settings("n_chains", 1.5, "1.5"),
    settings("n_chains", "4"),
    settings("n_chains", None),
    settings("n_chains", True),
    settings("n_draws", 0, "Got 0"),
    settings("n_draws", -1),
    settings("n_draws", 10.0),
    settings("n_draws", True),
    settings("n_warmup", 0, "Got 0"),
    settings("n_warmup", -5),
    settings("n_leapfrog", 0),
    settings("max_iter", 0),
    settings("tol", 0.0),
    settings("tol", -1.0),
    settings("tol", np.nan),
    settings("learning_rate", -0.1),
    settings("num_particles", 0),
    settings("batch_size", 0),
    settings("batch_size", 10, "method='svi'"),
    settings("prior_scale", 0.0),
    settings("prior_scale", -1.0),
    settings("prior_scale", np.inf),
    settings("prior_scale", np.nan),
    settings("prior_scale", "wide"),
    # Beyond float32: infinite, or zero, on a device.
    settings("prior_scale", 1e200),
    settings("prior_scale", 1e-200),
    settings("intercept_prior_scale", 1e200),
    settings("intercept_prior_scale", 0),
    settings("fit_intercept", "yes"),
    settings("class_weight", "even", "'balanced'"),
    settings("random_state", "seed"),
    settings("random_state", -1),
    settings("verbose", -1),
    settings("devices", 0, "0", "between 1 and"),
    settings("devices", -1),
    settings("devices", 1000, "1000"),
    settings("devices", [99], "99"),
    settings("devices", [0, 0]),
    settings("devices", []),
    settings("devices", ["gpu:0"]),
    settings("devices", "gpu"),
    settings("devices", 1.5),
    settings("devices", True),
]


@pytest.fixture(params=["fresh", "fitted"])
def estimator(request):
    """A maker of estimators, fresh or fitted before."""

    def make(**parameters):
        if request.param == "fresh":
            return BayesianLogisticRegression(**parameters)
        model = BayesianLogisticRegression(method="svi", n_draws=50, random_state=0).fit(X, Y)
        return model.set_params(**{"method": "hmc", **parameters})

    return make


def assert_refused(model, match, fit_params):
    """ValueError within a second, nothing compiled, nothing fitted left."""
    start = time.perf_counter()
    with compilations() as compiled, pytest.raises(ValueError) as caught:
        model.fit(**fit_params)
    assert time.perf_counter() - start < 1
    assert compiled == []
    for pattern in match:
        caught.match(pattern)
    assert vars(model).keys() == model.get_params().keys()
    assert not hasattr(model, "posterior_")
    with pytest.raises(NotFittedError):
        model.predict(X)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("fit_params", "match"), BAD_DATA)
def test_bad_data(estimator, method, fit_params, match):
    """F46, F48, F49: each says what is wrong and with which argument."""
    assert_refused(estimator(method=method), match, fit_params)


@pytest.mark.parametrize(("parameters", "match"), BAD_SETTINGS)
def test_bad_settings(estimator, parameters, match):
    """Each names the parameter; where the choice is among few, the choices."""
    assert_refused(estimator(**parameters), match, {"X": X, "y": Y})


def test_constructor_takes_anything():
    """F87: nonsense is stored as it is; only fit judges it."""
    nonsense = {"method": object(), "n_chains": "many", "devices": {}, "prior_scale": None}
    model = BayesianLogisticRegression(**nonsense)
    assert all(model.get_params()[name] is value for name, value in nonsense.items())


def test_label_absent_from_class_weight():
    """A class_weight for a label that y does not hold is a ValueError, nothing compiled."""
    assert_refused(
        BayesianLogisticRegression(class_weight={"a": 1.0}), ("class",), {"X": X, "y": Y}
    )


# ---------------------------------------------------------------- predict


@pytest.fixture(scope="module", params=METHODS)
def fitted(request):
    """One fit for each method."""
    return BayesianLogisticRegression(method=request.param, random_state=0).fit(X, Y)


@pytest.mark.parametrize(
    ("at", "match"),
    [
        pytest.param(altered(np.nan), ["X", "NaN"], id="nan"),
        pytest.param(altered(np.inf), ["X", "infinity"], id="inf"),
        pytest.param(altered(1e39), ["X", "float32", "column 1"], id="beyond float32"),
        pytest.param(X[:, :1], ["1 feature", "2 features"], id="too few columns"),
        pytest.param(np.c_[X, X], ["4 features", "2 features"], id="too many columns"),
        pytest.param(sparse.csr_matrix(np.c_[X, X]), ["4 features"], id="sparse, too many"),
        pytest.param(X[0], ["2D array"], id="1-d"),
        pytest.param(X[:0], ["0 sample", "minimum of 1"], id="no rows"),
        pytest.param(altered("a", dtype=object), ["could not convert"], id="text"),
    ],
)
@pytest.mark.parametrize(
    "call", ["predict", "predict_proba", "predict_log_proba", "decision_function"]
)
def test_refused_predict_leaves_the_model_usable(fitted, call, at, match):
    """F49: a refused predict says why at once, and the next one gives what it gave before."""
    before = fitted.predict_proba(X)
    with compilations() as compiled, pytest.raises(ValueError) as caught:
        getattr(fitted, call)(at)
    assert compiled == []
    for pattern in match:
        caught.match(pattern)
    np.testing.assert_array_equal(fitted.predict_proba(X), before)


@pytest.mark.parametrize(
    "call",
    ["predict", "predict_proba", "predict_log_proba", "decision_function", "sample_predictive"],
)
def test_not_fitted(call):
    """F90: before fit every method that needs a posterior raises NotFittedError."""
    with pytest.raises(NotFittedError):
        getattr(BayesianLogisticRegression(), call)(X)


@pytest.mark.parametrize("call", ["sample_posterior", "summary"])
def test_no_posterior_before_fit(call):
    """F90: so do the tables."""
    with pytest.raises(NotFittedError):
        getattr(BayesianLogisticRegression(), call)()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("method", METHODS)
def test_interrupted_fit_leaves_nothing(method, monkeypatch):
    """A fit that dies half way, here while it publishes, leaves the object unfitted."""
    model = BayesianLogisticRegression(method=method, n_draws=50, random_state=0).fit(X, Y)

    def die(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(BayesianLogisticRegression, "_coefficients", die)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y)
    assert vars(model).keys() == model.get_params().keys()
    with pytest.raises(NotFittedError):
        model.predict(X)


@pytest.mark.parametrize(
    "weights",
    [{0: -1, 1: 1}, {0: np.nan, 1: 1}, {0: 0, 1: 0}, {0: "a", 1: 1}, {0: np.inf, 1: 1}, {0: 1e38}],
)
def test_impossible_class_weights(weights):
    """Negative, NaN, huge and all-zero class weights are refused by name; nothing is fitted."""
    model = BayesianLogisticRegression(method="svi", class_weight=weights)
    with pytest.raises(ValueError, match=r"class_weight (must give|times sample_weight)"):
        model.fit(np.eye(4), [0, 1, 0, 1])
    assert not hasattr(model, "classes_")
