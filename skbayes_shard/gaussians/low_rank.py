"""A Gaussian with a diagonal plus a few directions."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class LowRankGaussian(NamedTuple):
    """Covariance ``S (I + F F') S`` with diagonal ``S`` and a thin loading ``F``.

    Held through the symmetric root of the middle: ``F = U sqrt(v) W'`` gives
    ``I + U (sqrt(1 + v) - 1) U'``. ``scale`` has shape (n_free, n_columns), ``basis`` is ``U``,
    ``stretch`` is ``sqrt(1 + v)``.
    """

    scale: jax.Array
    basis: jax.Array
    stretch: jax.Array

    @classmethod
    def from_loading(cls, scale: np.ndarray, loading: np.ndarray) -> LowRankGaussian:
        """Build from ``S`` and ``F`` of shape (n_free * n_columns, rank)."""
        basis, singular, _ = np.linalg.svd(loading, full_matrices=False)
        return cls(scale, basis, np.sqrt(1 + singular**2))

    def colour(self, z: jax.Array) -> jax.Array:
        """Turn standard normal coordinates into draws."""
        return self._stretched(z, self.stretch) * self.scale

    def colour_transposed(self, g: jax.Array) -> jax.Array:
        """Apply the transpose of :meth:`colour`."""
        return self._stretched(g * self.scale, self.stretch)

    def whiten(self, x: jax.Array) -> jax.Array:
        """Invert :meth:`colour`."""
        return self._stretched(x / self.scale, 1 / self.stretch)

    def variance(self) -> jax.Array:
        """Marginal variances, shape ``(n_free, n_columns)``."""
        extra = jnp.sum(self.basis**2 * (self.stretch**2 - 1), axis=1)
        return self.scale**2 * (1 + extra.reshape(self.scale.shape))

    def log_det(self) -> jax.Array:
        """Log determinant of ``A``."""
        return jnp.sum(jnp.log(self.scale)) + jnp.sum(jnp.log(self.stretch))

    def _stretched(self, z: jax.Array, stretch: jax.Array) -> jax.Array:
        flat = z.reshape(-1, self.basis.shape[0])
        along = jnp.dot(flat, self.basis, precision=_HIGH) * (stretch - 1)
        return (flat + jnp.dot(along, self.basis.T, precision=_HIGH)).reshape(z.shape)


_HIGH = jax.lax.Precision.HIGHEST
