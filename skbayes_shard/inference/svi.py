"""Stochastic variational inference with NumPyro's automatic guides and optax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpyro.infer import SVI, RenyiELBO, Trace_ELBO, init_to_value
from numpyro.infer.autoguide import AutoLowRankMultivariateNormal, AutoNormal
from numpyro.optim import optax_to_numpyro

from skbayes_shard.gaussians import DiagonalGaussian, LowRankGaussian
from skbayes_shard.sharding import host

_AT_ONCE = 200
_LEAST_STEPS = 1000
# Without a tolerance of the user's: this, and after so many steps noise alone is forgiven.
_TOL = 0.01
_PATIENCE = 2000
# So many coordinates at least: the noise of the ELBO of a few would never be below tol.
_FEWEST = 10
# The learning rate falls tenfold over max_iter steps: Adam's noise is proportional to it.
_FINAL_RATE = 0.1


@dataclass(frozen=True)
class Guide:
    """What a compiled SVI program depends on, apart from shapes.

    Parameters
    ----------
    kind : {"mean_field", "low_rank"}
        ``AutoNormal`` or ``AutoLowRankMultivariateNormal``.
    num_particles : int
        More than one turns the ELBO into ``RenyiELBO``.
    batched : bool
        Whether steps see mini-batches.
    """

    kind: str
    num_particles: int = 1
    batched: bool = False


class GuideFit(NamedTuple):
    """Fitted guide parameters by NumPyro's names, the ELBO of each step, and convergence.

    The ELBO has the prior whole and the log likelihood less that at the centre of the data.
    """

    params: dict[str, np.ndarray]
    elbo: np.ndarray
    n_iter: int
    converged: bool


class Settings(NamedTuple):
    """How a guide is fitted.

    Parameters
    ----------
    n_batches : int
        Blocks of rows on each device, visited in an order drawn anew each epoch.
    max_iter : int
    tol : float or None
        Converged when the mean ELBO of the last quarter of all steps is above that of the
        quarter before by less than this (or below it), a standard error included, in nats
        for each coordinate. With mini-batches, and with None (0.01) after 2,000 steps, it is
        enough that the two are within one standard error.
    learning_rate : float
        Adam's, in the units given for each site.
    """

    n_batches: int
    max_iter: int
    tol: float | None
    learning_rate: float


def fit_guide(
    density: Any,
    spec: Callable[..., None],
    guide: Guide,
    settings: Settings,
    data: Any,
    start: dict[str, np.ndarray],
    units: dict[str, np.ndarray],
    key: jax.Array,
    tick: Callable[[int], None],
) -> GuideFit:
    """Maximise the ELBO of an automatic guide.

    Parameters
    ----------
    density
        As in :mod:`skbayes_shard.inference`.
    spec : callable
        NumPyro model, called with (density, data, batch).
    guide : Guide
    settings : Settings
    data : pytree
    start, units : dict of arrays
        By sample site: where the guide's means start, and standard deviations to expect, in
        which the guide starts and its steps are measured.
    key : jax.Array
    tick : callable
        Told the number of finished steps.
    """
    # NumPyro draws in float64 where the user switched that on; the data are float32.
    with jax.enable_x64(False):
        max_iter, n_batches = settings.max_iter, settings.n_batches
        key_init, key_order = jax.random.split(key)
        rates = (jnp.float32(settings.learning_rate), jnp.int32(max_iter))
        n_coordinates = sum(np.size(value) for value in start.values())
        state = _begin(density, spec, guide, data, start, units, rates, key_init)
        losses: list[np.ndarray] = []
        converged, n_iter = False, 0
        while n_iter < max_iter and not converged:
            n_steps = min(_AT_ONCE, max_iter - n_iter)
            state, loss = _advance(
                density, spec, guide, n_steps, n_batches, data, start, units, rates, state,
                key_order, jnp.int32(n_iter),
            )  # fmt: skip
            losses.append(np.asarray(loss, np.float64))
            n_iter += n_steps
            tick(n_steps)
            if not np.all(np.isfinite(losses[-1])):
                raise FloatingPointError(
                    "the ELBO left the finite numbers; lower learning_rate or scale the columns "
                    "of X"
                )
            converged = _settled(losses, n_batches, settings.tol, n_coordinates)
        params = host(_params(density, spec, guide, data, start, units, rates, state))
        return GuideFit(params, -np.concatenate(losses), n_iter, converged)


def _settled(
    losses: list[np.ndarray], n_batches: int, tol: float | None, n_coordinates: int
) -> bool:
    """Whether the last quarter of all steps is no better than the quarter before it."""
    done = np.concatenate(losses)
    if len(done) < _LEAST_STEPS or len(done) < 8 * n_batches:
        return False
    # By epochs: batches differ, and an epoch sees each once.
    done = done[: len(done) // n_batches * n_batches].reshape(-1, n_batches).mean(axis=1)
    quarter = len(done) // 4
    before, now = done[-2 * quarter : -quarter], done[-quarter:]
    error = np.sqrt((np.var(before) + np.var(now)) / quarter)
    change = abs(np.mean(before) - np.mean(now))
    # Mini-batches, and guides far from the posterior, are too noisy for any tolerance: no
    # detectable change must do.
    noisy = n_batches > 1 or (tol is None and len(losses) * _AT_ONCE >= _PATIENCE)
    within = (_TOL if tol is None else tol) * max(n_coordinates, _FEWEST)
    return bool(change + error < within or (noisy and change < error))


def approximation(
    guide: Guide,
    params: dict[str, np.ndarray],
    sites: dict[str, np.ndarray],
    join: Callable[[dict[str, np.ndarray]], np.ndarray],
) -> tuple[np.ndarray, Any]:
    """Return a fitted guide as a mean and a Gaussian over the sites joined in one array.

    ``sites`` are arrays of the sites' shapes, ``join`` puts arrays by site into one.
    """
    if guide.kind == "mean_field":
        mean = join({site: params[f"{site}_auto_loc"] for site in sites})
        scale = join({site: params[f"{site}_auto_scale"] for site in sites})
        return mean, DiagonalGaussian(scale)

    def joined(flat: np.ndarray) -> np.ndarray:
        # NumPyro lines the sites up by name.
        ends = np.cumsum([sites[site].size for site in sorted(sites)])
        parts = np.split(flat, ends[:-1])
        named = zip(sorted(sites), parts, strict=True)
        return join({site: part.reshape(sites[site].shape) for site, part in named})

    loading = np.stack([joined(column).ravel() for column in params["auto_cov_factor"].T], axis=1)
    gaussian = LowRankGaussian.from_loading(joined(params["auto_scale"]), loading)
    return joined(params["auto_loc"]), gaussian


def _build(
    density: Any, spec: Callable, guide: Guide, start: Any, units: Any, rates: Any
) -> tuple[SVI, dict[str, jax.Array]]:
    """NumPyro's objects, and the guide's first scales."""
    model = partial(spec, density)
    init = init_to_value(values=start)
    if guide.kind == "mean_field":
        auto = AutoNormal(model, init_loc_fn=init)
        sizes = {f"{site}_auto_loc": unit for site, unit in units.items()}
        scales = {f"{site}_auto_scale": unit for site, unit in units.items()}
    else:
        auto = AutoLowRankMultivariateNormal(model, init_loc_fn=init)
        flat = jnp.concatenate([units[site].ravel() for site in sorted(units)])
        sizes, scales = {"auto_loc": flat}, {"auto_scale": flat}
    loss = RenyiELBO(num_particles=guide.num_particles) if guide.num_particles > 1 else Trace_ELBO()
    rate, n_steps = rates

    def schedule(step: jax.Array) -> jax.Array:
        return rate * _FINAL_RATE ** (step / n_steps)

    optimiser = optax.chain(optax.adam(schedule), _in_units(sizes))
    return SVI(model, auto, optax_to_numpyro(optimiser), loss), scales


def _in_units(sizes: dict[str, jax.Array]) -> optax.GradientTransformation:
    """Measure Adam's steps of the named parameters in their own units."""

    def rescale(updates: Any, _: Any) -> Any:
        return {name: update * sizes.get(name, 1.0) for name, update in updates.items()}

    return optax.stateless(rescale)


