"""The peer of ``mnist_hmc``: sharded HMC as TensorFlow Probability's notebook has it.

"Distributed Inference with JAX", on current JAX: a ``JointDistributionCoroutine`` whose
likelihood is ``Sharded`` over devices, plain HMC with a unit metric and 100 leapfrogs, step size
by dual averaging. Three things are changed, all in its favour: chains start where they are told
(so nothing is burnt in), its first step size is near the final one, and the trace does not
evaluate the density again.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tensorflow_probability.substrates import jax as tfp

_AXIS = "data"
_AT_ONCE = 10
_Root = tfp.experimental.distribute.JointDistributionCoroutine.Root


class Recipe(NamedTuple):
    """How the peer samples."""

    n_leapfrogs: int = 100
    n_adapt: int = 60
    n_draws: int = 60
    step_size: float = 1e-3
    most_seconds: float = np.inf


class PeerRun(NamedTuple):
    """Kept draws of the peer, and what they took.

    ``coef`` has shape (chains, draws, classes, columns), ``intercept`` (chains, draws, classes);
    ``accept_prob`` and ``step_size`` are means over kept draws.
    """

    coef: np.ndarray
    intercept: np.ndarray
    log_density: np.ndarray
    accept_prob: float
    step_size: float
    seconds: float
    seconds_per_gradient: float
    compile_seconds: float


def _log_density(images: jax.Array, labels: jax.Array, n_classes: int) -> Any:
    tfd, distribute = tfp.distributions, tfp.experimental.distribute

    def model() -> Any:
        w = yield _Root(tfd.Sample(tfd.Normal(0.0, 1.0), [images.shape[1], n_classes]))
        b = yield _Root(tfd.Sample(tfd.Normal(0.0, 1.0), [n_classes]))
        rows = tfd.Independent(tfd.Categorical(logits=images @ w + b), 1)
        yield distribute.Sharded(rows, shard_axis_name=_AXIS)

    joint = distribute.JointDistributionCoroutine(model)
    return lambda w, b: joint.log_prob((w, b, labels))


def _over_devices(mesh: Mesh, body: Any) -> Any:
    """Run ``body(state, images, labels)`` for every chain, with rows split over devices."""

    def local(state: Any, images: jax.Array, labels: jax.Array) -> Any:
        return jax.vmap(lambda s: body(s, images[0], labels[0]))(state)

    whole, split = PartitionSpec(), PartitionSpec(_AXIS)
    # TFP's Sharded brings gradients of its own for psum, which want check_vma=False.
    mapped = jax.shard_map(
        local, mesh=mesh, in_specs=(whole, split, split), out_specs=whole, check_vma=False
    )
    return jax.jit(mapped)


def place(X: np.ndarray, y: np.ndarray) -> tuple[Mesh, tuple[jax.Array, jax.Array]]:
    """Split rows over all devices; the recipe has no padding, so their number must divide."""
    mesh = Mesh(np.array(jax.devices()), (_AXIS,))
    if len(X) % mesh.size:
        raise ValueError(f"{len(X)} rows do not divide over {mesh.size} devices")
    split = NamedSharding(mesh, PartitionSpec(_AXIS))
    images = jax.device_put(X.reshape(mesh.size, -1, X.shape[1]), split)
    return mesh, (images, jax.device_put(y.reshape(mesh.size, -1), split))


def gradient(X: np.ndarray, y: np.ndarray, w: np.ndarray, b: np.ndarray) -> Any:
    """Log density and gradient of the recipe's model at (chains, ...) points, for a check."""
    mesh, data = place(X, y)

    def body(state: Any, images: jax.Array, labels: jax.Array) -> Any:
        density = _log_density(images, labels, b.shape[-1])
        return jax.value_and_grad(lambda s: density(*s))(state)

    return jax.tree.map(np.asarray, _over_devices(mesh, body)((w, b), *data))


def sample(X: np.ndarray, y: np.ndarray, recipe: Recipe, w: np.ndarray, b: np.ndarray) -> PeerRun:
    """Run the recipe from ``w`` (chains, columns, classes) and ``b`` (chains, classes)."""
    tfm = tfp.mcmc
    mesh, data = place(X, y)

    def kernel(images: jax.Array, labels: jax.Array) -> Any:
        density = _log_density(images, labels, b.shape[-1])
        hmc = tfm.HamiltonianMonteCarlo(density, np.float32(recipe.step_size), recipe.n_leapfrogs)
        return tfm.DualAveragingStepSizeAdaptation(
            hmc, recipe.n_adapt, target_accept_prob=np.float32(0.75)
        )

    def trace(state: Any, results: Any) -> Any:
        inner = results.inner_results
        accept = jax.numpy.exp(jax.numpy.minimum(inner.log_accept_ratio, 0.0))
        return state, inner.accepted_results.target_log_prob, accept, results.new_step_size

    def begin(state: Any, images: jax.Array, labels: jax.Array) -> Any:
        return kernel(images, labels).bootstrap_results(list(state))

    def advance(chain: Any, images: jax.Array, labels: jax.Array) -> Any:
        state, results, seed = chain
        seed, now = jax.random.split(seed)
        _, traced, results = tfm.sample_chain(
            _AT_ONCE, current_state=list(state), previous_kernel_results=results, seed=now,
            kernel=kernel(images, labels), trace_fn=trace, return_final_kernel_results=True,
        )  # fmt: skip
        state = tuple(part[-1] for part in traced[0])
        return (state, results, seed), traced

    state = (w.astype(np.float32), b.astype(np.float32))
    results = _over_devices(mesh, begin)(state, *data)
    chain = (state, results, jax.random.split(jax.random.PRNGKey(0), len(w)))
    start = time.perf_counter()
    program = _over_devices(mesh, advance).lower(chain, *data).compile()
    compiled = time.perf_counter() - start
    return _run(partial(_step, program, data), chain, recipe, compiled)


def _step(program: Any, data: Any, chain: Any) -> Any:
    chain, traced = program(chain, *data)
    return chain, jax.tree.map(np.asarray, traced)


def _run(step: Any, chain: Any, recipe: Recipe, compiled: float) -> PeerRun:
    """Adapt, then keep draws until there are enough or the time is up."""
    begun = time.perf_counter()
    for _ in range(-(-recipe.n_adapt // _AT_ONCE)):
        chain, _ = step(chain)
    start = now = time.perf_counter()
    parts: list[Any] = []
    while len(parts) * _AT_ONCE < recipe.n_draws:
        if parts and now - begun > recipe.most_seconds:
            break
        chain, part = step(chain)
        parts.append(part)
        now = time.perf_counter()
    state, log_density, accept, step_size = jax.tree.map(
        lambda *a: np.concatenate(a, axis=1), *parts
    )
    n_chains, n_kept = log_density.shape
    return PeerRun(
        coef=np.swapaxes(state[0], 2, 3),
        intercept=state[1],
        log_density=log_density,
        accept_prob=float(accept.mean()),
        step_size=float(step_size.mean()),
        seconds=now - start,
        seconds_per_gradient=(now - start) / (n_kept * recipe.n_leapfrogs * n_chains),
        compile_seconds=compiled,
    )
