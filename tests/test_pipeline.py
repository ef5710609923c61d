"""Inside scikit-learn's pipelines, searches and plots; and refits that compile nothing."""

import time

import jax
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.calibration import CalibrationDisplay
from sklearn.compose import ColumnTransformer
from sklearn.datasets import make_classification
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import log_loss
from sklearn.model_selection import (
    GridSearchCV,
    KFold,
    ParameterGrid,
    cross_val_predict,
    cross_val_score,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from skbayes_shard import BayesianLogisticRegression
from tests.field_cases import FAST, compilations

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

ENGINES = list(FAST)


def make(engine, **changes):
    return BayesianLogisticRegression(**{**FAST[engine], "random_state": 0, **changes})


@pytest.fixture(scope="module")
def rows():
    """300 rows, 5 informative columns on different scales."""
    X, y = make_classification(300, 5, n_informative=4, n_redundant=1, random_state=0)
    return X * np.array([1, 10, 0.1, 1, 100]), y


# ---------------------------------------------------------------- pipelines


@pytest.mark.parametrize("engine", ENGINES)
def test_after_a_scaler(engine, rows):
    """A pipeline fits, predicts with its spread, and is what its parts are by hand."""
    X, y = rows
    pipe = make_pipeline(StandardScaler(), make(engine)).fit(X, y)
    assert pipe.score(X, y) > 0.7
    proba, std = pipe.predict_proba(X, return_std=True)
    scaled = StandardScaler().fit_transform(X)
    alone = make(engine).fit(scaled, y)
    np.testing.assert_allclose(proba, alone.predict_proba(scaled), atol=1e-6)
    assert std.shape == proba.shape


@pytest.mark.parametrize("engine", ENGINES)
def test_after_one_hot_encoding(engine):
    """One-hot columns come sparse; a level that was not seen is the other columns' business."""
    rs = np.random.RandomState(0)
    colour = rs.choice(["red", "green", "blue"], 300)
    y = rs.uniform(size=300) < pd.Series(colour).map({"red": 0.9, "green": 0.5, "blue": 0.1})
    frame = pd.DataFrame({"colour": colour, "size": rs.normal(size=300)})
    encode = ColumnTransformer(
        [("levels", OneHotEncoder(handle_unknown="ignore"), ["colour"])],
        remainder="passthrough",
        sparse_threshold=1.0,
    )
    assert sparse.issparse(encode.fit_transform(frame))
    pipe = make_pipeline(encode, make(engine)).fit(frame, y)
    new = pd.DataFrame({"colour": ["red", "green", "blue", "pink"], "size": 0.0})
    proba = pipe.predict_proba(new)[:, 1]
    np.testing.assert_allclose(proba[:3], [0.9, 0.5, 0.1], atol=0.12)
    assert 0.1 < proba[3] < 0.9


@pytest.mark.parametrize("engine", ENGINES)
def test_after_a_text_vectoriser(engine):
    """Words to sparse columns, text labels back."""
    rs = np.random.RandomState(1)
    words = {"spam": ["win", "cash", "now"], "ham": ["lunch", "report", "monday"]}
    labels = rs.choice(["spam", "ham"], 120)
    common = ["the", "a", "to", "you"]
    texts = [" ".join(rs.choice(words[label] + common, 8)) for label in labels]
    pipe = make_pipeline(TfidfVectorizer(), make(engine, prior_scale=3.0)).fit(texts, labels)
    assert pipe.score(texts, labels) > 0.95
    assert pipe.predict(["win cash now", "lunch on monday"]).tolist() == ["spam", "ham"]


def test_inside_one_versus_rest(rows):
    """A meta-estimator that clones and refits gets its probabilities."""
    X, y = rows
    three = y + (X[:, 0] > 1)
    model = OneVsRestClassifier(make("svi")).fit(X, three)
    assert model.predict_proba(X).shape == (300, 3)


# ---------------------------------------------------------------- searches


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_grid_search(n_jobs, rows):
    """prior_scale and method are searched together, in processes too, without an error."""
    X, y = rows
    grid = {
        "bayesianlogisticregression__prior_scale": [0.01, 1.0],
        "bayesianlogisticregression__method": ["hmc", "svi"],
    }
    pipe = make_pipeline(StandardScaler(), make("hmc"))
    search = GridSearchCV(
        pipe, grid, cv=3, n_jobs=n_jobs, error_score="raise", scoring="neg_log_loss"
    )
    search.fit(X, y)
    assert search.best_params_["bayesianlogisticregression__prior_scale"] == 1.0
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    # Both methods sample the same posterior.
    scores = search.cv_results_["mean_test_score"].reshape(2, 2)
    np.testing.assert_allclose(scores[0], scores[1], atol=0.02)


@pytest.mark.parametrize("engine", ENGINES)
def test_cross_validated_probabilities(engine, rows):
    """cross_val_predict gives held-out probabilities better than the base rate."""
    X, y = rows
    pipe = make_pipeline(StandardScaler(), make(engine))
    proba = cross_val_predict(pipe, X, y, cv=4, method="predict_proba")
    assert proba.shape == (300, 2)
    assert log_loss(y, proba) < 0.6
    decision = cross_val_predict(pipe, X, y, cv=4, method="decision_function")
    np.testing.assert_array_equal(decision > 0, proba[:, 1] > 0.5)


def test_scorers(rows):
    """The scorers that need probabilities or scores take the estimator."""
    X, y = rows
    for scoring in ("accuracy", "neg_log_loss", "roc_auc", "neg_brier_score"):
        scores = cross_val_score(make("svi"), X, y, cv=3, scoring=scoring, error_score="raise")
        assert np.isfinite(scores).all()


def test_calibration_display(rows):
    """scikit-learn's reliability curve draws a fit."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    X, y = rows
    display = CalibrationDisplay.from_estimator(make("svi").fit(X, y), X, y, n_bins=5)
    assert len(display.prob_pred) >= 3
    plt.close("all")


# ---------------------------------------------------------------- refits compile nothing


@pytest.mark.parametrize("n_rows", [203, 1000])
@pytest.mark.parametrize("options", [{"method": "hmc"}, {"method": "svi"}], ids=["hmc", "svi"])
def test_a_grid_compiles_once(options, n_rows):
    """6 prior scales x 5 folds: fits 2 to 30 compile nothing, in under 10x the first's time.

    Folds of 203 rows hold 162 or 163 rows, those of 1000 rows 800: folds share a bucket.
    """
    X, y = make_classification(n_rows, 6, n_informative=4, random_state=1)
    grid = ParameterGrid({"prior_scale": [0.1, 0.3, 1.0, 3.0, 10.0, 30.0]})
    folds = list(KFold(5).split(X))
    seconds, compiled = [], []
    # Tests before this one may have compiled some of its programs.
    jax.clear_caches()
    for parameters in grid:
        for train, test in folds:
            start = time.perf_counter()
            with compilations() as names:
                model = BayesianLogisticRegression(random_state=0, **options, **parameters)
                model.fit(X[train], y[train]).predict_proba(X[test])
            seconds.append(time.perf_counter() - start)
            compiled.append(list(names))
    assert len(compiled) == 30
    assert [names for names in compiled[1:] if names] == []
    assert sum(seconds[1:]) < 10 * seconds[0]


@pytest.mark.parametrize("engine", ENGINES)
def test_labels_weights_and_seeds_compile_nothing(engine, rows):
    """Other labels, weights, seeds, prior scales and class weights reuse every program."""
    X, y = rows
    make(engine).fit(X, y).predict_proba(X)
    changes = [
        {"random_state": 5},
        {"prior_scale": 0.2, "intercept_prior_scale": 4.0},
        {"class_weight": "balanced"},
        {"tol": 0.05},
    ]
    with compilations() as names:
        for change in changes:
            weight = np.random.RandomState(0).uniform(size=len(y))
            make(engine, **change).fit(X, 1 - y, sample_weight=weight).predict_proba(X)
    assert names == []
