"""Split and plain HMC against quadrature, and the properties that make them exact."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from skbayes_shard.gaussians import DenseGaussian, DiagonalGaussian
from skbayes_shard.inference import hmc
from skbayes_shard.inference.mode import Mode
from tests.inference.quartic import Quartic, exact

KEY = jax.random.PRNGKey(0)
CHAINS = 64


def no_tick(steps):
    """A progress bar that is not there."""


def sample(density, gaussian, *, sampler=None, origin=0.0, draws=400, adapt=100, step=0.4, key=KEY):
    """Warm up and sample from draws of the reference, with many chains."""
    data = density.data()
    target = hmc.Target(data, gaussian, jnp.full((1, density.n), origin, jnp.float32))
    sampler = sampler or hmc.Sampler()
    key_z, key = jax.random.split(key)
    z = jax.random.normal(key_z, (CHAINS, 1, density.n))
    chains = hmc.begin(density, sampler, target, hmc.Tuning(step, n_adapt=adapt), z, key)
    if adapt:
        chains, _ = hmc.run(density, sampler, target, chains, adapt, no_tick)
    return hmc.run(density, sampler, target, chains, draws, no_tick)[1]


def assert_moments(x, n, margin=0.01):
    """Means and standard deviations within 5 standard errors, taken from the spread of chains."""
    mean, sd, _ = exact(n)
    x = np.asarray(x, np.float64).reshape(len(x), -1, n)
    for found, right in ((x, mean), ((x - mean) ** 2, sd**2)):
        by_chain = found.mean(axis=1)
        error = by_chain.std(axis=0, ddof=1) / np.sqrt(len(x))
        assert np.all(error < 0.05)
        assert np.all(np.abs(by_chain.mean(axis=0) - right) < 5 * error + margin * right.max())


def reference(density, scale=1.0):
    """The Gaussian of the curvature averaged over the exact spread, with a wrong scale."""
    mean, sd, _ = exact(density.n)
    points = mean + sd * np.random.default_rng(0).normal(size=(200, 1, density.n))
    right = density.gaussian("dense", points.astype(np.float32), density.data())
    return DenseGaussian(scale * right.factor)


# ---------------------------------------------------------------- exactness


@pytest.mark.parametrize("n", [1, 2, 3])
def test_split_hmc(n):
    """Moments agree with quadrature, nothing diverges, and acceptance is what it was tuned to."""
    found = sample(Quartic(n), reference(Quartic(n)))
    assert found.delta.shape == (CHAINS, 400, 1, n)
    assert_moments(found.delta, n)
    assert found.diverging.sum() == 0
    assert 0.7 < found.accept_prob.mean() <= 1


@pytest.mark.parametrize(("scale", "origin"), [(3, 0.0), (1 / 3, 0.0), (1, 1.5), (3, -1.0)])
def test_exact_for_a_bad_reference(scale, origin):
    """A reference three times too wide, too narrow or in the wrong place costs time alone."""
    found = sample(Quartic(2), reference(Quartic(2), scale), origin=origin)
    assert_moments(found.delta, 2)


@pytest.mark.parametrize("sampler", [hmc.Sampler("split", 5), hmc.Sampler("leapfrog", 8)], ids=repr)
def test_fixed_numbers_of_steps(sampler):
    """Trajectories of so many steps, rotations or plain leapfrogs, are as exact."""
    found = sample(Quartic(2), reference(Quartic(2)), sampler=sampler)
    assert_moments(found.delta, 2)
    assert np.all(found.n_leapfrog == sampler.n_leapfrog)


@pytest.mark.parametrize("target_accept", [0.6, 0.9])
@pytest.mark.parametrize(("kind", "n_leapfrog"), [("split", None), ("leapfrog", 8)])
def test_step_size_is_tuned(kind, n_leapfrog, target_accept):
    """Where the reference is bad, warm-up finds the step that is accepted as often as asked."""
    sampler = hmc.Sampler(kind, n_leapfrog, target_accept)
    found = sample(Quartic(2), reference(Quartic(2), 3.0), sampler=sampler, adapt=200, draws=100)
    assert abs(found.accept_prob.mean() - target_accept) < 0.1


def test_log_density_of_draws():
    """The values returned are those of the draws, as differences from the centre."""
    density = Quartic(2)
    found = sample(density, reference(density), draws=60)
    x = found.delta.astype(np.float64)
    right = density.value(x.reshape(-1, 1, 2), np) - density.value(np.zeros((1, 2)), np)
    np.testing.assert_allclose(found.log_density.ravel(), right, rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- the integrator


def quartic_potential(z):
    """``R`` of the quartic density with a unit reference."""
    density = Quartic(3)
    value, grad = density.value_and_grad(z, density.data())
    return -value - 0.5 * jnp.sum(z**2, axis=(1, 2)), -grad - z


def integrate(z, p, step, n, potential=quartic_potential):
    kernel = hmc.SplitHamiltonianMonteCarlo(potential, step)
    return kernel._integrate(z, p, kernel.bootstrap_results(z), jnp.float32(step), n)


@pytest.fixture
def phase():
    z, p = np.random.default_rng(1).normal(size=(2, 6, 1, 3)).astype(np.float32)
    return jnp.asarray(z), jnp.asarray(p)


@pytest.mark.parametrize("n", [1, 4, 20])
def test_integrator_is_reversible(phase, n):
    """With its momentum negated, a trajectory leads back to where it came from."""
    z, p, potential, slope = integrate(*phase, 0.2, n)
    np.testing.assert_allclose(potential, quartic_potential(z)[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(slope, quartic_potential(z)[1], rtol=1e-5, atol=1e-5)
    z_back, p_back, _, _ = integrate(z, -p, 0.2, n)
    np.testing.assert_allclose(z_back, phase[0], atol=1e-4)
    np.testing.assert_allclose(p_back, -phase[1], atol=1e-4)
    assert np.abs(z - phase[0]).max() > 0.1


def test_integrator_preserves_volume(phase):
    """The Jacobian of a trajectory has determinant one."""

    def flow(state):
        z, p, _, _ = integrate(*state.reshape(2, 1, 1, 3), 0.3, jnp.int32(4))
        return jnp.concatenate([z.ravel(), p.ravel()])

    jacobian = jax.jacfwd(flow)(jnp.stack([phase[0][0], phase[1][0]]).ravel())
    assert abs(np.linalg.det(np.asarray(jacobian, np.float64)) - 1) < 1e-3


def test_energy_error_is_of_second_order(phase):
    """Half the step over the same time leaves a quarter of the energy error."""

    def energy(z, p):
        return quartic_potential(z)[0] + 0.5 * jnp.sum(z**2 + p**2, axis=(1, 2))

    errors = [
        np.abs(energy(*integrate(*phase, 0.8 / n, n)[:2]) - energy(*phase)).mean() for n in (8, 16)
    ]
    assert 3 < errors[0] / errors[1] < 5


def test_gaussian_is_followed_exactly(phase):
    """With no residual potential a trajectory is a rotation, and everything is accepted."""

    def flat(z):
        return jnp.zeros(len(z)), jnp.zeros_like(z)

    z, p, _, _ = integrate(*phase, 0.5, 3, flat)
    np.testing.assert_allclose(z, phase[0] * np.cos(1.5) + phase[1] * np.sin(1.5), atol=1e-5)
    np.testing.assert_allclose(p, phase[1] * np.cos(1.5) - phase[0] * np.sin(1.5), atol=1e-5)
    kernel = hmc.SplitHamiltonianMonteCarlo(flat, 0.8)
    _, results = kernel.one_step(phase[0], kernel.bootstrap_results(phase[0]), KEY)
    assert kernel.is_calibrated
    assert np.all(results.is_accepted)
    assert np.abs(results.log_accept_ratio).max() < 1e-5
    # A quarter turn, jittered by a fifth, in steps of at most 0.8.
    assert 0.8 * math.pi / 2 <= results.used_step * results.n_leapfrog <= 1.2 * math.pi / 2


@pytest.mark.parametrize("n", [1, 4, 10])
def test_fixed_number_of_steps_makes_no_full_turn(n):
    """Whatever the step size, the angle is that of the trajectory at most, jittered."""
    kernel = hmc.SplitHamiltonianMonteCarlo(None, 2.2, n_leapfrog=n)
    results = hmc.SplitHamiltonianMonteCarlo(
        lambda z: (jnp.zeros(len(z)), jnp.zeros_like(z)), 2.2, n_leapfrog=n
    ).bootstrap_results(jnp.zeros((2, 1, 1)))
    step, found = kernel._trajectory(KEY, results)
    assert found == n
    assert 0.8 * math.pi / 2 <= step * n <= 1.2 * math.pi / 2


# ---------------------------------------------------------------- accept and reject


def test_nan_energies_are_rejected():
    """Where the density is NaN no chain goes; what is left is a truncated standard normal."""

    def walled(z):
        inside = jnp.abs(z[:, 0, 0]) < 1
        return jnp.where(inside, 0.0, jnp.nan), jnp.where(inside[:, None, None], 0.0, jnp.nan) * z

    kernel = hmc.SplitHamiltonianMonteCarlo(walled, 0.8)

    def step(state, key):
        state = kernel.one_step(*state, key)
        return state, (state[0][:, 0, 0], state[1].is_accepted)

    start = jnp.zeros((256, 1, 1))
    keys = jax.random.split(KEY, 400)
    _, (z, accepted) = jax.lax.scan(step, (start, kernel.bootstrap_results(start)), keys)
    assert np.abs(z).max() < 1
    assert 0.2 < accepted.mean() < 0.9
    variance = np.asarray(z[50:]).var(axis=0)
    density = math.exp(-0.5) / math.sqrt(2 * math.pi) / math.erf(1 / math.sqrt(2))
    error = variance.std() / np.sqrt(len(variance))
    # A variance about each chain's own mean is short of the mean's variance, below a hundredth.
    assert abs(variance.mean() - (1 - 2 * density)) < 5 * error + 0.01


def test_chains_accept_independently():
    """Two chains accept at different steps, and each about as often."""
    found = sample(Quartic(2), reference(Quartic(2), 3.0), draws=300, adapt=100)
    moved = np.any(np.diff(found.delta, axis=1) != 0, axis=(2, 3))
    same = (moved[:, None] == moved).mean(axis=2)
    assert same[~np.eye(CHAINS, dtype=bool)].max() < 0.99
    assert 0.3 < moved.mean() < 0.99


def test_divergences_are_counted():
    """Steps far beyond the curvature diverge and are rejected; tuned ones do not diverge."""
    narrow = DiagonalGaussian(jnp.full((1, 2), 100.0, jnp.float32))
    wild = sample(Quartic(2), narrow, adapt=0, step=0.8, draws=50)
    assert wild.diverging.mean() > 0.9
    assert np.all(np.isfinite(wild.delta))
    tuned = sample(Quartic(2), reference(Quartic(2)), draws=50)
    assert tuned.diverging.sum() == 0


def test_seed_decides_the_draws():
    """The same key gives the same draws to the bit, another key other ones."""
    density = Quartic(2)
    first, again, other = (
        sample(density, reference(density), draws=60, key=jax.random.PRNGKey(seed))
        for seed in (0, 0, 1)
    )
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first.delta, other.delta)


@pytest.mark.parametrize("n_draws", [1, 49, 50, 51, 120])
def test_any_number_of_draws(n_draws):
    """As many draws as asked for, however many a dispatch makes; the bar sees each once."""
    density, ticks = Quartic(1), []
    target = hmc.Target(density.data(), reference(density), jnp.zeros((1, 1)))
    chains = hmc.begin(density, hmc.Sampler(), target, hmc.Tuning(0.4), jnp.zeros((3, 1, 1)), KEY)
    _, draws = hmc.run(density, hmc.Sampler(), target, chains, n_draws, ticks.append)
    assert [len(a) for a in draws] == [3] * 4 + [n_draws] * 2
    assert draws.log_density.shape == (3, n_draws)
    assert sum(ticks) == n_draws


# ---------------------------------------------------------------- whole fits


@pytest.mark.parametrize("kind", ["split", "leapfrog"])
def test_whole_fit(kind):
    """From a mode to draws: moments, absolute log densities and counts are right."""
    density, plan, ticks = Quartic(3), hmc.Plan(CHAINS, 101, 300), []
    data, top_value = density.recentred(np.full((1, 3), 0.3, np.float32), density.data())
    gaussian = density.gaussian("dense", np.zeros((1, 1, 3), np.float32), data)
    top = Mode(data, top_value, 1, 0.0)
    if kind == "split":
        run = hmc.sample_split(
            density, hmc.Sampler(), plan, "dense", top, gaussian, KEY, ticks.append
        )
    else:
        run = hmc.sample_leapfrog(
            density, hmc.Sampler("leapfrog", 10), plan, top, gaussian, KEY, ticks.append
        )
    x = run.centre + run.draws.delta
    assert x.shape == (CHAINS, 300, 1, 3)
    assert_moments(x, 3)
    right = density.value(x.astype(np.float64), np)
    np.testing.assert_allclose(run.log_density + run.draws.log_density, right, atol=1e-3)
    assert sum(ticks) == 402


def test_densities_that_are_not_finite_raise():
    """A density that is NaN from the start is an error, not a frozen chain."""

    class Broken(Quartic):
        def value_and_grad(self, delta, data):
            value, grad = super().value_and_grad(delta, data)
            return value * jnp.nan, grad

    density = Broken(1)
    top = Mode(density.data(), 0.0, 1, 0.0)
    with pytest.raises(FloatingPointError, match="finite"):
        hmc.sample_split(
            density, hmc.Sampler(), hmc.Plan(2, 10, 10), "dense", top, reference(Quartic(1)), KEY,
            no_tick,
        )  # fmt: skip
