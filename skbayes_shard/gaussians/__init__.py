"""Structured Gaussians, used as variational posteriors and as references that whiten HMC.

Each class stands for a centred Gaussian over arrays of shape ``(n_free, n_columns)`` and is a
pytree, so that it travels into compiled programs as an argument. All share these methods:

- ``colour(z)``: standard normal coordinates to draws, ``A z``; leading axes are batches;
- ``colour_transposed(g)``: ``A' g``, which carries gradients the other way;
- ``whiten(x)``: the inverse of ``colour``;
- ``variance()``: marginal variances, shape ``(n_free, n_columns)``, flat for a full covariance;
- ``row_roots(design)``: for each row ``x`` of a design, a root of the covariance of its
  projections ``theta x``, one normal number to a leading index; ``row_draws(roots, z)`` uses it
  (all but the low-rank one);
- ``log_det()``: log determinant of ``A`` (half that of the covariance).
"""

from typing import Any

import jax

from skbayes_shard.gaussians.blocks import BlockGaussian
from skbayes_shard.gaussians.dense import DenseGaussian
from skbayes_shard.gaussians.diagonal import DiagonalGaussian
from skbayes_shard.gaussians.kronecker import KroneckerGaussian
from skbayes_shard.gaussians.low_rank import LowRankGaussian

__all__ = [
    "BlockGaussian",
    "DenseGaussian",
    "DiagonalGaussian",
    "KroneckerGaussian",
    "LowRankGaussian",
    "coloured",
]


@jax.jit
def coloured(gaussian: Any, z: jax.Array) -> jax.Array:
    """Call ``gaussian.colour(z)``, compiled."""
    return gaussian.colour(z)
