"""Class probabilities averaged over posterior draws, streamed over draws and rows."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from skbayes_shard.models.columns import Columns
from skbayes_shard.models.design import lay_out
from skbayes_shard.sharding import AXIS, block_layout, host, place_blocks, replicate

_ROWS = 512
_AT_ONCE = 2**19
# Rows on devices at a time, in numbers: bounds memory however long X is.
_ENTRIES_ON_DEVICE = 2**26


def probabilities(
    mesh: Mesh, X: Any, columns: Columns, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return log posterior mean probabilities and posterior standard deviations.

    Parameters
    ----------
    mesh : jax.sharding.Mesh
    X : array or sparse matrix of shape (n, n_columns)
    columns : Columns
        Of the fit.
    weights : array of shape (n_draws, n_rows_of_coef, width)
        In laid out columns; one row stands for two classes.

    Returns
    -------
    log_mean, std : arrays of shape (n, n_classes)
        A single draw has no standard deviation: NaN.
    """
    drawn, log_weight = _grouped(weights)
    placed = replicate(mesh, (drawn, log_weight))
    parts = [
        tuple(layout.collect(np.swapaxes(a, 1, 2)) for a in host(_average(mesh, blocks, *placed)))
        for layout, blocks in _portions(mesh, X, columns)
    ]
    log_mean, std = (np.concatenate(part) for part in zip(*parts, strict=True))
    return log_mean, std if len(weights) > 1 else np.full_like(std, np.nan)


def labels(mesh: Mesh, X: Any, columns: Columns, weights: np.ndarray, key: jax.Array) -> np.ndarray:
    """Draw one class number for each draw and row, shape (n_draws, n)."""
    drawn, log_weight = _grouped(weights)
    drawn = replicate(mesh, drawn)
    parts = []
    for layout, blocks in _portions(mesh, X, columns):
        key, now = jax.random.split(key)
        keys = place_blocks(mesh, jax.random.split(now, layout.shape[0]))
        part = host(_draw(mesh, log_weight.shape[1], blocks, drawn, keys))
        parts.append(layout.collect(np.moveaxis(part, 1, 2))[:, : len(weights)])
    return np.concatenate(parts).T


def _portions(mesh: Mesh, X: Any, columns: Columns) -> Any:
    at_once = max(_ROWS, _ENTRIES_ON_DEVICE // columns.width)
    for start in range(0, X.shape[0], at_once):
        part = X[start : start + at_once]
        layout = block_layout(part.shape[0], mesh.size, _ROWS)
        yield layout, place_blocks(mesh, lay_out(part, columns, layout.order, True))


def _grouped(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cut draws into groups of one size; missing ones get weight zero."""
    n, n_rows, width = weights.shape
    size = 2 ** int(np.log2(max(1, _AT_ONCE // (_ROWS * (n_rows + 1)))))
    size = min(size, 2 ** int(np.ceil(np.log2(n))))
    groups = -(-n // size)
    out = np.zeros((groups * size, n_rows, width), np.float32)
    out[:n] = weights
    log_weight = np.where(np.arange(groups * size) < n, -np.log(n), -np.inf).astype(np.float32)
    return out.reshape(groups, size * n_rows, width), log_weight.reshape(groups, size)


def _log_p(design: Any, weights: jax.Array, size: int) -> jax.Array:
    """Log probabilities (size, classes, rows) of one block under a group of draws."""
    logits = design.logits(weights, "float32")
    logits = logits.reshape(size, weights.shape[0] // size, -1)
    if logits.shape[1] == 1:
        logits = jnp.concatenate([jnp.zeros_like(logits), logits], axis=1)
    return jax.nn.log_softmax(logits, axis=1)


@partial(jax.jit, static_argnums=0)
def _average(mesh: Mesh, blocks: Any, drawn: jax.Array, log_weight: jax.Array) -> Any:
    size = log_weight.shape[1]

    def block(drawn: jax.Array, log_weight: jax.Array, design: Any) -> Any:
        def group(total: Any, step: Any) -> Any:
            log_sum, mean, spread, seen = total
            weights, log_w = step
            log_p = _log_p(design, weights, size)
            w = jnp.exp(log_w)[:, None, None]
            log_part = jax.nn.logsumexp(log_p + log_w[:, None, None], axis=0)
            p, share = jnp.exp(log_p), jnp.sum(jnp.exp(log_w))
            # Chan, Golub and LeVeque's merge of means and squares: no cancellation.
            here = jnp.sum(w * p, axis=0) / share
            gap = here - mean
            spread = spread + jnp.sum(w * (p - here) ** 2, axis=0)
            spread = spread + gap**2 * seen * share / (seen + share)
            mean = mean + gap * share / (seen + share)
            return (jnp.logaddexp(log_sum, log_part), mean, spread, seen + share), None

        first = jax.eval_shape(partial(_log_p, size=size), design, drawn[0])
        zero = jnp.zeros(first.shape[1:], jnp.float32)
        zero = jax.lax.pcast(zero, (AXIS,), to="varying")
        total, _ = jax.lax.scan(
            group, (zero - jnp.inf, zero, zero, jnp.float32(0)), (drawn, log_weight)
        )
        log_mean, _, variance, seen = total
        return log_mean - jnp.log(seen), jnp.sqrt(variance / seen)

    def local(blocks: Any, drawn: jax.Array, log_weight: jax.Array) -> Any:
        return jax.lax.map(partial(block, drawn, log_weight), blocks)

    split, whole = PartitionSpec(AXIS), PartitionSpec()
    return jax.shard_map(
        local, mesh=mesh, in_specs=(split, whole, whole), out_specs=(split, split)
    )(blocks, drawn, log_weight)


@partial(jax.jit, static_argnums=(0, 1))
def _draw(mesh: Mesh, size: int, blocks: Any, drawn: jax.Array, keys: jax.Array) -> jax.Array:
    def block(drawn: jax.Array, step: Any) -> jax.Array:
        design, key = step

        def group(step: Any) -> jax.Array:
            weights, key = step
            log_p = _log_p(design, weights, size)
            return jnp.argmax(log_p + jax.random.gumbel(key, log_p.shape, log_p.dtype), axis=1)

        found = jax.lax.map(group, (drawn, jax.random.split(key, drawn.shape[0])))
        return found.reshape(-1, found.shape[-1])

    def local(blocks: Any, drawn: jax.Array, keys: jax.Array) -> jax.Array:
        return jax.lax.map(partial(block, drawn), (blocks, keys))

    split, whole = PartitionSpec(AXIS), PartitionSpec()
    return jax.shard_map(local, mesh=mesh, in_specs=(split, whole, split), out_specs=split)(
        blocks, drawn, keys
    )
