"""The softmax model's curvature, averaged over points, as a structured Gaussian.

For logits with probabilities ``p`` the curvature of a row is ``(diag p - p p')`` times
``x x'``. It is averaged over any number of points first and multiplied with the design once,
so the curvature expected under a Gaussian costs as much as the curvature at a mode.

Forms, from exact to cheap: ``"dense"``, all of it; ``"blocks"``, one block for each class
direction; ``"kronecker"``, exact diagonal in a Kronecker basis; ``"diagonal"``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

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


def gaussian_at(model: Any, form: str, points: jax.Array, data: Any) -> Any:
    """Return the Gaussian whose precision is the posterior's, averaged over ``points``.

    Parameters
    ----------
    model : skbayes_shard.models.softmax.Softmax
    form : {"dense", "blocks", "kronecker", "diagonal"}
    points : array of shape (m, n_free, width)
        Displacements from the centre.
    data : skbayes_shard.models.softmax.SoftmaxData
    """
    prior = data.prior.precision()
    if form == "dense":
        return DenseGaussian.from_precision(_dense(model, points, data, prior))
    if form == "diagonal":
        own = np.eye(model.n_free, dtype=np.float32)
        weighted = host(_diagonal(model, points, data.rows, own))
        return DiagonalGaussian.from_precision(weighted + np.diagonal(prior))
    rotation = _class_directions(model, points, data)
    if form == "blocks":
        blocks = host(_blocks(model, points, data.rows, rotation))
        return BlockGaussian.from_precision(blocks + prior, rotation)
    grams = host(_blocks(model, points, data.rows, None))[0]
    _, basis = np.linalg.eigh(grams + prior)
    basis = basis.astype(np.float32)
    diagonal = host(_projected(model, points, data.rows, rotation, basis))
    diagonal = diagonal + np.einsum("pd,pq,qd->d", basis, prior, basis)
    return KroneckerGaussian.from_precision(diagonal, basis, rotation)


def _dense(model: Any, points: Any, data: Any, prior: np.ndarray) -> np.ndarray:
    c, p = model.n_free, len(prior)
    upper = np.triu_indices(c)
    pairs = host(_pairs(model, points, data.rows))
    out = np.empty((c, p, c, p), np.float32 if c * p > 2048 else np.float64)
    for block, a, b in zip(pairs, *upper, strict=True):
        out[a, :, b] = block + (prior if a == b else 0)
        out[b, :, a] = out[a, :, b].T
    return out.reshape(c * p, c * p)


def _class_directions(model: Any, points: Any, data: Any) -> np.ndarray:
    """Eigenvectors of the mean class covariance."""
    _, rotation = np.linalg.eigh(host(_mean_class_weight(model, points, data.rows)))
    return rotation.astype(np.float32)


def _pair_products(model: Any, points: jax.Array, rows: Rows) -> jax.Array:
    """Return ``p_k p_l`` for each pair of classes k < l, averaged over points: (pairs, rows).

    They say all about the curvature: ``diag p - p p' = sum_{k<l} p_k p_l (e_k - e_l)(e_k - e_l)'``.
    Each term is positive; the left side would cancel in float32, and lose its sign, where a
    class is nearly certain.
    """
    to_logits = jnp.asarray(contrasts(model.n_classes), jnp.float32)
    first, second = np.triu_indices(model.n_classes, 1)

    def products(p: jax.Array) -> jax.Array:
        return p[first] * p[second]

    def one(total: jax.Array, point: jax.Array) -> Any:
        change = rows.design.logits(jnp.dot(to_logits, point, precision=_HIGH), "float32")
        _, p = log_sum_and_p((rows.log_centre + change)[None])
        return total + products(p[0]), None

    # Nothing times a product: zeros of its shape, varying over devices as it does.
    zero = 0 * products(jnp.exp(rows.log_centre))
    total = jax.lax.scan(one, zero, points)[0]
    return total * (rows.weight / points.shape[0])


def _differences(model: Any, basis: Any = None) -> jax.Array:
    """Return contrasts of class k less those of class l for each pair: (pairs, free)."""
    rows = jnp.asarray(contrasts(model.n_classes), jnp.float32)
    if basis is not None:
        rows = jnp.dot(rows, basis, precision=_HIGH)
    first, second = np.triu_indices(model.n_classes, 1)
    return rows[first] - rows[second]


def _pair_weights(model: Any, points: jax.Array, rows: Rows) -> jax.Array:
    """Weights of each pair of contrasts: (pairs, rows)."""
    apart = _differences(model)
    first, second = np.triu_indices(model.n_free)
    squares = apart[:, first] * apart[:, second]
    return jnp.dot(squares.T, _pair_products(model, points, rows), precision=_HIGH)


def _direction_weights(model: Any, points: Any, rotation: Any, rows: Rows) -> jax.Array:
    """Weights along each class direction (free, rows), or their mean (1, rows) without any."""
    squares = _differences(model, rotation) ** 2
    if rotation is None:
        squares = jnp.mean(squares, axis=1, keepdims=True)
    return jnp.dot(squares.T, _pair_products(model, points, rows), precision=_HIGH)


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
def _pairs(model: Any, points: jax.Array, rows: Rows) -> jax.Array:
    def body(points: jax.Array, rows: Rows, _: None) -> jax.Array:
        weights = jax.lax.map(partial(_pair_weights, model, points), rows)
        return _grams(weights, rows)

    return sharded(model, body)(points, rows, None)


@partial(jax.jit, static_argnums=0)
def _blocks(model: Any, points: jax.Array, rows: Rows, rotation: Any) -> jax.Array:
    def body(points: jax.Array, rows: Rows, rotation: Any) -> jax.Array:
        weights = jax.lax.map(lambda r: _direction_weights(model, points, rotation, r), rows)
        return _grams(weights, rows)

    return sharded(model, body)(points, rows, rotation)


@partial(jax.jit, static_argnums=0)
def _mean_class_weight(model: Any, points: jax.Array, rows: Rows) -> jax.Array:
    def body(points: jax.Array, rows: Rows, _: None) -> jax.Array:
        def block(r: Rows) -> jax.Array:
            return jnp.sum(_pair_products(model, points, r), axis=1)

        total = jax.lax.psum(jnp.sum(jax.lax.map(block, rows), axis=0), AXIS)
        apart = _differences(model)
        return jnp.dot(apart.T * total, apart, precision=_HIGH)

    return sharded(model, body)(points, rows, None)


@partial(jax.jit, static_argnums=0)
def _diagonal(model: Any, points: jax.Array, rows: Rows, rotation: Any) -> jax.Array:
    def body(points: jax.Array, rows: Rows, rotation: Any) -> jax.Array:
        def block(r: Rows) -> jax.Array:
            return r.design.squares(_direction_weights(model, points, rotation, r))

        return jax.lax.psum(jnp.sum(jax.lax.map(block, rows), axis=0), AXIS)

    return sharded(model, body)(points, rows, rotation)


@partial(jax.jit, static_argnums=0)
def _projected(
    model: Any, points: jax.Array, rows: Rows, rotation: jax.Array, basis: jax.Array
) -> jax.Array:
    def body(points: jax.Array, rows: Rows, bases: Any) -> jax.Array:
        rotation, basis = bases

        def block(r: Rows) -> jax.Array:
            x = jnp.dot(r.design.rows(), basis, precision=_HIGH)
            return jnp.dot(_direction_weights(model, points, rotation, r), x**2, precision=_HIGH)

        return jax.lax.psum(jnp.sum(jax.lax.map(block, rows), axis=0), AXIS)

    return sharded(model, body)(points, rows, (rotation, basis))