def _prepared(
    density: Any, spec: Any, guide: Guide, data: Any, start: Any, units: Any, rates: Any, key: Any
) -> tuple[SVI, Any]:
    svi, scales = _build(density, spec, guide, start, units, rates)
    return svi, svi.init(key, data, _first_batch(guide), init_params=scales)


def _first_batch(guide: Guide) -> Any:
    return jnp.int32(0) if guide.batched else None


@partial(jax.jit, static_argnums=(0, 1, 2))
def _begin(
    density: Any, spec: Any, guide: Guide, data: Any, start: Any, units: Any, rates: Any, key: Any
) -> Any:
    return _prepared(density, spec, guide, data, start, units, rates, key)[1]


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _advance(
    density: Any,
    spec: Any,
    guide: Guide,
    n_steps: int,
    n_batches: int,
    data: Any,
    start: Any,
    units: Any,
    rates: Any,
    state: Any,
    key: jax.Array,
    done: jax.Array,
) -> Any:
    # Initialising again sets up NumPyro's transforms; its result is dropped by the compiler.
    svi, _ = _prepared(density, spec, guide, data, start, units, rates, state.rng_key)

    def batch_of(step: jax.Array) -> Any:
        if not guide.batched:
            return None
        order = jax.random.permutation(jax.random.fold_in(key, step // n_batches), n_batches)
        return order[step % n_batches]

    def one(state: Any, step: jax.Array) -> Any:
        return svi.update(state, data, batch_of(step))

    return jax.lax.scan(one, state, done + jnp.arange(n_steps))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _params(
    density: Any, spec: Any, guide: Guide, data: Any, start: Any, units: Any, rates: Any, state: Any
) -> Any:
    svi, _ = _prepared(density, spec, guide, data, start, units, rates, state.rng_key)
    return svi.get_params(state)
