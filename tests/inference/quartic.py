"""A density that is no Gaussian, with everything an engine asks for, and its exact moments.

``f(x) = sum(-x**4 / 4 - x**2 / 2 + c x) + sum(x_i x_j) / 2`` over neighbours: log-concave, skewed
by ``c``, with lighter tails than any Gaussian.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from skbayes_shard.gaussians import DenseGaussian, DiagonalGaussian

SKEW = (1.0, 0.0, -0.5)


class Data(NamedTuple):
    """Centre of displacements, and the Gaussian that plain HMC takes its units from."""

    centre: Any
    prior: Any


class Marginals(NamedTuple):
    """A Gaussian to average over."""

    gaussian: Any


@dataclass(frozen=True)
class Quartic:
    """The density in ``n`` dimensions, for displacements of shape (m, 1, n)."""

    n: int

    def value_and_grad(self, delta, data):
        """Differences from the centre, and gradients."""
        x = data.centre + delta
        return self.value(x) - self.value(data.centre), jax.grad(lambda x: self.value(x).sum())(x)

    def log_density(self, delta, data):
        return self.value_and_grad(delta, data)[0]

    def value(self, x, xp=jnp):
        """The formula above."""
        skew = xp.asarray(SKEW[: self.n], x.dtype)
        alone = xp.sum(-(x**4) / 4 - x**2 / 2 + skew * x, axis=-1)
        return (alone + xp.sum(x[..., 1:] * x[..., :-1], axis=-1) / 2).sum(axis=-1)

    def recentred(self, delta, data):
        moved = data._replace(centre=data.centre + delta)
        return moved, float(self.value(np.asarray(moved.centre, np.float64), np))

    def gaussian(self, form, points, data):
        """The curvature averaged over points; ``form`` is not looked at."""
        x = np.asarray(data.centre + points, np.float64)[:, 0]
        neighbours = np.eye(self.n, k=1) + np.eye(self.n, k=-1)
        curvature = np.diag(np.mean(3 * x**2 + 1, axis=0)) - neighbours / 2
        return jax.tree.map(jnp.asarray, DenseGaussian.from_precision(curvature))

    def marginals(self, gaussian, data, n_draws, seed):
        """All that an expectation needs is the Gaussian itself: it has a closed form."""
        return Marginals(gaussian)

    def expected(self, mean, q, data):
        """Mean of the difference from the centre under ``q``, and its gradient in ``mean``."""
        factor = q.gaussian.factor
        variance = jnp.sum(factor**2, axis=1)
        neighbours = jnp.sum(factor[1:] * factor[:-1]) / 2

        def value(mean):
            x = data.centre + mean
            alone = -(6 * x**2 * variance + 3 * variance**2) / 4 - variance / 2
            return self.value(x) + jnp.sum(alone) + neighbours

        return value(mean) - self.value(data.centre), jax.grad(value)(mean)

    def expected_curvature(self, form, mean, q, data, like):
        """The mean curvature under ``q``."""
        variance = np.sum(np.asarray(q.gaussian.factor, np.float64) ** 2, axis=1)
        x = np.asarray(data.centre + mean, np.float64)[0]
        neighbours = np.eye(self.n, k=1) + np.eye(self.n, k=-1)
        return np.diag(3 * (x**2 + variance) + 1) - neighbours / 2

    def gaussian_of(self, form, curvature):
        """The Gaussian of a precision matrix."""
        return jax.tree.map(jnp.asarray, DenseGaussian.from_precision(curvature))

    def data(self, centre=0.0):
        unit = DiagonalGaussian(jnp.ones((1, self.n), jnp.float32))
        return Data(jnp.full((1, self.n), centre, jnp.float32), unit)


@cache
def exact(n):
    """Means and standard deviations by a sum over a grid, and the log normaliser."""
    axis = np.linspace(-4, 4, 81)
    x = np.stack(np.meshgrid(*[axis] * n, indexing="ij"), axis=-1).reshape(-1, n)
    log_p = Quartic(n).value(x[:, None], np)
    p = np.exp(log_p - log_p.max())
    log_z = np.log(p.sum()) + log_p.max() + n * np.log(axis[1] - axis[0])
    p /= p.sum()
    mean = p @ x
    return mean, np.sqrt(p @ (x - mean) ** 2), log_z
