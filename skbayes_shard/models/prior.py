"""The Normal prior of coefficients as given, in the coordinates of scaled columns."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Prior(NamedTuple):
    """Independent Normals on coefficients of columns as given.

    In scaled columns the coefficient ``j`` has standard deviation ``scale[j]``, and the
    intercept (column 0), which is that of centred columns, has mean ``lean . beta`` and
    standard deviation ``scale[0]``. ``colour`` and its relatives make it a Gaussian like those
    of :mod:`skbayes_shard.gaussians`.
    """

    scale: jax.Array
    lean: jax.Array

    def whiten(self, beta: jax.Array) -> jax.Array:
        """Return standard normal coordinates of coefficients (..., free, width)."""
        shifted = beta - self._first(self._leaned(beta))
        return shifted / self.scale

    def colour(self, z: jax.Array) -> jax.Array:
        """Turn standard normal coordinates into coefficients."""
        beta = z * self.scale
        return beta + self._first(self._leaned(beta))

    def colour_transposed(self, g: jax.Array) -> jax.Array:
        """Apply the transpose of :meth:`colour`."""
        return (g + g[..., :1] * self.lean) * self.scale

    def difference(self, delta: jax.Array, centre: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Log density of ``centre + delta`` less that of ``centre``, and its gradient."""
        z, z0 = self.whiten(delta), self.whiten(centre)
        value = -jnp.sum(z * (0.5 * z + z0), axis=(-2, -1))
        slope = -(z + z0) / self.scale
        return value, slope - slope[..., :1] * self.lean

    def log_density(self, beta: np.ndarray) -> np.ndarray:
        """Log density of coefficients (..., free, width) in float64, on the host."""
        scale, lean = np.asarray(self.scale, np.float64), np.asarray(self.lean, np.float64)
        z = np.array(beta, np.float64)
        z[..., 0] -= z @ lean
        z /= scale
        constant = z.shape[-2] * np.sum(np.log(scale) + 0.5 * np.log(2 * np.pi))
        return -0.5 * np.sum(z**2, axis=(-2, -1)) - constant

    def precision(self) -> np.ndarray:
        """Precision matrix (width, width) of one row, on the host."""
        root = np.diag(1 / np.asarray(self.scale, np.float64))
        root[0] -= np.asarray(self.lean, np.float64) / np.asarray(self.scale, np.float64)[0]
        return root.T @ root

    def _leaned(self, beta: jax.Array) -> jax.Array:
        return jnp.dot(beta, self.lean, precision=jax.lax.Precision.HIGHEST)

    def _first(self, value: jax.Array) -> jax.Array:
        return value[..., None] * (jnp.arange(self.scale.shape[0]) == 0)
