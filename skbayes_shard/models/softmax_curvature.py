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
_MOST_BLOCK_ENTRIES = 2**27
_HIGH = jax.lax.Precision.HIGHEST


def choose_form(n_free: int, width: int) -> str:
    """Choose the most exact form whose factor is worth its memory and time."""
    if n_free * width <= _MOST_DENSE:
        return "dense"
    if width <= _MOST_DENSE and n_free * width**2 <= _MOST_BLOCK_ENTRIES:
        return "blocks"
    return "kronecker" if width <= _MOST_DENSE else "diagonal"


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


def _class_weights(model: Any, points: jax.Array, rows: Rows) -> jax.Array:
    """Return weighted ``diag p - p p'`` in contrasts, averaged over points: (free, free, rows)."""
    to_logits = jnp.asarray(contrasts(model.n_classes), jnp.float32)

    def one(total: Any, point: jax.Array) -> Any:
        change = rows.design.logits(jnp.dot(to_logits, point, precision=_HIGH), "float32")
        _, p = log_sum_and_p((rows.log_centre + change)[None])
        mean = jnp.einsum("kb,kc->cb", p[0], to_logits)
        return (total[0] + p[0], total[1] + mean[:, None] * mean), None

    shape = (model.n_free, model.n_free, rows.weight.shape[-1])
    zero = (jnp.zeros_like(rows.log_centre), jnp.zeros(shape, jnp.float32) * rows.weight)
    (p, squares), _ = jax.lax.scan(one, zero, points)
    spread = jnp.einsum("kb,ka,kc->acb", p, to_logits, to_logits)
    return (spread - squares) * (rows.weight / points.shape[0])


def _direction_weights(model: Any, points: Any, rotation: Any, rows: Rows) -> jax.Array:
    """Weights along each class direction (free, rows), or their mean (1, rows) without any."""
    weight = _class_weights(model, points, rows)
    if rotation is None:
        return jnp.trace(weight)[None] / model.n_free
    return jnp.einsum("ad,acb,cd->db", rotation, weight, rotation)


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
    upper = np.triu_indices(model.n_free)

    def body(points: jax.Array, rows: Rows, _: None) -> jax.Array:
        weights = jax.lax.map(lambda r: _class_weights(model, points, r)[upper], rows)
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
        sums = jax.lax.map(lambda r: jnp.sum(_class_weights(model, points, r), axis=-1), rows)
        return jax.lax.psum(jnp.sum(sums, axis=0), AXIS)

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
