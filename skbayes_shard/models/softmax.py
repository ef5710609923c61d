"""Softmax and logistic regression: the sharded log density, its gradient and its curvature.

Coefficients live in *contrast* coordinates ``beta`` of shape (n_free, width): one row for two
classes (class 0 is pinned at zero), and ``n_classes - 1`` orthonormal contrasts of the
classes for three or more. The shift common to all classes, which the likelihood does not see,
is independent of the contrasts under the symmetric prior and never enters the sampler.

Every density is a *difference* from a reference point, the centre, taken row by row: with
``d`` the change of a row's logits and ``p`` its probabilities at the centre, a row contributes
``d_y - log sum_k p_k exp(d_k)``. Totals of 1e6 never appear, so float32 is enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.sharding import Mesh

from skbayes_shard.models import softmax_cloud, softmax_curvature
from skbayes_shard.models.columns import Columns
from skbayes_shard.models.pivot import Pivot
from skbayes_shard.models.prior import Prior
from skbayes_shard.models.softmax_kernel import Rows, contrasts, sharded, shift_rows, sum_rows
from skbayes_shard.sharding import host, place_blocks, place_factor, replicate


class SoftmaxData(NamedTuple):
    """The data of one fit, as they travel into compiled programs.

    ``batch_scale`` is what a mini-batch's log likelihood is multiplied by: the number of batches,
    so that batches of unequal length average to all rows exactly.
    """

    rows: Rows
    prior: Prior
    centre: jax.Array
    batch_scale: jax.Array


@dataclass(frozen=True)
class Softmax:
    """The static part of the model; equal instances share compiled programs.

    Parameters
    ----------
    mesh : jax.sharding.Mesh
        Devices that hold the rows.
    n_classes : int
        Two gives logistic regression with one weight vector.
    precision : {"float32", "tensorfloat32", "bfloat16"}
        Of the two matrix products with the design.
    """

    mesh: Mesh
    n_classes: int
    precision: str = "float32"

    @property
    def n_free(self) -> int:
        """Number of contrasts."""
        return self.n_classes - 1

    def place(self, data: SoftmaxData) -> SoftmaxData:
        """Put the data on the mesh: rows split over devices, the rest on all of them."""
        rest = replicate(self.mesh, data._replace(rows=None))
        return rest._replace(rows=place_blocks(self.mesh, data.rows))

    def value_and_grad(self, delta: jax.Array, data: SoftmaxData) -> tuple[jax.Array, jax.Array]:
        """Return log density differences (m,) and gradients for displacements (m, free, width)."""
        value, grad = self._likelihood(delta, data, None)
        prior_value, prior_grad = data.prior.difference(delta, data.centre)
        return value + prior_value, grad + prior_grad

    def log_density(self, delta: jax.Array, data: SoftmaxData) -> jax.Array:
        """Return log density differences (m,), differentiable in ``delta``."""
        return self.log_likelihood(delta, data) + data.prior.difference(delta, data.centre)[0]

    def log_likelihood(self, delta: jax.Array, data: SoftmaxData, batch: Any = None) -> jax.Array:
        """Return the log likelihood difference (m,), differentiable in ``delta``.

        With ``batch``, of that mini-batch alone, scaled up to all rows.
        """
        return _differentiable(self, delta, data, batch)

    def recentred(self, delta: jax.Array, data: SoftmaxData) -> tuple[SoftmaxData, float]:
        """Move the centre by ``delta`` (free, width); return the log density there as well."""
        moved, by_block = _recentred(self, delta, data)
        # Programs are compiled for placements, not for shapes alone.
        moved = self.place(moved)
        prior = moved.prior.log_density(host(moved.centre))
        return moved, float(np.sum(host(by_block), dtype=np.float64) + prior)

    def gaussian(self, form: str, points: jax.Array, data: SoftmaxData) -> Any:
        """Return the Gaussian with the posterior's curvature averaged over ``points``."""
        cloud = softmax_cloud.Points(points)
        return place_factor(self.mesh, softmax_curvature.gaussian_at(self, form, cloud, data))

    def marginals(self, gaussian: Any, data: SoftmaxData, n_draws: int, seed: int) -> Any:
        """Find what a Gaussian says of each row, and fix the nodes at which rows are averaged."""
        return softmax_cloud.marginals(self, gaussian, data.rows, n_draws, seed)

    def expected(self, mean: jax.Array, q: Any, data: SoftmaxData) -> tuple[jax.Array, jax.Array]:
        """Return the log density difference expected under ``q``, and its gradient in ``mean``."""
        value, grad = softmax_cloud.expected(self, mean, q, data.rows)
        prior_value, prior_grad = data.prior.difference(mean, data.centre)
        spread = 0.5 * data.prior.expected_square(q.gaussian)
        return value + prior_value - spread, grad + prior_grad

    def expected_curvature(
        self, form: str, mean: jax.Array, q: Any, data: SoftmaxData, like: Any
    ) -> Any:
        """Return the curvature expected under ``q`` around ``mean``, in the basis of another."""
        cloud = softmax_cloud.UnderGaussian(mean, q.gaussian, q.nodes)
        data = data._replace(rows=data.rows._replace(spread=q.roots))
        return softmax_curvature.curvature_at(self, form, cloud, data, like)

    def gaussian_of(self, form: str, curvature: Any) -> Any:
        """Return the Gaussian with a curvature, placed."""
        return place_factor(self.mesh, softmax_curvature.gaussian_of(form, curvature))

    def _likelihood(
        self, delta: jax.Array, data: SoftmaxData, batch: Any
    ) -> tuple[jax.Array, jax.Array]:
        value, grad = sharded(self, partial(sum_rows, self))(delta, data.rows, batch)
        scale = 1.0 if batch is None else data.batch_scale
        return scale * value, scale * grad


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _differentiable(model: Softmax, delta: Any, data: SoftmaxData, batch: Any) -> jax.Array:
    return model._likelihood(delta, data, batch)[0]


