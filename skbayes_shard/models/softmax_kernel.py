"""The softmax likelihood's kernel: value and gradient of sharded rows, in one all-reduce.

Functions take the static model (:class:`skbayes_shard.models.softmax.Softmax`) first. What
happens on one device is a scan over blocks of rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from skbayes_shard.sharding import AXIS

# Products of coefficients and contrasts are small; on GPUs the default would round them.
_HIGH = jax.lax.Precision.HIGHEST


class Rows(NamedTuple):
    """What is split over devices, in blocks: design, labels, weights, log p at the centre.

    ``spread`` is what a Gaussian says of the rows, where one is averaged over
    (:class:`skbayes_shard.models.softmax_cloud.Marginals`).
    """

    design: Any
    label: jax.Array
    weight: jax.Array
    log_centre: jax.Array
    spread: Any = None


def contrasts(n_classes: int) -> np.ndarray:
    """Return the (n_classes, n_free) matrix that turns contrasts into logits.

    Examples
    --------
    >>> from skbayes_shard.models.softmax_kernel import contrasts
    >>> contrasts(2).tolist()
    [[0.0], [1.0]]
    >>> (contrasts(4).T @ contrasts(4)).round(6).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    if n_classes == 2:
        return np.array([[0.0], [1.0]])
    helmert = np.tril(np.ones((n_classes, n_classes)), -1)[:, :-1]
    helmert[np.arange(n_classes - 1), np.arange(n_classes - 1)] = -np.arange(n_classes - 1, 0, -1)
    return helmert / np.linalg.norm(helmert, axis=0)


def sharded(model: Any, body: Any, split: bool = False) -> Any:
    """Run ``body(replicated, local rows, replicated)`` on every device of the mesh.

    What it returns is the same on every device, or with ``split`` one part of a split array.
    """
    return jax.shard_map(
        body,
        mesh=model.mesh,
        in_specs=(PartitionSpec(), PartitionSpec(AXIS), PartitionSpec()),
        out_specs=PartitionSpec(AXIS) if split else PartitionSpec(),
    )


def sum_rows(model: Any, delta: jax.Array, rows: Rows, batch: Any) -> Any:
    """Log likelihood difference and gradient, summed over blocks and devices: one all-reduce."""
    n = delta.shape[0]
    to_logits = jnp.asarray(contrasts(model.n_classes), jnp.float32)
    weights = jnp.einsum("scp,kc->skp", delta, to_logits, precision=_HIGH).reshape(
        -1, delta.shape[-1]
    )

    def block(total: Any, rows: Rows) -> Any:
        change = rows.design.logits(weights, model.precision).reshape(n, model.n_classes, -1)
        value, residual = row_terms(change, rows)
        residual = jnp.einsum("skb,kc->scb", residual, to_logits, precision=_HIGH).reshape(
            n * model.n_free, -1
        )
        grad = rows.design.pullback(residual, model.precision)
        return (total[0] + value, total[1] + grad), None

    if batch is not None:
        rows = jax.tree.map(lambda a: jax.lax.dynamic_index_in_dim(a, batch, keepdims=True), rows)
    zero = (jnp.zeros(n, jnp.float32), jnp.zeros((n * model.n_free, delta.shape[-1]), jnp.float32))
    zero = jax.lax.pcast(zero, (AXIS,), to="varying")
    (value, grad), _ = jax.lax.scan(block, zero, rows)
    both = jnp.concatenate([value[:, None], grad.reshape(n, -1)], axis=1)
    both = jax.lax.psum(both, AXIS)
    return both[:, 0], both[:, 1:].reshape(delta.shape)


def row_terms(change: jax.Array, rows: Rows) -> tuple[jax.Array, jax.Array]:
    """Value (m,) and residuals (m, classes, rows) of one block, weighted."""
    observed = _one_hot(rows.label, change.shape[1])
    log_sum, p = log_sum_and_p(rows.log_centre + change)
    value = jnp.sum((jnp.sum(change * observed, axis=1) - log_sum) * rows.weight, axis=1)
    return value, (observed - p) * rows.weight


def log_sum_and_p(logits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return log sums of exponentials, and probabilities, over the class axis (1)."""
    largest = jnp.max(logits, axis=1, keepdims=True)
    e = jnp.exp(logits - largest)
    total = jnp.sum(e, axis=1, keepdims=True)
    return (largest + jnp.log(total))[:, 0], e / total


def _one_hot(label: jax.Array, n_classes: int) -> jax.Array:
    return (label == jnp.arange(n_classes)[:, None]).astype(jnp.float32)


def shift_rows(model: Any, delta: jax.Array, rows: Rows, _: None) -> Any:
    """Return log probabilities at a new centre, and the log likelihood of each block there."""
    weights = jnp.dot(jnp.asarray(contrasts(model.n_classes), jnp.float32), delta, precision=_HIGH)

    def block(rows: Rows) -> tuple[jax.Array, jax.Array]:
        logits = rows.log_centre + rows.design.logits(weights, "float32")
        log_sum, _ = log_sum_and_p(logits[None])
        log_p = logits - log_sum
        observed = _one_hot(rows.label, model.n_classes)
        return log_p, jnp.sum(jnp.sum(log_p * observed, axis=0) * rows.weight)

    return jax.lax.map(block, rows)
