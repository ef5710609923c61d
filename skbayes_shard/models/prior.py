"""The Normal prior of coefficients as given, in the coordinates of scaled columns."""

from __future__ import annotations

from typing import Any, NamedTuple

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
        scale, lean = self._float64()
        z = np.array(beta, np.float64)
        z[..., 0] -= z @ lean
        z /= scale
        constant = z.shape[-2] * np.sum(np.log(scale) + 0.5 * np.log(2 * np.pi))
        return -0.5 * np.sum(z**2, axis=(-2, -1)) - constant

    def precision(self) -> np.ndarray:
        """Precision matrix (width, width) of one row, on the host."""
        scale, lean = self._float64()
        root = np.diag(1 / scale)
        root[0] -= lean / scale[0]
        return root.T @ root

    def precision_diagonal(self) -> np.ndarray:
        """Diagonal (width,) of :meth:`precision`."""
        scale, lean = self._float64()
        return 1 / scale**2 + (lean / scale[0]) ** 2

    def expected_square(self, gaussian: Any) -> jax.Array:
        """Mean square of whitened draws of a centred Gaussian, summed over coordinates."""
        return jnp.sum(gaussian.row_roots(_Whitener(self.scale, self.lean)) ** 2)

    def _float64(self) -> tuple[np.ndarray, np.ndarray]:
        return np.asarray(self.scale, np.float64), np.asarray(self.lean, np.float64)

    def _leaned(self, beta: jax.Array) -> jax.Array:
        return jnp.dot(beta, self.lean, precision=jax.lax.Precision.HIGHEST)

    def _first(self, value: jax.Array) -> jax.Array:
        return value[..., None] * (jnp.arange(self.scale.shape[0]) == 0)


def log_normal(values: np.ndarray, scale: float) -> np.ndarray:
    """Log density of the last two axes as independent centred Normals, in float64."""
    squares = np.sum((values / scale) ** 2, axis=(-2, -1), dtype=np.float64)
    n = values.shape[-2] * values.shape[-1]
    return -0.5 * squares - n * (np.log(scale) + 0.5 * np.log(2 * np.pi))


class _Whitener(NamedTuple):
    """The rows of :meth:`Prior.whiten`, as if they were rows of a design."""

    scale: jax.Array
    lean: jax.Array

    def rows(self) -> jax.Array:
        """Return the matrix."""
        first = jnp.arange(self.scale.shape[0]) == 0
        return jnp.diag(1 / self.scale) - first[:, None] * self.lean / self.scale[0]

    def squared_logits(self, v: jax.Array) -> jax.Array:
        """Product of ``v`` with the transposed squared rows."""
        square = (self.lean / self.scale[0]) ** 2
        leaned = jnp.dot(v, square, precision=jax.lax.Precision.HIGHEST)[:, None]
        return v / self.scale**2 + leaned * (jnp.arange(self.scale.shape[0]) == 0)
