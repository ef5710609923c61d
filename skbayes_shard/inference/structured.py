"""Variational inference with a structured Gaussian, by natural gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from skbayes_shard.sharding import host

_HALVINGS = 8
# Rounding of the ELBO that does not count as a fall.
_SLACK = 1e-2
# Of a new curvature in the precision, at the least.
_LEAST_SHARE = 0.125

# Tolerance of the search with other nodes, which only has to tell how far they lead.
_CHECKED = 5


class Fit(NamedTuple):
    """A fitted Gaussian: data centred at its mean, its factor, and the ELBO by iteration.

    ``error`` is the Monte Carlo error of the mean, as root mean square in posterior standard
    deviations; nan if the search did not converge.
    """

    data: Any
    gaussian: Any
    elbo: np.ndarray
    n_iter: int
    converged: bool
    error: float


class Settings(NamedTuple):
    """How the structured Gaussian is fitted.

    Parameters
    ----------
    form : str
        Structure of the Gaussian.
    n_particles : int
        Number of nodes in each mean.
    max_iter : int
    tol : float
        Stop when no mean moves by more, in posterior standard deviations, and no standard
        deviation by more of itself.
    learning_rate : float
        Length of a natural gradient step; 1 is a Newton step.
    """

    form: str
    n_particles: int
    max_iter: int
    tol: float
    learning_rate: float


def fit_structured(
    density: Any, settings: Settings, top: Any, key: jax.Array, tick: Callable[[int], None]
) -> Fit:
    """Fit a structured Gaussian ``q`` by natural gradient ascent of the ELBO.

    At the optimum the mean gradient of the log density under ``q`` is zero and the precision
    of ``q`` is its mean curvature (Opper and Archambeau, 2009). An iteration is one Newton step
    of the mean under that precision, halved while it lowers the ELBO, and the curvature expected
    there. Where that lowers the ELBO too, curvatures are averaged with those before. The density
    averages over ``q`` row by row, at nodes that stay the same, so the iterations settle on a
    fixed point. From there the search goes on with other nodes, and how far it goes tells the
    Monte Carlo error. The first Gaussian has the curvature at the mode, which is Laplace's
    approximation.

    Parameters
    ----------
    density
        As in :mod:`skbayes_shard.inference`.
    settings : Settings
    top : skbayes_shard.inference.mode.Mode
        Where the search starts.
    key : jax.Array
    tick : callable
        Told the number of finished iterations.

    Returns
    -------
    Fit
    """
    data = top.data
    # A product, so that it is placed where later means will be.
    mean = 0 * data.centre
    state = _State(mean, density.gaussian(settings.form, mean[None], data))
    path: list[float] = []
    ends = []
    for bits in jax.random.bits(key, (2,)):
        state, converged = _search(density, data, settings, state, int(bits), path, tick)
        ends.append(state.mean)
        settings = settings._replace(tol=_CHECKED * settings.tol)
        if not converged:
            break
    data, _ = density.recentred(host(state.mean), data)
    elbo = np.asarray(path) + top.log_density
    return Fit(data, state.gaussian, elbo, len(path), converged, _error(ends, state.gaussian))


class _State(NamedTuple):
    """Mean and Gaussian of ``q``; its curvature, and what share of it a new one gets."""

    mean: jax.Array
    gaussian: Any
    curvature: Any = None
    share: float = 1.0


def _search(
    density: Any,
    data: Any,
    settings: Settings,
    start: _State,
    seed: int,
    path: list[float],
    tick: Callable[[int], None],
) -> tuple[_State, bool]:
    """Iterate with one set of nodes; appends the ELBO of each iteration to ``path``."""
    mean, gaussian, curvature, share = start
    first = len(path)
    while len(path) < settings.max_iter:
        q = density.marginals(gaussian, data, settings.n_particles, seed)
        mean, step, elbo = _climb(density, data, q, mean, settings.learning_rate)
        path.append(elbo)
        tick(1)
        if not np.isfinite(elbo):
            raise FloatingPointError(
                "the ELBO left the finite numbers; scale the columns of X or lower learning_rate"
            )
        if len(path) > first + 1 and elbo < path[-2] - _SLACK:
            share = max(share / 2, _LEAST_SHARE)
        like = None if share == 1 else curvature
        found = density.expected_curvature(settings.form, mean, q, data, like)
        curvature = found if like is None else _mixed(curvature, found, share)
        old, gaussian = gaussian, density.gaussian_of(settings.form, curvature)
        if max(step, float(_growth(gaussian, old)) / share) < settings.tol:
            return _State(mean, gaussian, curvature, share), True
    return _State(mean, gaussian, curvature, share), False


def _error(ends: list[jax.Array], gaussian: Any) -> float:
    """Error of a mean, in standard deviations, from where two sets of nodes have led."""
    if len(ends) < 2:
        return np.nan
    apart = host(ends[1] - ends[0]) / np.sqrt(host(gaussian.variance())).reshape(ends[0].shape)
    # Padded coordinates do not move; a difference has twice the variance.
    return float(np.sqrt(np.mean(apart[apart != 0] ** 2) / 2)) if np.any(apart) else 0.0


def _mixed(old: Any, new: Any, share: float) -> Any:
    return jax.tree.map(lambda a, b: (1 - share) * a + share * b, old, new)


def _climb(
    density: Any, data: Any, q: Any, mean: jax.Array, rate: float
) -> tuple[jax.Array, float, float]:
    """One natural gradient step of the mean, halved until the ELBO does not fall.

    Returns the mean, the largest step in standard deviations had it not been halved, and the
    ELBO (less the log density at the centre).
    """
    elbo, step, size = _elbo(density, data, q, mean)
    for halving in range(_HALVINGS):
        trial = mean + rate / 2**halving * step
        new, _, _ = _elbo(density, data, q, trial)
        if new >= elbo - _SLACK:
            return trial, float(size), float(new)
    return mean, float(size), float(elbo)


@partial(jax.jit, static_argnums=0)
def _elbo(density: Any, data: Any, q: Any, mean: jax.Array) -> Any:
    """ELBO less the log density at the centre, the natural gradient step, and its size."""
    value, grad = density.expected(mean, q, data)
    gaussian, n = q.gaussian, mean.size
    entropy = gaussian.log_det() + 0.5 * n * (1 + jnp.log(2 * jnp.pi))
    step = gaussian.colour(gaussian.colour_transposed(grad[None]))[0]
    size = jnp.abs(step) / jnp.sqrt(gaussian.variance()).reshape(mean.shape)
    return value + entropy, step, jnp.max(size)


@jax.jit
def _growth(new: Any, old: Any) -> jax.Array:
    """Largest relative change of a standard deviation."""
    return 0.5 * jnp.max(jnp.abs(jnp.log(new.variance() / old.variance())))
