"""A Gaussian that is diagonal in a Kronecker basis of columns and class directions."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from skbayes_shard.gaussians._cholesky import inverse_root


class KroneckerGaussian(NamedTuple):
    """``x = R (scale * z) Q'``: eigenvectors of columns and classes, exact scales in that basis.

    Known for optimisers as EKFAC (George et al., 2018): the basis is that of a Kronecker
    product, the variances along it are free.
    """

    basis: jax.Array
    rotation: jax.Array
    scale: jax.Array

    @classmethod
    def from_precision(
        cls, precision: np.ndarray, basis: np.ndarray, rotation: np.ndarray
    ) -> KroneckerGaussian:
        """Build from the diagonal precision ``(n_free, n_columns)`` in the bases Q and R."""
        return cls(basis, rotation, inverse_root(precision))

    def colour(self, z: jax.Array) -> jax.Array:
        """Turn standard normal coordinates into draws."""
        return self._rotate(z * self.scale)

    def colour_transposed(self, g: jax.Array) -> jax.Array:
        """Apply the transpose of :meth:`colour`."""
        return self._unrotate(g) * self.scale

    def whiten(self, x: jax.Array) -> jax.Array:
        """Invert :meth:`colour`."""
        return self._unrotate(x) / self.scale

    def variance(self) -> jax.Array:
        """Marginal variances, shape ``(n_free, n_columns)``."""
        return jnp.einsum(
            "ac,cd,pd->ap", self.rotation**2, self.scale**2, self.basis**2, precision=_HIGH
        )

    def row_roots(self, design: Any) -> jax.Array:
        """Deviations of each row's projections along the rotated classes, ``(n_free, rows)``."""
        y = jnp.dot(design.rows(), self.basis, precision=_HIGH)
        return jnp.sqrt(jnp.dot(self.scale**2, (y**2).T, precision=_HIGH))

    def row_draws(self, roots: jax.Array, z: jax.Array) -> jax.Array:
        """Turn normal numbers ``(draws, n_free)`` into draws of each row's projections."""
        along = roots * z[:, :, None]
        return jnp.einsum("ac,scb->sab", self.rotation, along, precision=_HIGH)

    def log_det(self) -> jax.Array:
        """Log determinant of ``A``."""
        return jnp.sum(jnp.log(self.scale))

    def _rotate(self, y: jax.Array) -> jax.Array:
        y = jnp.einsum("ac,...cp->...ap", self.rotation, y, precision=_HIGH)
        return jnp.einsum("pd,...ad->...ap", self.basis, y, precision=_HIGH)

    def _unrotate(self, x: jax.Array) -> jax.Array:
        x = jnp.einsum("ac,...ap->...cp", self.rotation, x, precision=_HIGH)
        return jnp.einsum("pd,...cp->...cd", self.basis, x, precision=_HIGH)


_HIGH = jax.lax.Precision.HIGHEST
