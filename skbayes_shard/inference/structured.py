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
# Root mean square step, in posterior standard deviations, at which averaging begins.
_CALM = 0.5
# Calm iterations with half steps and fresh curvatures, before steps shrink; and least after.
_SETTLING = 8
_LEAST_SETTLED = 3
# Iterations whose draws the curvature is averaged over, before and after.
_POOL = 2
_CALM_POOL = 4


class Fit(NamedTuple):
    """A fitted Gaussian: data centred at its mean, its factor, and the ELBO by iteration."""

    data: Any
    gaussian: Any
    elbo: np.ndarray
    n_iter: int
    converged: bool


class Settings(NamedTuple):
    """How the structured Gaussian is fitted.

    Parameters
    ----------
    form : str
        Structure of the Gaussian.
    n_particles : int
        Number of draws in each mean; rounded up to antithetic pairs.
    max_iter : int
    tol : float
        Stop when the Monte Carlo error of the mean is below this, as root mean square over
        coordinates in posterior standard deviations.
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
    of ``q`` is its mean curvature (Opper and Archambeau, 2009). Iterations are Newton steps of
    the mean under that precision. Both averages are taken over antithetic draws, fresh in each
    iteration. The search first climbs, halving steps that lower the ELBO. Once steps are small it
    settles, with half steps and the curvature averaged over the draws of a few iterations. Then
    it averages: steps shrink like 1 / n, the curvature is renewed at every doubling, and the
    noise of the draws averages out. The first Gaussian has
    the curvature at the mode, which is Laplace's approximation.

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
    data, form = top.data, settings.form
    # A product, so that it is placed where later means will be.
    state = _State(0 * data.centre, None, [])
    state = state._replace(gaussian=density.gaussian(form, state.mean[None], data))
    path, noises, converged, calm = [], [], False, 0
    for n_iter in range(1, settings.max_iter + 1):
        z = _antithetic(jax.random.fold_in(key, n_iter), settings.n_particles, data.centre.shape)
        settled = max(calm - _SETTLING, 0)
        rate = settings.learning_rate / (settled + (2 if calm else 1))
        mean, noise, elbo, full = _climb(density, data, state.gaussian, state.mean, z, rate)
        path.append(elbo + top.log_density)
        tick(1)
        calm = calm + 1 if full and (calm or noise < _CALM) else 0
        state = state._replace(mean=mean)
        if settled & (settled - 1) == 0 or not calm:
            state = _refreshed(density, form, data, state, z, calm)
        noises = [*noises, noise] if settled else []
        error = np.sqrt(np.mean(np.square(noises)) / settled) if settled else np.inf
        converged = settled >= _LEAST_SETTLED and error < settings.tol
        if converged or not np.isfinite(elbo):
            break
    if not np.all(np.isfinite(path)):
        raise FloatingPointError(
            "the ELBO left the finite numbers; scale the columns of X or lower learning_rate"
        )
    data, _ = density.recentred(host(state.mean), data)
    return Fit(data, state.gaussian, np.asarray(path), n_iter, bool(converged))


class _State(NamedTuple):
    """Mean and Gaussian of ``q``, and the draws that its curvature was averaged over."""

    mean: jax.Array
    gaussian: Any
    points: list[jax.Array]


def _refreshed(
    density: Any, form: str, data: Any, state: _State, z: jax.Array, calm: int
) -> _State:
    """Average the curvature anew, over draws of this iteration and of some before."""
    seen = [] if calm == 1 else state.points
    size = _CALM_POOL if calm else _POOL
    points = [*seen, _draws(state.gaussian, state.mean, z)][-size:]
    # Filled up by repetition: pools of two sizes mean two compiled programs.
    pool = (points * size)[-size:]
    gaussian = density.gaussian(form, jnp.concatenate(pool), data)
    return _State(state.mean, gaussian, points)


def _climb(
    density: Any, data: Any, gaussian: Any, mean: jax.Array, z: jax.Array, rate: float
) -> tuple[jax.Array, float, float, bool]:
    """One natural gradient step of the mean, halved until the ELBO does not fall.

    Returns the mean, the root mean square of the whole step in standard deviations, the ELBO
    (less the log density at the centre) and whether the step was taken unhalved.
    """
    elbo, step, size = _elbo(density, data, gaussian, mean, z)
    for halving in range(_HALVINGS):
        trial = mean + rate / 2**halving * step
        new, _, _ = _elbo(density, data, gaussian, trial, z)
        if new >= elbo - _SLACK:
            return trial, float(size), float(new), halving == 0
    return mean, float(size), float(elbo), False


@partial(jax.jit, static_argnums=(1, 2))
def _antithetic(key: jax.Array, n: int, shape: tuple[int, ...]) -> jax.Array:
    half = jax.random.normal(key, (-(-n // 2), *shape), jnp.float32)
    return jnp.concatenate([half, -half])


@partial(jax.jit, static_argnums=0)
def _elbo(density: Any, data: Any, gaussian: Any, mean: jax.Array, z: jax.Array) -> Any:
    """ELBO less the log density at the centre, the natural gradient step, and its size."""
    value, grad = density.value_and_grad(mean + gaussian.colour(z), data)
    n = mean.size
    entropy = gaussian.log_det() + 0.5 * n * (1 + jnp.log(2 * jnp.pi))
    grad = jnp.mean(grad, axis=0)[None]
    step = gaussian.colour(gaussian.colour_transposed(grad))[0]
    sd = jnp.sqrt(gaussian.variance()).reshape(mean.shape)
    # The root mean square of normal numbers, whatever many zeros stand beside them.
    square = (step / sd) ** 2
    size = jnp.sqrt(jnp.sum(square**2) / (3 * jnp.sum(square)))
    return jnp.mean(value) + entropy, step, size


@jax.jit
def _draws(gaussian: Any, mean: jax.Array, z: jax.Array) -> jax.Array:
    return mean + gaussian.colour(z)


@jax.jit
def _variance(gaussian: Any) -> jax.Array:
    return gaussian.variance()
