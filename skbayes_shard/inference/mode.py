"""The posterior mode, by L-BFGS in whitened coordinates."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.optimize import minimize

from skbayes_shard.gaussians import coloured
from skbayes_shard.sharding import host

_ROUNDS = 4
_MEMORY = 20
# Each round aims finer than it must: the coordinates are those of the curvature at the start,
# and where the posterior is wider a gradient of tol is more than tol away from the mode.
_MARGIN = 0.1


class Mode(NamedTuple):
    """The data with their centre at the mode, and how it was reached."""

    data: Any
    log_density: float
    n_iter: int
    slope: float


def find_mode(density: Any, data: Any, gaussian: Any, max_iter: int, tol: float) -> Mode:
    """Climb to the mode from the current centre.

    ``gaussian`` gives the coordinates: near the mode its standard deviations should be about
    those of the posterior. The climb ends when no whitened gradient exceeds ``tol``. It is
    restarted from its own end with the centre moved there, because the differences that float32
    resolves are differences from the centre (design of the densities).
    """
    shape = data.centre.shape
    n_iter, slope, value = 0, np.inf, -np.inf
    for _ in range(_ROUNDS):
        result = minimize(
            partial(_objective, density, data, gaussian, shape),
            np.zeros(int(np.prod(shape))),
            jac=True,
            method="L-BFGS-B",
            options={
                "maxiter": max(max_iter - n_iter, 1),
                "maxcor": _MEMORY,
                "ftol": 0.0,
                "gtol": _MARGIN * tol,
            },
        )
        n_iter += result.nit
        slope = float(np.max(np.abs(result.jac)))
        if not np.all(np.isfinite(result.x)) or not np.isfinite(result.fun):
            raise FloatingPointError(
                "the search for the posterior mode left the finite numbers; scale the columns "
                "of X or lower prior_scale"
            )
        step = host(coloured(gaussian, result.x.reshape(shape).astype(np.float32)))
        data, value = density.recentred(step, data)
        if slope <= tol or n_iter >= max_iter:
            break
    return Mode(data, value, max(n_iter, 1), slope)


def _objective(
    density: Any, data: Any, gaussian: Any, shape: tuple[int, ...], z: np.ndarray
) -> tuple[float, np.ndarray]:
    value, grad = _evaluate(density, data, gaussian, z.reshape(1, *shape).astype(np.float32))
    return -float(value[0]), -np.asarray(grad, np.float64).ravel()


@partial(jax.jit, static_argnums=0)
def _evaluate(density: Any, data: Any, gaussian: Any, z: jax.Array) -> Any:
    value, grad = density.value_and_grad(gaussian.colour(z), data)
    return value, gaussian.colour_transposed(grad)
