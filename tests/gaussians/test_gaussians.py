"""Every structured Gaussian against the dense matrix that it stands for."""

from typing import NamedTuple

import numpy as np
import pytest

from skbayes_shard.gaussians import (
    BlockGaussian,
    DenseGaussian,
    DiagonalGaussian,
    KroneckerGaussian,
    LowRankGaussian,
    _cholesky,
)
from skbayes_shard.models.prior import Prior

FREE, WIDTH = 3, 5
SIZE = FREE * WIDTH
KINDS = ["dense", "diagonal", "blocks", "kronecker", "low_rank", "prior"]


def spd(rng, *shape, spread=1.0):
    """Positive definite matrices with condition number about ``10 ** spread``."""
    basis, _ = np.linalg.qr(rng.normal(size=(*shape, shape[-1])))
    eigenvalues = 10 ** rng.uniform(-spread / 2, spread / 2, size=shape)
    return (basis * eigenvalues[..., None, :]) @ basis.swapaxes(-1, -2)


def orthogonal(rng, n):
    return np.linalg.qr(rng.normal(size=(n, n)))[0]


def single(tree):
    """The same in float32."""
    return type(tree)(*(np.asarray(leaf, np.float32) for leaf in tree))


@pytest.fixture(scope="module")
def gaussians():
    """One of each class, and its covariance worked out in float64."""
    rng = np.random.default_rng(0)
    rotation, basis = orthogonal(rng, FREE), orthogonal(rng, WIDTH)
    both = np.kron(rotation, basis)
    precision = np.exp(rng.normal(size=(FREE, WIDTH)))
    dense, blocks = spd(rng, SIZE), spd(rng, FREE, WIDTH)
    scale, loading = np.exp(rng.normal(size=(FREE, WIDTH))), rng.normal(size=(SIZE, 2))
    stretched = np.diag(scale.ravel()) @ (np.eye(SIZE) + loading @ loading.T)
    prior = Prior(np.exp(rng.normal(size=WIDTH)), np.r_[0.0, rng.normal(size=WIDTH - 1)])
    # x_0 = scale_0 z_0 + lean . x, and x_j = scale_j z_j.
    coloured = np.diag(prior.scale)
    coloured[0] += prior.lean * prior.scale
    turned = np.kron(rotation, np.eye(WIDTH))
    inverse_blocks = np.zeros((SIZE, SIZE))
    for c, block in enumerate(blocks):
        part = slice(c * WIDTH, (c + 1) * WIDTH)
        inverse_blocks[part, part] = np.linalg.inv(block)
    return {
        "dense": (DenseGaussian.from_precision(dense), np.linalg.inv(dense)),
        "diagonal": (DiagonalGaussian.from_precision(precision), np.diag(1 / precision.ravel())),
        "blocks": (
            single(BlockGaussian.from_precision(blocks, rotation)),
            turned @ inverse_blocks @ turned.T,
        ),
        "kronecker": (
            single(KroneckerGaussian.from_precision(precision, basis, rotation)),
            both @ np.diag(1 / precision.ravel()) @ both.T,
        ),
        "low_rank": (
            single(LowRankGaussian.from_loading(scale, loading)),
            stretched @ np.diag(scale.ravel()),
        ),
        "prior": (single(prior), np.kron(np.eye(FREE), coloured @ coloured.T)),
    }


def factor(gaussian):
    """The matrix A, by colouring the identity."""
    rows = gaussian.colour(np.eye(SIZE, dtype=np.float32).reshape(SIZE, FREE, WIDTH))
    return np.asarray(rows, np.float64).reshape(SIZE, SIZE).T


@pytest.fixture(params=[(), (1,), (4,), (2, 3)], ids=str)
def batch(request):
    return request.param