def _forward(model: Softmax, delta: Any, data: SoftmaxData, batch: Any) -> Any:
    return model._likelihood(delta, data, batch)


def _backward(model: Softmax, grad: jax.Array, cotangent: jax.Array) -> Any:
    return cotangent[:, None, None] * grad, None, None


_differentiable.defvjp(_forward, _backward)


@partial(jax.jit, static_argnums=0)
def _recentred(
    model: Softmax, delta: jax.Array, data: SoftmaxData
) -> tuple[SoftmaxData, jax.Array]:
    """Move the centre by ``delta`` (free, width).

    Returns the data and the log likelihood at the new centre, block by block (so that the
    caller can add the parts in float64).
    """
    shift = sharded(model, partial(shift_rows, model), split=True)
    log_centre, value = shift(delta, data.rows, None)
    rows = data.rows._replace(log_centre=log_centre)
    return data._replace(rows=rows, centre=data.centre + delta), value


# ---------------------------------------------------------------- the NumPyro spec


def numpyro_model(model: Softmax, data: SoftmaxData, batch: Any = None) -> None:
    """Softmax regression as a NumPyro model, in scaled columns.

    ``coef`` has one row for each class (one row in all for two classes) and a prior on the
    columns as given; ``intercept`` is that of the centred columns, so its prior mean leans on
    the coefficients.
    """
    n_rows_of_coef = 1 if model.n_classes == 2 else model.n_classes
    prior = data.prior
    with numpyro.plate("class", n_rows_of_coef, dim=-1):
        coef = numpyro.sample("coef", dist.Normal(0.0, prior.scale[1:]).to_event(1))
        mean = jnp.dot(coef, prior.lean[1:], precision=jax.lax.Precision.HIGHEST)
        intercept = numpyro.sample("intercept", dist.Normal(mean, prior.scale[0]))
    beta = to_contrasts(model, jnp.concatenate([intercept[:, None], coef], axis=1))
    delta = (beta - data.centre)[None]
    numpyro.factor("rows", model.log_likelihood(delta, data, batch)[0])


def to_contrasts(model: Softmax, full: jax.Array) -> jax.Array:
    """Project rows for each class on the contrasts; two classes have their one row already."""
    if model.n_classes == 2:
        return full
    return jnp.dot(
        jnp.asarray(contrasts(model.n_classes).T, jnp.float32),
        full,
        precision=jax.lax.Precision.HIGHEST,
    )


def make_prior(
    columns: Columns,
    prior_scale: float,
    intercept_prior_scale: float,
    intercept: bool,
    pivot: Pivot | None = None,
) -> Prior:
    """Return the prior on columns as given, expressed in laid out columns, pivoted or not."""
    scale = columns.padded(columns.scale * prior_scale, 1.0, 1.0)
    lean = intercept * columns.padded(columns.shift / columns.scale, 0.0, 0.0)
    if intercept:
        scale[0] = intercept_prior_scale
    if pivot is not None:
        scale, lean = pivot.prior(scale)
    return Prior(scale.astype(np.float32), lean.astype(np.float32))
