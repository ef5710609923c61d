"""Pivots: the same logits and the same prior in coordinates that float32 can hold."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

from skbayes_shard.models.columns import measure
from skbayes_shard.models.design import lay_out
from skbayes_shard.models.pivot import choose_pivot
from skbayes_shard.models.softmax import make_prior

CASES = [
    pytest.param([1e5, -2e4, 0, 300], 1.0, True, id="far"),
    pytest.param([0.1, -0.2, 0, 0.3], 1e-6, True, id="tight"),
    pytest.param([1e5, -2e4, 0, 300], 1.0, False, id="far, no intercept"),
]


def problem(offset, form="dense"):
    X = np.random.default_rng(0).normal(size=(50, 4)) * [1, 10, 0.1, 2] + offset
    return sp.csr_matrix(X) if form == "sparse" else X


@pytest.mark.parametrize(("offset", "scale", "intercept"), CASES)
@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_logits_are_those_of_columns_as_given(offset, scale, intercept, form):
    """Pivoted rows times pivoted coordinates give ``b + x'w`` of what :meth:`undo` gives back."""
    X = problem(offset, form)
    columns = measure(X, centre=intercept and form == "dense")
    pivot = choose_pivot(columns, 1.0, scale, intercept)
    if pivot is None:
        # Sparse columns near zero are not centred, so nothing leans on the intercept.
        assert form == "sparse" and scale < 1
        return
    order = np.arange(50)[None]
    block = jax.tree.map(lambda a: a[0], lay_out(X, columns, order, intercept, pivot))
    gamma = np.random.default_rng(1).normal(size=(3, columns.width)).astype(np.float32)
    beta, b = pivot.undo(gamma)
    coef = beta[:, 1 : 1 + len(columns.used)] / columns.scale
    exact = coef @ problem(offset)[:, columns.used].T + b[:, None]
    if not intercept:
        assert not np.any(b)
    logits = block.logits(jnp.asarray(gamma), "float32")
    np.testing.assert_allclose(logits, exact, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(gamma @ np.asarray(block.rows()).T, exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("offset", "scale", "intercept"), CASES)
def test_prior_is_that_of_columns_as_given(offset, scale, intercept):
    """Log prior densities differ as those of ``w`` and ``b`` do; padding stays N(0, 1)."""
    columns = measure(problem(offset), centre=intercept)
    pivot = choose_pivot(columns, 2.0, scale, intercept)
    prior = make_prior(columns, 2.0, scale, intercept, pivot)
    gamma = np.random.default_rng(2).normal(size=(5, 1, columns.width))
    gamma[..., pivot.column] *= scale / abs(pivot.size)
    beta, b = pivot.undo(gamma)
    coef = beta[..., 1:5] / columns.scale
    padded = gamma[..., ~pivot.real(columns.real(intercept))]
    exact = np.sum((coef / 2.0) ** 2, axis=(1, 2)) + np.sum(padded**2, axis=(1, 2))
    exact = -0.5 * (exact + np.sum((b / scale) ** 2, axis=1))
    found = prior.log_density(gamma)
    np.testing.assert_allclose(np.diff(found), np.diff(exact), rtol=1e-4, atol=1e-3)
    assert np.linalg.cond(prior.precision() * np.outer(*[np.asarray(prior.scale, float)] * 2)) < 1e9


def test_ordinary_columns_have_no_pivot():
    """A year, a temperature in kelvin, a column of ones: the usual coordinates serve."""
    rng = np.random.default_rng(0)
    X = np.column_stack([2000 + 5 * rng.normal(size=99), 290 + rng.normal(size=99), np.ones(99)])
    assert choose_pivot(measure(X, centre=True), 1.0, 1.0, True) is None
    assert choose_pivot(measure(rng.normal(size=(99, 2)), centre=False), 1.0, 1.0, False) is None
