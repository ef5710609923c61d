"""A Gaussian with a full covariance."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from skbayes_shard.gaussians._cholesky import inverse_factor

_HIGH = jax.lax.Precision.HIGHEST
# Of the trace, added where a row's covariance may be singular.
_RIDGE = 1e-6


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

    def row_roots(self, design: Any) -> jax.Array:
        """Transposed lower roots of the covariance of each row, ``(n_free, n_free, rows)``."""
        x = design.rows()
        size = self.factor.shape[0]
        # Sums of squares, where products with the covariance itself would cancel.
        by_class = self.factor.reshape(-1, x.shape[1], size)
        t = jnp.einsum("bp,apq->baq", x, by_class, precision=_HIGH)
        if len(by_class) == 1:
            return jnp.sqrt(jnp.sum(t**2, axis=2, keepdims=True)).T
        covariance = jnp.einsum("baq,bdq->bad", t, t, precision=_HIGH)
        total = jnp.trace(covariance, axis1=1, axis2=2)
        ridge = (_RIDGE * total + jnp.finfo(jnp.float32).tiny)[:, None, None]
        return jnp.linalg.cholesky(covariance + ridge * jnp.eye(len(by_class))).T

    def row_draws(self, roots: jax.Array, z: jax.Array) -> jax.Array:
        """Turn normal numbers ``(draws, n_free)`` into draws of each row's projections."""
        return jnp.einsum("dab,sd->sab", roots, z, precision=_HIGH)

    def log_det(self) -> jax.Array:
        """Log determinant of ``A``."""
        return jnp.sum(jnp.log(jnp.diagonal(self.factor)))


def _apply(x: jax.Array, matrix: jax.Array) -> jax.Array:
    flat = x.reshape(-1, matrix.shape[0])
    return jnp.dot(flat, matrix, precision=_HIGH).reshape(x.shape)
