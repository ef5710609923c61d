"""Clouds that the softmax likelihood is averaged over: given points, or a Gaussian row by row.

Under a Gaussian over coefficients the logits of a row are Gaussian too, in as many dimensions
as there are contrasts, and what a row expects depends on nothing else. So rows are averaged one
by one (the local reparametrisation of Kingma, Salimans and Welling, 2015), at nodes whose errors
average out over rows, where draws of coefficients would err for all rows alike. Two and three
classes are integrated by the trapezoid rule, more by quasi-Monte Carlo.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import norm, qmc

from skbayes_shard.models.softmax_kernel import Rows, contrasts, row_terms, sharded
from skbayes_shard.sharding import AXIS, place_blocks, replicate

_HIGH = jax.lax.Precision.HIGHEST
# Normal numbers beyond this weigh less than float32 resolves.
_REACH = 6.0
# Logits of one block held at a time.
_AT_ONCE = 2**20


class Points(NamedTuple):
    """Displacements (m, free, width) from the centre, equally weighted."""

    points: jax.Array

    def average(self, model: Any, rows: Rows, what: Callable[[jax.Array], Any]) -> Any:
        """Average ``what`` of changes of the logits (draws, classes, rows) over the cloud.

        ``what`` returns a pytree whose leaves have the draws in front.
        """
        to_logits = jnp.asarray(contrasts(model.n_classes), jnp.float32)

        def change(point: jax.Array) -> jax.Array:
            weights = jnp.dot(to_logits, point, precision=_HIGH)
            return rows.design.logits(weights, "float32")[None]

        weights = jnp.ones((len(self.points), 1), jnp.float32) / len(self.points)
        return _weighted(self.points, weights, change, what)


class Nodes(NamedTuple):
    """Where rows are averaged: weights (groups, nodes), and normal numbers for each contrast."""

    weights: jax.Array
    points: jax.Array


class Marginals(NamedTuple):
    """A Gaussian, and for each row the root of the covariance of its contrasts."""

    gaussian: Any
    nodes: Nodes
    roots: jax.Array


class UnderGaussian(NamedTuple):
    """A Gaussian around a displacement (free, width); ``rows.spread`` tells its marginals."""

    mean: jax.Array
    gaussian: Any
    nodes: Nodes

    def average(self, model: Any, rows: Rows, what: Callable[[jax.Array], Any]) -> Any:
        """As :meth:`Points.average`."""
        to_logits = jnp.asarray(contrasts(model.n_classes), jnp.float32)
        weights = jnp.dot(to_logits, self.mean, precision=_HIGH)
        centre = rows.design.logits(weights, model.precision)

        def change(z: jax.Array) -> jax.Array:
            contrast = self.gaussian.row_draws(rows.spread, z)
            return centre + jnp.einsum("scb,kc->skb", contrast, to_logits, precision=_HIGH)

        return _weighted(self.nodes.points, self.nodes.weights, change, what)


def _weighted(each: Any, weights: jax.Array, change: Callable, what: Callable) -> Any:
    """Weighted sum of ``what(change(one))`` over groups of draws."""

    def one(group: Any) -> Any:
        item, weight = group
        found = what(change(item))
        return jax.tree.map(lambda a: jnp.tensordot(weight, a, 1, precision=_HIGH), found)

    def add(total: Any, group: Any) -> Any:
        return jax.tree.map(jnp.add, total, one(group)), None

    groups = (each, weights)
    shapes = jax.eval_shape(one, jax.tree.map(lambda a: a[0], groups))
    zero = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
    zero = jax.lax.pcast(zero, (AXIS,), to="varying")
    return jax.lax.scan(add, zero, groups)[0]


def marginals(model: Any, gaussian: Any, rows: Rows, n_draws: int, seed: int) -> Marginals:
    """Find what a Gaussian says of each row, and fix the nodes at which rows are averaged.

    All rows share the nodes, but for signs of their own: errors then differ between rows.
    """
    rng = np.random.default_rng(seed)
    nodes = replicate(model.mesh, _nodes(model, rows, n_draws, rng))
    shape = (rows.label.shape[0], model.n_free, rows.label.shape[1])
    signs = 1 - 2 * rng.integers(2, size=shape, dtype=np.int8)
    roots = _row_roots(model, gaussian, rows, place_blocks(model.mesh, signs))
    return Marginals(gaussian, nodes, roots)


def _nodes(model: Any, rows: Rows, n: int, rng: np.random.Generator) -> Nodes:
    """At least ``n`` nodes, in groups whose logits fit into memory; the last is padded."""
    if model.n_free <= 2:
        z, weights = _grid(n, model.n_free)
    else:
        z, weights = _normal_points(n, model.n_free, rng)
    n = len(z)
    most = max(_AT_ONCE // (model.n_classes * rows.label.shape[1]), 1)
    shape = (-(-n // most), min(most, n))
    z, weights = z.astype(np.float32), weights.astype(np.float32)
    z, weights = np.resize(z, (*shape, model.n_free)), np.resize(weights, shape)
    weights.flat[n:] = 0
    return Nodes(weights, z)


def _grid(n: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of equal steps: no other rule does better on steep logistic curves."""
    n = int(np.ceil(n ** (1 / size)))
    reach = min(_REACH, np.sqrt(np.pi * n))
    z = reach * (np.arange(n) + 0.5 - n / 2) * 2 / n
    weights = np.exp(-0.5 * z**2)
    weights /= weights.sum()
    if n > 1:
        z /= np.sqrt(weights @ z**2)
    z = np.stack(np.meshgrid(*[z] * size), axis=-1).reshape(-1, size)
    return z, np.prod(np.meshgrid(*[weights] * size), axis=0).ravel()


