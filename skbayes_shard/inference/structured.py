"""Variational inference with a structured Gaussian, by natural gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_HALVINGS = 8


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
        Stop when the mean moves less than this, in marginal standard deviations, and the
        standard deviations change by less than this, relatively.
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
    of ``q`` is the mean curvature (Opper and Archambeau, 2009). Both means are taken over
    antithetic draws that stay fixed in the coordinates of ``q``, so that the ELBO is a
    deterministic function and a step that lowers it can be halved. The first iteration
    starts from the curvature at the centre, which is Laplace's approximation.

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
    shape = data.centre.shape
    half = jax.random.normal(key, (-(-settings.n_particles // 2), *shape), jnp.float32)
    z = jnp.concatenate([half, -half])
    mean = jnp.zeros(shape, jnp.float32)
    gaussian = density.gaussian(form, mean[None], data)
    path, converged, n_iter = [], False, 0
    while n_iter < settings.max_iter and not converged:
        mean, moved, elbo = _climb(density, data, gaussian, mean, z, settings.learning_rate)
        path.append(elbo + top.log_density)
        n_iter += 1
        tick(1)
        before = np.asarray(_variance(gaussian))
        gaussian = density.gaussian(form, _draws(gaussian, mean, z), data)
        change = np.max(np.abs(np.sqrt(np.asarray(_variance(gaussian)) / before) - 1))
        converged = bool(moved < settings.tol and change < settings.tol)
    if not np.all(np.isfinite(path)):
        raise FloatingPointError(
            "the ELBO left the finite numbers; scale the columns of X or lower learning_rate"
        )
    data, _ = density.recentred(mean, data)
    return Fit(data, gaussian, np.asarray(path), n_iter, converged)


def _climb(
    density: Any, data: Any, gaussian: Any, mean: jax.Array, z: jax.Array, rate: float
) -> tuple[jax.Array, float, float]:
    """One natural gradient step of the mean, halved until the ELBO does not fall."""
    elbo, step, size = _elbo(density, data, gaussian, mean, z)
    for _ in range(_HALVINGS):
        trial = mean + rate * step
        new, _, _ = _elbo(density, data, gaussian, trial, z)
        if new >= elbo - 1e-3:
            return trial, rate * float(size), float(new)
        rate = rate / 2
    return mean, 0.0, float(elbo)


@partial(jax.jit, static_argnums=0)
def _elbo(density: Any, data: Any, gaussian: Any, mean: jax.Array, z: jax.Array) -> Any:
    """ELBO difference from the log density at the centre, and the natural gradient step."""
    value, grad = density.value_and_grad(mean + gaussian.colour(z), data)
    n = mean.size
    entropy = gaussian.log_det() + 0.5 * n * (1 + jnp.log(2 * jnp.pi))
    grad = jnp.mean(grad, axis=0)[None]
    step = gaussian.colour(gaussian.colour_transposed(grad))[0]
    sd = jnp.sqrt(gaussian.variance()).reshape(mean.shape)
    return jnp.mean(value) + entropy, step, jnp.max(jnp.abs(step) / sd)


@jax.jit
def _draws(gaussian: Any, mean: jax.Array, z: jax.Array) -> jax.Array:
    return mean + gaussian.colour(z)


@jax.jit
def _variance(gaussian: Any) -> jax.Array:
    return gaussian.variance()
