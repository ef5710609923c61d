"""Hamiltonian Monte Carlo in whitened coordinates, with an exact Gaussian flow.

Given a Gaussian reference ``theta = centre + A z``, the energy is
``|z|**2 / 2 + |p|**2 / 2 + R(z)`` with ``R(z) = -log density - |z|**2 / 2``. The Gaussian part
is integrated exactly, by a rotation of ``(z, p)``; only ``R`` kicks. It is Metropolis
corrected, so exact for any reference, and cheap where the reference is good: split
Hamiltonian Monte Carlo (Shahbaba, Lan, Johnson and Neal, 2014).

TensorFlow Probability drives the chains; this is the only module that imports it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from skbayes_shard.sharding import host


@contextmanager
def _hushed() -> Iterator[None]:
    """Silence TFP (0.26.0.dev20261027) on jax 0.10.2 and 0.12, which deprecate what it calls.

    It is heard when it is imported, and when programs that draw uniforms are traced.
    """
    with warnings.catch_warnings():
        for message in ("jax.core.pytype_aval_mappings", "shape requires ndarray"):
            warnings.filterwarnings("ignore", message, DeprecationWarning)
        yield


try:
    with _hushed():
        from tensorflow_probability.substrates.jax import mcmc as tfm
except Exception as error:  # a release that does not match JAX fails with AttributeError
    raise ImportError(
        'method="hmc" needs TensorFlow Probability for this JAX, and importing it failed with '
        f"{type(error).__name__}: {error}. Install it with: pip install 'tfp-nightly>=0.26.0.dev0'"
    ) from error

_JITTER = 0.2
# With an excellent reference a quarter turn in one step would be accepted, and mix worse.
_LARGEST_STEP = 0.55
_MOST_STRETCH = 3.0
_MOST_LEAPFROGS = 256
_DIVERGENT = 1000.0
_AT_ONCE = 50
_FIRST_STEP = 0.4
_FIRST_LEAPFROG = 0.01
_CURVATURE_POINTS = 64


@dataclass(frozen=True)
class Sampler:
    """What a compiled sampling program depends on, apart from shapes.

    Parameters
    ----------
    kind : {"split", "leapfrog"}
        Split HMC in the reference's coordinates, or plain HMC in the coordinates given.
    n_leapfrog : int or None
        Fixed number of steps in a trajectory; None for as many as make a quarter turn or more
        (split only).
    target_accept : float
        Acceptance probability that the step size is adapted to.
    """

    kind: str = "split"
    n_leapfrog: int | None = None
    target_accept: float = 0.85


class Draws(NamedTuple):
    """What a sampling run returns, on the host.

    ``delta`` (chains, draws, ...) are displacements from the centre; the others have shape
    (chains, draws), but ``n_leapfrog`` and ``step_size``, (draws,), which all chains share.
    """

    delta: np.ndarray
    log_density: np.ndarray
    accept_prob: np.ndarray
    diverging: np.ndarray
    n_leapfrog: np.ndarray
    step_size: np.ndarray


class Chains(NamedTuple):
    """Running chains: positions in whitened coordinates, kernel state, random key."""

    z: jax.Array
    results: Any
    key: jax.Array


class _SplitResults(NamedTuple):
    log_accept_ratio: jax.Array
    is_accepted: jax.Array
    potential: jax.Array
    slope: jax.Array
    step_size: jax.Array
    used_step: jax.Array
    trajectory: jax.Array
    n_leapfrog: jax.Array
    target_log_prob: jax.Array


class SplitHamiltonianMonteCarlo(tfm.TransitionKernel):
    """HMC whose Gaussian part is an exact rotation.

    Parameters
    ----------
    potential : callable
        From positions (chains, ...) to ``R`` (chains,) and its gradient.
    step_size : float
        Largest angle of one rotation.
    trajectory : float
        Total angle, jittered; a quarter turn suits a reference that fits.
    n_leapfrog : int or None
        Fixed number of rotations; their total angle is then at most that of ``trajectory``.
    """

    def __init__(
        self,
        potential: Callable,
        step_size: Any,
        trajectory: Any = math.pi / 2,
        n_leapfrog: int | None = None,
    ):
        self._parameters = {
            "potential": potential,
            "step_size": step_size,
            "trajectory": trajectory,
            "n_leapfrog": n_leapfrog,
        }

    @property
    def parameters(self) -> dict[str, Any]:
        """Constructor arguments."""
        return self._parameters

    @property
    def is_calibrated(self) -> bool:
        """True: steps are Metropolis corrected."""
        return True

    def bootstrap_results(self, z: jax.Array) -> _SplitResults:
        """Evaluate the start."""
        potential, slope = self._parameters["potential"](z)
        step = jnp.asarray(self._parameters["step_size"], z.dtype)
        return _SplitResults(
            log_accept_ratio=jnp.zeros_like(potential),
            is_accepted=jnp.ones_like(potential, dtype=bool),
            potential=potential,
            slope=slope,
            step_size=step,
            used_step=step,
            trajectory=jnp.asarray(self._parameters["trajectory"], z.dtype),
            n_leapfrog=jnp.zeros((), jnp.int32),
            target_log_prob=-potential - _half_square(z),
        )

    def one_step(self, z: jax.Array, results: _SplitResults, seed: Any) -> Any:
        """Draw momenta, follow one trajectory, accept or reject it chain by chain."""
        key_p, key_t, key_u = jax.random.split(seed, 3)
        p = jax.random.normal(key_p, z.shape, z.dtype)
        step, n = self._trajectory(key_t, results)
        z_new, p_new, potential, slope = self._integrate(z, p, results, step, n)
        before = results.potential + _half_square(z) + _half_square(p)
        log_ratio = before - (potential + _half_square(z_new) + _half_square(p_new))
        log_ratio = jnp.where(jnp.isfinite(log_ratio), log_ratio, -jnp.inf)
        uniform = jax.random.uniform(key_u, log_ratio.shape, z.dtype)
        accept = jnp.log(uniform) < log_ratio
        pick = partial(_where, accept)
        z, potential = pick(z_new, z), pick(potential, results.potential)
        return z, _SplitResults(
            log_accept_ratio=log_ratio,
            is_accepted=accept,
            potential=potential,
            slope=pick(slope, results.slope),
            step_size=results.step_size,
            used_step=step,
            trajectory=results.trajectory,
            n_leapfrog=n,
            target_log_prob=-potential - _half_square(z),
        )

    def _trajectory(self, key: jax.Array, now: _SplitResults) -> tuple[jax.Array, jax.Array]:
        """Angle of one rotation and their number, the same for all chains."""
        jitter = jax.random.uniform(
            key, (), now.step_size.dtype, minval=1 - _JITTER, maxval=1 + _JITTER
        )
        length = now.trajectory * jitter
        fixed = self._parameters["n_leapfrog"]
        if fixed is not None:
            # A full turn would come back to where it started, and be accepted.
            return jnp.minimum(now.step_size * jitter, length / fixed), jnp.int32(fixed)
        step_size = jnp.minimum(now.step_size, _LARGEST_STEP)
        n = jnp.clip(jnp.ceil(length / step_size), 1, _MOST_LEAPFROGS)
        return jnp.minimum(length / n, step_size), n.astype(jnp.int32)

    def _integrate(
        self, z: jax.Array, p: jax.Array, start: _SplitResults, step: jax.Array, n: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        cos, sin = jnp.cos(step), jnp.sin(step)

        def leapfrog(_: int, state: Any) -> Any:
            z, p, _, slope = state
            p = p - 0.5 * step * slope
            z, p = cos * z + sin * p, cos * p - sin * z
            potential, slope = self._parameters["potential"](z)
            return z, p - 0.5 * step * slope, potential, slope

        return jax.lax.fori_loop(0, n, leapfrog, (z, p, start.potential, start.slope))


def _half_square(z: jax.Array) -> jax.Array:
    return 0.5 * jnp.sum(z * z, axis=tuple(range(1, z.ndim)))


def _where(accept: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    return jnp.where(accept.reshape(accept.shape + (1,) * (new.ndim - 1)), new, old)


class Target(NamedTuple):
    """What chains sample: a density in coordinates ``z`` with ``delta = origin + A z``."""

    data: Any
    gaussian: Any
    origin: jax.Array


class Tuning(NamedTuple):
    """First step size, angle of a trajectory, and number of steps that adapt the step size."""

    step_size: Any
    trajectory: Any = math.pi / 2
    n_adapt: Any = 0


def _kernel(density: Any, sampler: Sampler, target: Target, tuning: Tuning) -> Any:
    data, gaussian, origin = target

    def potential(z: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, grad = density.value_and_grad(origin + gaussian.colour(z), data)
        return -value - _half_square(z), -gaussian.colour_transposed(grad) - z

    def log_density(z: jax.Array) -> jax.Array:
        return density.log_density(origin + gaussian.colour(z), data)

    step = jnp.asarray(tuning.step_size, jnp.float32)
    if sampler.kind == "split":
        inner = SplitHamiltonianMonteCarlo(potential, step, tuning.trajectory, sampler.n_leapfrog)
    else:
        inner = tfm.HamiltonianMonteCarlo(log_density, step, sampler.n_leapfrog)
    return tfm.DualAveragingStepSizeAdaptation(
        inner,
        tuning.n_adapt,
        target_accept_prob=jnp.float32(sampler.target_accept),
        shrinkage_target=2 * step,
    )


@partial(jax.jit, static_argnums=(0, 1))
def _begin(
    density: Any, sampler: Sampler, target: Target, tuning: Tuning, z: jax.Array, key: jax.Array
) -> Chains:
    # Position and key pass through so that they are placed as later steps will place them:
    # another placement would compile the sampling program once more.
    return Chains(z, _kernel(density, sampler, target, tuning).bootstrap_results(z), key)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _advance(
    density: Any, sampler: Sampler, n_steps: int, target: Target, chains: Chains
) -> tuple[Chains, Any]:
    # The tuning in force travels in the chains' results.
    kernel = _kernel(density, sampler, target, Tuning(1.0))
    key, seed = jax.random.split(chains.key)

    def trace(z: jax.Array, results: Any) -> Any:
        inner = results.inner_results
        if sampler.kind == "split":
            step, n, value = inner.used_step, inner.n_leapfrog, inner.target_log_prob
        else:
            step, n = results.new_step_size, jnp.asarray(sampler.n_leapfrog, jnp.int32)
            value = inner.accepted_results.target_log_prob
        ratio = inner.log_accept_ratio
        return value, jnp.exp(jnp.minimum(ratio, 0.0)), ratio < -_DIVERGENT, n, step

    with _hushed():
        z, traced, results = tfm.sample_chain(
            n_steps,
            current_state=chains.z,
            previous_kernel_results=chains.results,
            kernel=kernel,
            trace_fn=trace,
            return_final_kernel_results=True,
            seed=seed,
        )
    delta = target.origin + target.gaussian.colour(z)
    return Chains(z[-1], results, key), (delta, *traced)


def begin(
    density: Any, sampler: Sampler, target: Target, tuning: Tuning, z: jax.Array, key: jax.Array
) -> Chains:
    """Start chains at positions ``z``."""
    tuning = Tuning(
        jnp.float32(tuning.step_size), jnp.float32(tuning.trajectory), jnp.int32(tuning.n_adapt)
    )
    return _begin(density, sampler, target, tuning, z, key)


def run(
    density: Any,
    sampler: Sampler,
    target: Target,
    chains: Chains,
    n_draws: int,
    tick: Callable[[int], None],
) -> tuple[Chains, Draws]:
    """Advance the chains by ``n_draws`` steps, a bounded number for each dispatch."""
    at_once = min(_AT_ONCE, n_draws)
    parts = []
    for start in range(0, n_draws, at_once):
        chains, part = _advance(density, sampler, at_once, target, chains)
        parts.append(host(part))
        tick(min(at_once, n_draws - start))
    columns = [np.concatenate(column)[:n_draws] for column in zip(*parts, strict=True)]
    per_chain = [np.swapaxes(a, 0, 1) for a in columns[:4]]
    return chains, Draws(*per_chain, *columns[4:])


class Plan(NamedTuple):
    """Numbers of chains and of steps; warm-up is two windows of equal length."""

    n_chains: int
    n_warmup: int
    n_draws: int

    @property
    def window(self) -> int:
        """Steps of one warm-up window."""
        return -(-self.n_warmup // 2)


class Run(NamedTuple):
    """Draws, and the centre that their displacements refer to, with the log density there."""

    centre: np.ndarray
    draws: Draws
    log_density: float


def sample_split(
    density: Any,
    sampler: Sampler,
    plan: Plan,
    form: str,
    top: Any,
    reference: Any,
    key: jax.Array,
    tick: Callable[[int], None],
) -> Run:
    """Split HMC from the reference at the mode, which is refined half way through warm-up.

    The first window adapts the step size and finds the typical set. Its second half gives a new
    centre, its mean, and a new reference, whose curvature is averaged over points of it:
    curvature averages are almost free of noise, where variances of a few hundred draws are
    not. The second window adapts the step size again.

    Parameters
    ----------
    density, form
        As in :mod:`skbayes_shard.inference`.
    sampler : Sampler
    plan : Plan
    top : skbayes_shard.inference.mode.Mode
    reference
        Gaussian at the mode; chains start from draws of it.
    key : jax.Array
    tick : callable
        Told the number of finished steps.
    """
    key_z, key_one, key_two = jax.random.split(key, 3)
    window, origin = plan.window, np.zeros(top.data.centre.shape, np.float32)
    # The sum is placed where later positions will be.
    z = 0 * top.data.centre + jax.random.normal(key_z, (plan.n_chains, *origin.shape), jnp.float32)
    target = Target(top.data, reference, origin)
    tuning = Tuning(_FIRST_STEP, n_adapt=window)
    chains = begin(density, sampler, target, tuning, z, key_one)
    chains, seen = run(density, sampler, target, chains, window, tick)
    _require_finite(seen)
    late = seen.delta[:, window // 2 :].reshape(-1, *origin.shape)
    shift = late.mean(axis=0)
    data, log_density = density.recentred(shift, top.data)
    reference = density.gaussian(form, _thinned(late) - shift, data)
    target = Target(data, reference, origin)
    z = _whitened(reference, seen.delta[:, -1] - shift)
    tuning = Tuning(seen.step_size[-1], _quarter_turn(reference, late - shift), window)
    chains = begin(density, sampler, target, tuning, z, key_two)
    chains, _ = run(density, sampler, target, chains, window, tick)
    chains, draws = run(density, sampler, target, chains, plan.n_draws, tick)
    _require_finite(draws)
    return Run(host(data.centre), draws, log_density)


def _quarter_turn(reference: Any, delta: np.ndarray) -> float:
    """Angle of a quarter turn of the *posterior*, which may be wider than its reference.

    Where the posterior is not Gaussian its inverse mean curvature understates its variance. The
    mean square of all whitened coordinates measures by how much, almost without noise.
    """
    wide = np.sqrt(np.mean(np.asarray(_whitened(reference, delta)) ** 2, dtype=np.float64))
    return math.pi / 2 * float(np.clip(wide, 1.0, _MOST_STRETCH))


def sample_leapfrog(
    density: Any,
    sampler: Sampler,
    plan: Plan,
    top: Any,
    reference: Any,
    key: jax.Array,
    tick: Callable[[int], None],
) -> Run:
    """Plain HMC with a unit metric in units of the prior, from draws of the reference.

    The recipe of TensorFlow Probability's tutorials: a fixed number of leapfrogs, the step size
    by dual averaging. Parameters are those of :func:`sample_split`.
    """
    key_z, key_run = jax.random.split(key)
    data, n_adapt = top.data, 2 * plan.window
    start = jax.random.normal(key_z, (plan.n_chains, *data.centre.shape), jnp.float32)
    z = _from_reference(data.prior, data.centre, reference, start)
    target = Target(data, data.prior, -data.centre)
    chains = begin(density, sampler, target, Tuning(_FIRST_LEAPFROG, n_adapt=n_adapt), z, key_run)
    chains, _ = run(density, sampler, target, chains, n_adapt, tick)
    chains, draws = run(density, sampler, target, chains, plan.n_draws, tick)
    _require_finite(draws)
    return Run(host(data.centre), draws, top.log_density)


def _thinned(points: np.ndarray) -> np.ndarray:
    """At most so many points, evenly spread, always the same number for the same run lengths."""
    chosen = np.linspace(0, len(points) - 1, min(_CURVATURE_POINTS, len(points)))
    return points[chosen.astype(int)]


@jax.jit
def _whitened(gaussian: Any, delta: jax.Array) -> jax.Array:
    return gaussian.whiten(delta)


@jax.jit
def _from_reference(prior: Any, centre: jax.Array, reference: Any, z: jax.Array) -> jax.Array:
    return prior.whiten(centre + reference.colour(z))


def _require_finite(draws: Draws) -> None:
    if not np.all(np.isfinite(draws.log_density)):
        raise FloatingPointError(
            "sampling left the finite numbers; scale the columns of X, lower prior_scale, or "
            "raise n_warmup"
        )
