"""Scaling of columns, and designs laid out from them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

from skbayes_shard.models.columns import measure, scaled
from skbayes_shard.models.design import lay_out
from skbayes_shard.sharding import block_layout

ORDER = np.array([[3, 1, -1], [0, 2, -1]])


@pytest.fixture
def X():
    """Five columns in very different units; column 1 is zero, column 3 constant."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(41, 5)) * [1, 0, 1e-6, 0, 1e6] + [2, 0, 1e-6, 7, -1e6]
    assert np.all(X[:, 3] == 7)
    return X


def test_centred_columns(X):
    """Means and standard deviations; zero columns drop out, a constant one has scale 1."""
    columns = measure(X, centre=True)
    assert columns.n_columns == 5
    assert columns.used.tolist() == [0, 2, 3, 4]
    np.testing.assert_allclose(columns.shift, X[:, columns.used].mean(axis=0), rtol=1e-12)
    sd = X[:, columns.used].std(axis=0)
    np.testing.assert_allclose(columns.scale, np.where(sd == 0, 1, sd), rtol=1e-12)


def test_columns_that_are_not_centred(X):
    """Without an intercept columns keep their origin; the scale is the root mean square.

    Those far from zero in standard deviations are centred all the same, a constant one too.
    """
    columns = measure(X, centre=False)
    assert columns.used.tolist() == [0, 2, 3, 4]
    assert columns.shift.tolist() == [0, 0, 7, 0]
    root = np.sqrt(np.mean(X[:, columns.used] ** 2, axis=0))
    np.testing.assert_allclose(columns.scale, np.where(columns.shift == 7, 1, root), rtol=1e-12)
    far = measure(X + np.array([40, 0, 0, 0, 0]), centre=False)
    np.testing.assert_allclose(far.shift[0], X[:, 0].mean() + 40, rtol=1e-12)
    np.testing.assert_allclose(far.scale[0], X[:, 0].std(), rtol=1e-9)


def test_full_sparse_columns_far_from_zero(X):
    """Sparse columns that every row stores are centred like dense ones; others never are."""
    X = X + np.array([1e6, 0, 0, 0, 0])
    holed = X.copy()
    holed[0] = 0
    full, exact = measure(sp.csr_matrix(X), centre=False), measure(X, centre=False)
    np.testing.assert_allclose(full.shift, exact.shift, rtol=1e-12)
    np.testing.assert_allclose(full.scale, exact.scale, rtol=1e-9)
    assert np.all(measure(sp.csr_matrix(holed), centre=False).shift == 0)


def test_offsets_are_felt_where_variation_is_not():
    """Under a tight prior a column may matter by its offset alone; one without it drops out."""
    X = np.column_stack([1e7 + 1e-7 * np.arange(9), 1e-7 * np.arange(9), np.arange(9)])
    columns = measure(X, centre=True).felt(1e-10)
    assert columns.used.tolist() == [0, 2]
    assert columns.scale[0] == columns.shift[0] == pytest.approx(1e7)


@pytest.mark.parametrize("constant", [0.1, -1e-6, 1e6, 123456.789])
@pytest.mark.parametrize("n_rows", [3, 37, 20_001])
def test_constant_columns(constant, n_rows):
    """Rounding of the mean is not taken for variation."""
    X = np.column_stack([np.full(n_rows, constant), np.arange(n_rows)])
    columns = measure(X, centre=True)
    assert columns.scale[0] == 1
    laid = scaled(X, columns, np.arange(n_rows)[None], 1.0)[0]
    assert np.abs(laid[:, 1]).max() < 1e-9 * max(1, abs(constant))


@pytest.mark.parametrize("centre", [True, False])
def test_columns_that_are_all_zero(centre):
    """A matrix of zeros leaves the intercept alone."""
    columns = measure(np.array([[0.0, -0.0]] * 4), centre=centre)
    assert columns.used.size == columns.shift.size == columns.scale.size == 0
    assert columns.width == 8


def test_float32_is_added_up_in_float64():
    """Means and scales of many float32 rows far from zero are right to nine digits."""
    X = np.random.default_rng(1).normal([1000, 0], 1, size=(200_000, 2)).astype(np.float32)
    columns = measure(X, centre=True)
    exact = X.astype(np.float64)
    np.testing.assert_allclose(columns.shift, exact.mean(axis=0), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(columns.scale, exact.std(axis=0), rtol=1e-9)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_sparse_columns_are_measured_like_dense_ones(dtype):
    """Sparse columns are never centred; stored zeros do not make a column used."""
    rng = np.random.default_rng(2)
    X = np.where(rng.uniform(size=(1000, 6)) < 0.3, rng.normal(size=(1000, 6)), 0).astype(dtype)
    X[:, 2] = 0
    matrix = sp.csr_matrix(X)
    matrix.data[matrix.indices == 4] = 0
    X[:, 4] = 0
    found, exact = measure(matrix, centre=False), measure(X, centre=False)
    assert found.used.tolist() == exact.used.tolist() == [0, 1, 3, 5]
    assert np.all(found.shift == 0)
    np.testing.assert_allclose(found.scale, exact.scale, rtol=1e-6)


@pytest.mark.parametrize("size", [1e-30, 1e30])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix], ids=["dense", "sparse"])
def test_float32_columns_of_extreme_size(size, form):
    """Squares that float32 cannot hold neither drop a column nor make its scale infinite."""
    X = (np.arange(1, 9)[:, None] * size).astype(np.float32)
    columns = measure(form(X), centre=False)
    assert columns.used.tolist() == [0]
    np.testing.assert_allclose(columns.scale, np.sqrt(25.5) * size, rtol=1e-5)