@pytest.mark.parametrize("kind", KINDS)
def test_covariance(gaussians, kind):
    """``A A'`` is the covariance of the definition."""
    gaussian, covariance = gaussians[kind]
    a = factor(gaussian)
    np.testing.assert_allclose(a @ a.T, covariance, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_whiten_undoes_colour(gaussians, kind, batch):
    """``whiten(colour(z))`` is ``z``, whatever the leading axes."""
    gaussian, _ = gaussians[kind]
    z = np.random.default_rng(1).normal(size=(*batch, FREE, WIDTH)).astype(np.float32)
    x = gaussian.colour(z)
    assert x.shape == z.shape
    np.testing.assert_allclose(gaussian.whiten(x), z, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_leading_axes_are_batches(gaussians, kind, batch):
    """Each array of a batch is treated as it would be alone."""
    gaussian, _ = gaussians[kind]
    x = np.random.default_rng(2).normal(size=(*batch, FREE, WIDTH)).astype(np.float32)
    for method in (gaussian.colour, gaussian.colour_transposed, gaussian.whiten):
        alone = [np.asarray(method(part)) for part in x.reshape(-1, FREE, WIDTH)]
        np.testing.assert_allclose(
            np.asarray(method(x)).reshape(-1, FREE, WIDTH), alone, rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("kind", KINDS)
def test_transpose_is_the_adjoint(gaussians, kind, batch):
    """``<A z, g>`` equals ``<z, A' g>``."""
    gaussian, _ = gaussians[kind]
    rng = np.random.default_rng(3)
    z, g = rng.normal(size=(2, *batch, FREE, WIDTH)).astype(np.float32)
    left = np.sum(np.asarray(gaussian.colour(z), np.float64) * g, axis=(-2, -1))
    right = np.sum(np.asarray(gaussian.colour_transposed(g), np.float64) * z, axis=(-2, -1))
    np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_marginal_variances(gaussians, kind):
    """The diagonal of the covariance."""
    gaussian, covariance = gaussians[kind]
    found = np.asarray(gaussian.variance()).ravel()
    np.testing.assert_allclose(found, np.diagonal(covariance), rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_log_determinant(gaussians, kind):
    """Half the log determinant of the covariance."""
    gaussian, covariance = gaussians[kind]
    _, log_det = np.linalg.slogdet(covariance)
    np.testing.assert_allclose(gaussian.log_det(), 0.5 * log_det, rtol=1e-5, atol=1e-5)


def test_prior_precision(gaussians):
    """The prior's precision is the inverse of its covariance, for one row."""
    gaussian, covariance = gaussians["prior"]
    inverse = np.linalg.inv(covariance[:WIDTH, :WIDTH])
    np.testing.assert_allclose(gaussian.precision(), inverse, rtol=1e-5, atol=1e-6)


def test_prior_difference(gaussians):
    """Log prior of ``centre + delta`` less that of ``centre``, with its gradient."""
    prior, covariance = gaussians["prior"]
    inverse = np.linalg.inv(covariance)
    delta, centre = np.random.default_rng(4).normal(size=(2, FREE, WIDTH)).astype(np.float32)
    value, grad = prior.difference(delta[None], centre)
    a, b = (delta + centre).ravel(), centre.ravel()
    np.testing.assert_allclose(value, [0.5 * (b @ inverse @ b - a @ inverse @ a)], rtol=1e-4)
    np.testing.assert_allclose(np.ravel(grad), -inverse @ a, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------- hard precisions


@pytest.mark.parametrize("most", [SIZE, 0], ids=["float64", "float32"])
def test_dense_factor_of_a_badly_scaled_precision(monkeypatch, most):
    """Units from 1e-6 to 1e6 (precisions from 1e-12 to 1e12) cost no accuracy."""
    monkeypatch.setattr(_cholesky, "_MOST_IN_FLOAT64", most)
    rng = np.random.default_rng(5)
    unit, units = spd(rng, SIZE, spread=2.0), np.logspace(-6, 6, SIZE)
    gaussian = DenseGaussian.from_precision(unit * units * units[:, None])
    a = np.asarray(gaussian.factor, np.float64) * units[:, None]
    np.testing.assert_allclose(a @ a.T, np.linalg.inv(unit), rtol=1e-4, atol=1e-5)


def test_block_factor_of_a_badly_scaled_precision():
    """The same for each block."""
    rng = np.random.default_rng(6)
    unit, units = spd(rng, FREE, WIDTH), np.logspace(-6, 6, WIDTH)
    gaussian = BlockGaussian.from_precision(unit * units * units[:, None], np.eye(FREE))
    a = np.asarray(gaussian.factor, np.float64) * units[:, None]
    np.testing.assert_allclose(a @ a.swapaxes(1, 2), np.linalg.inv(unit), rtol=1e-4, atol=1e-5)


def test_rounding_does_not_break_a_factor():
    """A precision that rounding has made singular still factors."""
    direction = np.random.default_rng(7).normal(size=(SIZE, 4))
    precision = direction @ direction.T + 1e-17 * np.eye(SIZE)
    assert np.all(np.isfinite(DenseGaussian.from_precision(precision).factor))


@pytest.mark.parametrize(
    "precision",
    [np.diag([1.0, -1.0]), [[1.0, 2.0], [2.0, 1.0]], np.full((2, 2), np.nan), [[0, 1], [1, 0]]],
    ids=["negative", "indefinite", "nan", "zero"],
)
def test_what_is_not_positive_definite(precision):
    """A precision that is none raises, instead of giving NaN."""
    precision = np.array(precision, np.float64)
    with pytest.raises(FloatingPointError, match="precision"):
        DenseGaussian.from_precision(precision)
    with pytest.raises(FloatingPointError, match="precision"):
        BlockGaussian.from_precision(precision[None], np.eye(1))


@pytest.mark.parametrize("worst", [-1.0, np.nan, 0.0])
def test_variances_that_are_none(worst):
    """Precisions that are negative, zero or NaN raise as well, one by one."""
    precision = np.ones((FREE, WIDTH))
    precision[1, 2] = worst
    with pytest.raises(FloatingPointError, match="precision"):
        DiagonalGaussian.from_precision(precision)
    with pytest.raises(FloatingPointError, match="precision"):
        KroneckerGaussian.from_precision(precision, np.eye(WIDTH), np.eye(FREE))


class Design(NamedTuple):
    """Rows, as the Gaussians ask for them."""

    x: np.ndarray

    def rows(self):
        return self.x

    def squared_logits(self, w):
        return w @ self.x.T**2


@pytest.mark.parametrize("kind", ["dense", "diagonal", "blocks", "kronecker"])
def test_row_roots(gaussians, kind):
    """Unit normal numbers become projections with the covariance of the definition."""
    gaussian, covariance = gaussians[kind]
    x = np.random.default_rng(3).normal(size=(7, WIDTH)).astype(np.float32)
    x[2] = 0
    roots = gaussian.row_roots(Design(x))
    units = np.asarray(gaussian.row_draws(roots, np.eye(FREE, dtype=np.float32)), np.float64)
    found = np.einsum("dab,dcb->bac", units, units)
    blocks = covariance.reshape(FREE, WIDTH, FREE, WIDTH)
    exact = np.einsum("bp,apcq,bq->bac", x, blocks, x)
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-4)


def test_row_roots_of_one_class():
    """One contrast needs no Cholesky factor: a root is a standard deviation."""
    precision = spd(np.random.default_rng(4), WIDTH)
    gaussian = DenseGaussian.from_precision(precision)
    x = np.random.default_rng(3).normal(size=(7, WIDTH)).astype(np.float32)
    roots = np.asarray(gaussian.row_roots(Design(x)))
    assert roots.shape == (1, 1, 7)
    right = np.sqrt(np.einsum("bp,pq,bq->b", x, np.linalg.inv(precision), x))
    np.testing.assert_allclose(roots[0, 0], right, rtol=1e-4)
