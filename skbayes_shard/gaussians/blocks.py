"""A Gaussian with one full block for each class direction."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from skbayes_shard.gaussians._cholesky import inverse_factor


class BlockGaussian(NamedTuple):
    """Independent blocks in a rotated basis of class directions.

    ``x = R y`` with ``y_c = A_c z_c``; ``factor`` holds the ``A_c``, ``rotation`` is ``R``.
    """

    factor: jax.Array
    rotation: jax.Array

    @classmethod
    def from_precision(cls, precision: np.ndarray, rotation: np.ndarray) -> BlockGaussian:
        """Build from precisions of shape ``(n_free, n_columns, n_columns)`` in the basis ``R``."""
        return cls(np.stack([inverse_factor(block) for block in precision]), rotation)

    def colour(self, z: jax.Array) -> jax.Array:
        """Turn standard normal coordinates into draws."""
        y = jnp.einsum("cpq,...cq->...cp", self.factor, z, precision=_HIGH)
        return jnp.einsum("ac,...cp->...ap", self.rotation, y, precision=_HIGH)

    def colour_transposed(self, g: jax.Array) -> jax.Array:
        """Apply the transpose of :meth:`colour`."""
        y = jnp.einsum("ac,...ap->...cp", self.rotation, g, precision=_HIGH)
        return jnp.einsum("cpq,...cp->...cq", self.factor, y, precision=_HIGH)

    def whiten(self, x: jax.Array) -> jax.Array:
        """Invert :meth:`colour`."""
        y = jnp.einsum("ac,...ap->cp...", self.rotation, x, precision=_HIGH)
        flat = y.reshape(*y.shape[:2], -1)
        solved = jax.vmap(jax.scipy.linalg.solve_triangular)(self.factor, flat)
        return jnp.moveaxis(solved.reshape(y.shape), (0, 1), (-2, -1))

    def variance(self) -> jax.Array:
        """Marginal variances, shape ``(n_free, n_columns)``."""
        return jnp.dot(self.rotation**2, jnp.sum(self.factor**2, axis=2), precision=_HIGH)

    def row_roots(self, design: Any) -> jax.Array:
        """Deviations of each row's projections along the rotated classes, ``(n_free, rows)``."""
        t = jnp.einsum("bp,cpq->cbq", design.rows(), self.factor, precision=_HIGH)
        return jnp.sqrt(jnp.sum(t**2, axis=2))

    def row_draws(self, roots: jax.Array, z: jax.Array) -> jax.Array:
        """Turn normal numbers ``(draws, n_free)`` into draws of each row's projections."""
        along = roots * z[:, :, None]
        return jnp.einsum("ac,scb->sab", self.rotation, along, precision=_HIGH)

    def log_det(self) -> jax.Array:
        """Log determinant of ``A``."""
        return jnp.sum(jnp.log(jnp.diagonal(self.factor, axis1=1, axis2=2)))


_HIGH = jax.lax.Precision.HIGHEST