@pytest.mark.parametrize(("n_used", "width"), [(1, 8), (7, 8), (8, 16), (15, 16), (784, 792)])
def test_width_is_a_multiple_of_eight(n_used, width):
    """Intercept, used columns and padding; values spread over it in that order."""
    columns = measure(np.eye(n_used) + 1, centre=True)
    assert columns.width == width
    out = columns.padded(np.arange(n_used), first=-1, fill=9)
    assert out.tolist() == [-1, *range(n_used), *[9] * (width - 1 - n_used)]


# ---------------------------------------------------------------- laid out rows


@pytest.mark.parametrize("intercept", [1.0, 0.0])
@pytest.mark.parametrize("centre", [True, False])
def test_scaled_rows(X, centre, intercept):
    """Column 0 is the intercept, used columns follow, padding and padded rows are zero."""
    columns = measure(X, centre)
    laid = scaled(X, columns, ORDER, intercept)
    assert laid.shape == (2, 3, 8)
    assert laid.dtype == np.float32
    exact = (X[:, columns.used] - columns.shift) / columns.scale
    real = ORDER >= 0
    np.testing.assert_allclose(laid[real][:, 1:5], exact[ORDER[real]], rtol=1e-6, atol=1e-7)
    assert np.all(laid[real][:, 0] == intercept)
    assert np.all(laid[real][:, 5:] == 0)
    assert np.all(laid[~real] == 0)


def test_rows_far_from_zero_keep_their_digits():
    """The shift is taken off in float64: seconds since 1970 are not rounded to minutes."""
    seconds = 1.7e9 + np.arange(0.0, 100.0)[:, None]
    columns = measure(seconds, centre=True)
    laid = scaled(seconds, columns, np.arange(100)[None], 1.0)[0, :, 1]
    exact = np.arange(100) - 49.5
    np.testing.assert_allclose(laid * columns.scale[0], exact, rtol=1e-6)


def test_long_designs_are_laid_out_in_portions():
    """More rows than are scaled at a time come out as the rest does."""
    X = np.random.default_rng(3).normal(size=(40_000, 2))
    columns = measure(X, centre=True)
    layout = block_layout(len(X), 3, 4096)
    laid = layout.collect(scaled(X, columns, layout.order, 1.0))[:, 1:3]
    exact = (X - X.mean(axis=0)) / X.std(axis=0)
    np.testing.assert_allclose(laid, exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("intercept", [True, False])
def test_designs_multiply_as_their_rows_do(form, intercept):
    """``rows``, ``logits``, ``pullback`` and ``squares`` agree with the plain matrix."""
    rng = np.random.default_rng(4)
    X = np.where(rng.uniform(size=(90, 6)) < 0.3, rng.normal(size=(90, 6)), 0)
    X[:, 1] = 0
    X[7] = 0
    matrix = sp.csr_matrix(X) if form == "sparse" else X
    columns = measure(matrix, centre=False)
    layout = block_layout(90, 2, 32)
    design = lay_out(matrix, columns, layout.order, intercept)
    exact = np.zeros((*layout.shape, columns.width))
    kept = X[:, columns.used] / np.sqrt(np.mean(X[:, columns.used] ** 2, axis=0))
    exact[..., 1:6] = layout.spread(kept)
    exact[..., 0] = layout.mask * intercept
    w = jnp.asarray(rng.normal(size=(3, columns.width)), jnp.float32)
    r = jnp.asarray(rng.normal(size=(3, layout.shape[1])), jnp.float32)
    for b, x in enumerate(exact):
        block = jax.tree.map(lambda leaf, b=b: jnp.asarray(leaf[b]), design)
        real = layout.order[b] >= 0
        np.testing.assert_allclose(np.asarray(block.rows())[real], x[real], rtol=1e-6)
        logits = np.asarray(block.logits(w, "float32"))
        np.testing.assert_allclose(logits[:, real], (w @ x.T)[:, real], rtol=1e-5, atol=1e-5)
        # Residuals of padded rows are always zero.
        for found, entries in (
            (block.pullback(r * real, "float32"), x),
            (block.squares(r * real), x**2),
        ):
            np.testing.assert_allclose(found, (r * real) @ entries, rtol=1e-5, atol=1e-5)