def _normal_points(n: int, size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Scrambled Sobol points made normal, in antithetic pairs of unit covariance; weights."""
    pairs = -(-n // 2)
    z = qmc.Sobol(size, rng=rng).random_base2(int(np.ceil(np.log2(pairs))))[:pairs]
    z = norm.ppf(z)
    z /= np.sqrt(np.mean(z**2, axis=0))
    if pairs >= 2 * size:
        root = np.linalg.cholesky(z.T @ z / pairs)
        z = np.linalg.solve(root, z.T).T
    return np.concatenate([z, -z]), np.full(2 * pairs, 0.5 / pairs)


@partial(jax.jit, static_argnums=0)
def _row_roots(model: Any, gaussian: Any, rows: Rows, signs: jax.Array) -> jax.Array:
    def body(gaussian: Any, rows: Rows, _: None) -> jax.Array:
        def block(r: Rows) -> jax.Array:
            roots = gaussian.row_roots(r.design)
            # One sign for each normal number, which has the leading index.
            return roots * (r.spread if roots.ndim == 2 else r.spread[:, None])

        return jax.lax.map(block, rows)

    return sharded(model, body, split=True)(gaussian, rows._replace(spread=signs), None)


@partial(jax.jit, static_argnums=0)
def expected(model: Any, mean: jax.Array, q: Marginals, rows: Rows) -> tuple[jax.Array, jax.Array]:
    """Log likelihood difference expected under ``q`` around ``mean``, and its gradient."""
    to_logits = jnp.asarray(contrasts(model.n_classes), jnp.float32)

    def body(cloud: UnderGaussian, rows: Rows, _: None) -> tuple[jax.Array, jax.Array]:
        def block(total: Any, r: Rows) -> Any:
            value, residual = cloud.average(model, r, lambda change: row_terms(change, r))
            contrast = jnp.dot(to_logits.T, residual, precision=_HIGH)
            grad = r.design.pullback(contrast, model.precision)
            return (total[0] + value, total[1] + grad), None

        zero = (jnp.zeros((), jnp.float32), jnp.zeros(mean.shape, jnp.float32))
        total, _ = jax.lax.scan(block, jax.lax.pcast(zero, (AXIS,), to="varying"), rows)
        both = jax.lax.psum(jnp.append(total[1], total[0]), AXIS)
        return both[-1], both[:-1].reshape(mean.shape)

    cloud = UnderGaussian(mean, q.gaussian, q.nodes)
    return sharded(model, body)(cloud, rows._replace(spread=q.roots), None)
