"""A Gaussian with independent coordinates."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from skbayes_shard.gaussians._cholesky import inverse_root


class DiagonalGaussian(NamedTuple):
    """Independent coordinates with standard deviations ``scale``, shape ``(n_free, n_columns)``."""

    scale: jax.Array

    @classmethod
    def from_precision(cls, precision: np.ndarray) -> DiagonalGaussian:
        """Build from precisions, one for each coordinate."""
        return cls(inverse_root(precision))

    def colour(self, z: jax.Array) -> jax.Array:
        """Turn standard normal coordinates into draws."""
        return z * self.scale

    def colour_transposed(self, g: jax.Array) -> jax.Array:
        """Apply the transpose of :meth:`colour`."""
        return g * self.scale

    def whiten(self, x: jax.Array) -> jax.Array:
        """Invert :meth:`colour`."""
        return x / self.scale

    def variance(self) -> jax.Array:
        """Marginal variances."""
        return self.scale**2

    def log_det(self) -> jax.Array:
        """Log determinant of ``A``."""
        return jnp.sum(jnp.log(self.scale))
