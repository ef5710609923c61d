"""A Gaussian with a full covariance."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from skbayes_shard.gaussians._cholesky import inverse_factor


class DenseGaussian(NamedTuple):
    """Full covariance ``A A'`` over all ``n_free * n_columns`` coordinates.

    ``factor`` is ``A``, upper triangular. Its two products with a batch are matrix products
    that read ``d**2`` numbers, so on several devices its rows are split over them.
    """

    factor: jax.Array

    @classmethod
    def from_precision(cls, precision: np.ndarray) -> DenseGaussian:
        """Build from a precision matrix of shape ``(d, d)``."""
        return cls(inverse_factor(precision))

    def colour(self, z: jax.Array) -> jax.Array:
        """Turn standard normal coordinates into draws."""
        return _apply(z, self.factor.T)

    def colour_transposed(self, g: jax.Array) -> jax.Array:
        """Apply the transpose of :meth:`colour`."""
        return _apply(g, self.factor)

    def whiten(self, x: jax.Array) -> jax.Array:
        """Invert :meth:`colour`."""
        flat = x.reshape(-1, self.factor.shape[0]).T
        solved = jax.scipy.linalg.solve_triangular(self.factor, flat, lower=False)
        return solved.T.reshape(x.shape)

    def variance(self) -> jax.Array:
        """Marginal variances, flat."""
        return jnp.sum(self.factor**2, axis=1)

    def log_det(self) -> jax.Array:
        """Log determinant of ``A``."""
        return jnp.sum(jnp.log(jnp.diagonal(self.factor)))


def _apply(x: jax.Array, matrix: jax.Array) -> jax.Array:
    flat = x.reshape(-1, matrix.shape[0])
    return jnp.dot(flat, matrix, precision=jax.lax.Precision.HIGHEST).reshape(x.shape)
