"""The softmax model's curvature, averaged over a cloud, as a structured Gaussian.

For logits with probabilities ``p`` the curvature of a row is ``(diag p - p p')`` times
``x x'``. It is averaged over the cloud first (cloud, or a Gaussian) and multiplied with the
design once, so the curvature expected under a Gaussian costs as much as that at a mode.

Forms, from exact to cheap: ``"dense"``, all of it; ``"blocks"``, one block for each class
direction; ``"kronecker"``, exact diagonal in a Kronecker basis; ``"diagonal"``.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from skbayes_shard.gaussians import (
    BlockGaussian,
    DenseGaussian,
    DiagonalGaussian,
    KroneckerGaussian,
)
from skbayes_shard.models.softmax_kernel import Rows, contrasts, log_sum_and_p, sharded
from skbayes_shard.sharding import AXIS, host

_MOST_DENSE = 8192
_MOST_QUICK_DENSE = 1024
_MOST_QUICK_WIDTH = 2048
_MOST_BLOCK_ENTRIES = 2**27
_HIGH = jax.lax.Precision.HIGHEST


def choose_form(n_free: int, width: int) -> str:
    """Choose the most exact form whose factor is worth its memory and time."""
    if n_free * width <= _MOST_DENSE:
        return "dense"
    if width <= _MOST_DENSE and n_free * width**2 <= _MOST_BLOCK_ENTRIES:
        return "blocks"
    return "kronecker" if width <= _MOST_DENSE else "diagonal"


def choose_quick_form(n_free: int, width: int) -> str:
    """Form of the Gaussian that preconditions the climb: cheap to factor."""
    if n_free * width <= _MOST_QUICK_DENSE:
        return "dense"
    return "kronecker" if width <= _MOST_QUICK_WIDTH else "diagonal"


class Curvature(NamedTuple):
    """The posterior's precision in the basis of its form.

    The numbers of a form are linear in the curvature as long as the basis stays the same, so two
    with one basis can be averaged leaf by leaf.
    """

    precision: np.ndarray
    rotation: np.ndarray | None = None
    basis: np.ndarray | None = None


def gaussian_at(model: Any, form: str, cloud: Any, data: Any) -> Any:
    """Return the Gaussian whose precision is the posterior's, averaged over a cloud."""
    return gaussian_of(form, curvature_at(model, form, cloud, data))


def gaussian_of(form: str, curvature: Curvature) -> Any:
    """Return the Gaussian with a curvature."""
    precision, rotation, basis = curvature
    if form == "dense":
        return DenseGaussian.from_precision(precision)
    if form == "diagonal":
        return DiagonalGaussian.from_precision(precision)
    if form == "blocks":
        return BlockGaussian.from_precision(precision, rotation)
    return KroneckerGaussian.from_precision(precision, basis, rotation)


def curvature_at(
    model: Any, form: str, cloud: Any, data: Any, like: Curvature | None = None
) -> Curvature:
    """Average the posterior's curvature over a cloud.

    Parameters
    ----------
    model : skbayes_shard.models.softmax.Softmax
    form : {"dense", "blocks", "kronecker", "diagonal"}
    cloud : skbayes_shard.models.softmax_cloud.Points or UnderGaussian
    data : skbayes_shard.models.softmax.SoftmaxData
    like : Curvature or None
        Whose basis to keep, instead of a new one.
    """
    if form == "diagonal":
        own = np.eye(model.n_free, dtype=np.float32)
        weighted = host(_diagonal(model, cloud, data.rows, own))
        return Curvature(weighted + data.prior.precision_diagonal())
    prior = data.prior.precision()
    if form == "dense":
        return Curvature(_dense(model, cloud, data, prior))
    rotation = _class_directions(model, cloud, data) if like is None else like.rotation
    if form == "blocks":
        return Curvature(host(_blocks(model, cloud, data.rows, rotation)) + prior, rotation)
    basis = _column_basis(model, cloud, data, prior) if like is None else like.basis
    diagonal = host(_projected(model, cloud, data.rows, rotation, basis))
    diagonal = diagonal + np.einsum("pd,pq,qd->d", basis, prior, basis)
    return Curvature(diagonal, rotation, basis)


def _column_basis(model: Any, cloud: Any, data: Any, prior: np.ndarray) -> np.ndarray:
    """Eigenvectors of the weighted gram of the columns."""
    grams = host(_blocks(model, cloud, data.rows, None))[0]
    return np.linalg.eigh(grams + prior)[1].astype(np.float32)


def _dense(model: Any, cloud: Any, data: Any, prior: np.ndarray) -> np.ndarray:
    c, p = model.n_free, len(prior)
    upper = np.triu_indices(c)
    pairs = host(_pairs(model, cloud, data.rows))
    out = np.empty((c, p, c, p), np.float32 if c * p > 2048 else np.float64)
    for block, a, b in zip(pairs, *upper, strict=True):
        out[a, :, b] = block + (prior if a == b else 0)
        out[b, :, a] = out[a, :, b].T
    return out.reshape(c * p, c * p)


def _class_directions(model: Any, cloud: Any, data: Any) -> np.ndarray:
    """Eigenvectors of the mean class covariance."""
    _, rotation = np.linalg.eigh(host(_mean_class_weight(model, cloud, data.rows)))
    return rotation.astype(np.float32)


