"""The same numbers in any container: memory layouts, lists, frames, pandas' types, sparse."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from skbayes_shard import BayesianLogisticRegression
from tests import field_cases as cases
from tests.field_cases import FAST, exact_logistic

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

ENGINES = list(FAST)
X, Y = cases.g_log37()


def make(engine, **changes):
    return BayesianLogisticRegression(**{**FAST[engine], "random_state": 0, **changes})


# ---------------------------------------------------------------- F93, F95: containers


def read_only(folder):
    out = X.copy()
    out.flags.writeable = False
    return out


def mapped(folder):
    np.save(folder / "X.npy", X)
    return np.load(folder / "X.npy", mmap_mode="r")


CONTAINERS = {
    "read-only": read_only,
    "fortran": lambda folder: np.asfortranarray(X),
    "strided": lambda folder: X[::-1].copy()[::-1],
    "memmap": mapped,
    "lists": lambda folder: X.tolist(),
    "object": lambda folder: X.astype(object),
}


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("engine", ENGINES)
def test_containers_give_the_same_fit(engine, container, tmp_path):
    """F93: the same numbers in any memory give the same fit, and are not written to."""
    given = CONTAINERS[container](tmp_path)
    before = np.array(given, dtype=float)
    model, plain = make(engine).fit(given, Y), make(engine).fit(X, Y)
    np.testing.assert_allclose(model.coef_, plain.coef_, atol=1e-6)
    np.testing.assert_allclose(model.predict_proba(given), plain.predict_proba(X), atol=1e-6)
    np.testing.assert_array_equal(np.array(given, dtype=float), before)


@pytest.mark.parametrize("kind", ["object", "str", "category"])
def test_text_columns_are_refused(kind):
    """F95: a text column of any pandas type is a ValueError about converting to float."""
    frame = pd.DataFrame({"a": X[:, 0], "b": pd.Series(list("xyz" * 12 + "x"), dtype=kind)})
    with pytest.raises(ValueError, match="could not convert string to float"):
        make("svi").fit(frame, Y)


@pytest.mark.parametrize("kind", ["object", "str", "category", "Int64", "boolean"])
def test_labels_of_any_pandas_type(kind):
    """F95: labels as text, categories or nullable integers give the same fit."""
    plain_labels = {"Int64": Y, "boolean": Y == 1}.get(kind, np.array(["n", "y"])[Y])
    labels = pd.Series(plain_labels).astype(kind)
    model, plain = make("svi").fit(X, labels), make("svi").fit(X, Y)
    np.testing.assert_array_equal(model.coef_, plain.coef_)
    assert len(model.classes_) == 2


# ---------------------------------------------------------------- F45: sparse matrices


@pytest.mark.parametrize("container", [sparse.csr_matrix, sparse.csr_array, sparse.coo_array])
@pytest.mark.parametrize("method", ["hmc", "svi"])
def test_sparse_equals_dense(method, container):
    """F45: sparse rows give the exact posterior of the same rows, dense."""
    X, y = cases.g_log37()
    X = np.where(np.abs(X) < 0.5, 0.0, X)
    exact = exact_logistic(X, y)
    model = BayesianLogisticRegression(method=method, random_state=0).fit(container(X), y)
    mean, sd = (
        np.r_[model.coef_[0], model.intercept_],
        np.r_[model.coef_std_[0], model.intercept_std_],
    )
    np.testing.assert_array_less(np.abs(mean - exact.mean) / exact.sd, 0.3)
    np.testing.assert_allclose(sd, exact.sd, rtol=0.2)
    proba = model.predict_proba(container(X))
    np.testing.assert_allclose(proba[:, 1], exact.proba, atol=0.02)
    np.testing.assert_allclose(model.predict_proba(X), proba, atol=1e-6)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("method", ["hmc", "svi"])
def test_predict_takes_either_kind(method, kind):
    """F45: a fit to dense rows predicts sparse ones as if dense, and the other way round."""
    X, y = cases.g_log37()
    # Far from zero, where dense columns are centred inside and sparse ones are not.
    X = X + np.array([3.0, -1.0])
    model = BayesianLogisticRegression(method=method, random_state=0)
    model.fit(X if kind == "dense" else sparse.csr_matrix(X), y)
    dense, thin = model.predict_proba(X), model.predict_proba(sparse.csr_matrix(X))
    np.testing.assert_allclose(thin, dense, atol=1e-5)
    np.testing.assert_allclose(dense[:, 1], exact_logistic(X, y).proba, atol=0.02)
