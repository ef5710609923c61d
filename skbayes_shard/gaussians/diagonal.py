"""A Gaussian with independent coordinates."""

from __future__ import annotations

from typing import Any, NamedTuple

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

    def row_roots(self, design: Any) -> jax.Array:
        """Deviations of each row's projections, ``(n_free, rows)``."""
        return jnp.sqrt(design.squared_logits(self.scale**2))

    def row_draws(self, roots: jax.Array, z: jax.Array) -> jax.Array:
        """Turn normal numbers ``(draws, n_free)`` into draws of each row's projections."""
        return roots * z[:, :, None]

    def log_det(self) -> jax.Array:
        """Log determinant of ``A``."""
        return jnp.sum(jnp.log(self.scale))