def _pair_products(model: Any, cloud: Any, rows: Rows) -> jax.Array:
    """Return ``p_k p_l`` for each pair of classes k < l, averaged over the cloud: (pairs, rows).

    They say all about the curvature: ``diag p - p p' = sum_{k<l} p_k p_l (e_k - e_l)(e_k - e_l)'``.
    Each term is positive; the left side would cancel in float32, and lose its sign, where a
    class is nearly certain.
    """
    first, second = np.triu_indices(model.n_classes, 1)

    def products(change: jax.Array) -> jax.Array:
        _, p = log_sum_and_p(rows.log_centre + change)
        return p[:, first] * p[:, second]

    return cloud.average(model, rows, products) * rows.weight


def _differences(model: Any, basis: Any = None) -> jax.Array:
    """Return contrasts of class k less those of class l for each pair: (pairs, free)."""
    rows = jnp.asarray(contrasts(model.n_classes), jnp.float32)
    if basis is not None:
        rows = jnp.dot(rows, basis, precision=_HIGH)
    first, second = np.triu_indices(model.n_classes, 1)
    return rows[first] - rows[second]


def _pair_weights(model: Any, cloud: Any, rows: Rows) -> jax.Array:
    """Weights of each pair of contrasts: (pairs, rows)."""
    apart = _differences(model)
    first, second = np.triu_indices(model.n_free)
    squares = apart[:, first] * apart[:, second]
    return jnp.dot(squares.T, _pair_products(model, cloud, rows), precision=_HIGH)


def _direction_weights(model: Any, cloud: Any, rotation: Any, rows: Rows) -> jax.Array:
    """Weights along each class direction (free, rows), or their mean (1, rows) without any."""
    squares = _differences(model, rotation) ** 2
    if rotation is None:
        squares = jnp.mean(squares, axis=1, keepdims=True)
    return jnp.dot(squares.T, _pair_products(model, cloud, rows), precision=_HIGH)


def _grams(weights: jax.Array, rows: Rows) -> jax.Array:
    """Weighted grams ``X' diag(w) X``; weights (blocks, m, rows) give (m, width, width)."""

    def gram(weight: jax.Array) -> jax.Array:
        def block(total: jax.Array, step: Any) -> Any:
            design, w = step
            x = design.rows()
            return total + jnp.dot(x.T * w, x, precision=_HIGH), None

        width = jax.eval_shape(lambda d: d.rows(), jax.tree.map(lambda a: a[0], rows.design))
        zero = jnp.zeros((width.shape[1],) * 2, jnp.float32)
        zero = jax.lax.pcast(zero, (AXIS,), to="varying")
        return jax.lax.scan(block, zero, (rows.design, weight))[0]

    return jax.lax.psum(jax.lax.map(gram, jnp.swapaxes(weights, 0, 1)), AXIS)


@partial(jax.jit, static_argnums=0)
def _pairs(model: Any, cloud: Any, rows: Rows) -> jax.Array:
    def body(cloud: Any, rows: Rows, _: None) -> jax.Array:
        weights = jax.lax.map(partial(_pair_weights, model, cloud), rows)
        return _grams(weights, rows)

    return sharded(model, body)(cloud, rows, None)


@partial(jax.jit, static_argnums=0)
def _blocks(model: Any, cloud: Any, rows: Rows, rotation: Any) -> jax.Array:
    def body(cloud: Any, rows: Rows, rotation: Any) -> jax.Array:
        weights = jax.lax.map(lambda r: _direction_weights(model, cloud, rotation, r), rows)
        return _grams(weights, rows)

    return sharded(model, body)(cloud, rows, rotation)


@partial(jax.jit, static_argnums=0)
def _mean_class_weight(model: Any, cloud: Any, rows: Rows) -> jax.Array:
    def body(cloud: Any, rows: Rows, _: None) -> jax.Array:
        def block(r: Rows) -> jax.Array:
            return jnp.sum(_pair_products(model, cloud, r), axis=1)

        total = jax.lax.psum(jnp.sum(jax.lax.map(block, rows), axis=0), AXIS)
        apart = _differences(model)
        return jnp.dot(apart.T * total, apart, precision=_HIGH)

    return sharded(model, body)(cloud, rows, None)


@partial(jax.jit, static_argnums=0)
def _diagonal(model: Any, cloud: Any, rows: Rows, rotation: Any) -> jax.Array:
    def body(cloud: Any, rows: Rows, rotation: Any) -> jax.Array:
        def block(r: Rows) -> jax.Array:
            return r.design.squares(_direction_weights(model, cloud, rotation, r))

        return jax.lax.psum(jnp.sum(jax.lax.map(block, rows), axis=0), AXIS)

    return sharded(model, body)(cloud, rows, rotation)


@partial(jax.jit, static_argnums=0)
def _projected(
    model: Any, cloud: Any, rows: Rows, rotation: jax.Array, basis: jax.Array
) -> jax.Array:
    def body(cloud: Any, rows: Rows, bases: Any) -> jax.Array:
        rotation, basis = bases

        def block(r: Rows) -> jax.Array:
            x = jnp.dot(r.design.rows(), basis, precision=_HIGH)
            return jnp.dot(_direction_weights(model, cloud, rotation, r), x**2, precision=_HIGH)

        return jax.lax.psum(jnp.sum(jax.lax.map(block, rows), axis=0), AXIS)

    return sharded(model, body)(cloud, rows, (rotation, basis))
