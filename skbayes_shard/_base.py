"""The road that every fit takes, and what all estimators share.

encode (host) -> lay out (host) -> place (devices) -> infer (engine) -> publish (host).

A front door encodes, lays out and places, then calls :meth:`BayesEstimator._infer` with its
density, and publishes what comes back. See ``docs/adding_an_estimator.md``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, ClassVar

import jax
import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from skbayes_shard._posterior import diagnostics, spread_evenly
from skbayes_shard._progress import progress
from skbayes_shard._sklearn_compat import Count, Interval, StrOptions
from skbayes_shard.gaussians import coloured
from skbayes_shard.inference import structured, svi
from skbayes_shard.inference.mode import Mode, find_mode
from skbayes_shard.models.prior import log_normal
from skbayes_shard.sharding import host

_MOST_R_HAT = 1.01
_LEAST_ESS_PER_CHAIN = 50
_COUNT = Count()
_MODE_TOL = 0.01
_MODE_MAX_ITER = 500
# Nearly separable classes under a wide prior take most: iris at prior_scale=100 takes 60.
_STRUCTURED_MAX_ITER = 200
_LEAST_ACCEPTANCE = 0.3
_MOST_MEAN_ERROR = 0.1
_BATCHED = {("svi", "mean_field"), ("svi", "low_rank")}


@dataclass
class Model:
    """What a front door tells the road about its model.

    Parameters
    ----------
    density : hashable
        As in :mod:`skbayes_shard.inference`.
    spec : callable
        The NumPyro model, called with (density, data, batch).
    form, quick_form : str
        Forms of the reference Gaussian, and of the one that preconditions the climb to the mode.
    n_batches : int
        Mini-batches on each device.
    n_particles : int
        Nodes in each mean of the structured fit that cost little on these data.
    split, join : callable
        From one array (in the coordinates of the spec) to its sample sites by name, and back.
    real : ndarray of bool
        Along the last axis of the coordinates: which are not there for padding only. Those that
        are keep a standard normal prior.
    spread : callable
        From the mode and variances to mean and standard deviations in the spec's coordinates.
    """

    density: Any
    spec: Callable[..., None]
    form: str
    quick_form: str
    n_batches: int
    n_particles: int
    split: Callable[[np.ndarray], dict[str, np.ndarray]]
    join: Callable[[dict[str, np.ndarray]], np.ndarray]
    real: np.ndarray
    spread: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass
class Inference:
    """What an engine leaves: draws (chains, draws, ...) in the model's coordinates, and more.

    ``approximation`` is the variational mean and Gaussian, from which more can be drawn.
    """

    draws: np.ndarray
    stats: dict[str, Any]
    n_iter: int
    log_density: np.ndarray | None = None
    approximation: tuple[np.ndarray, Any] | None = None
    complaints: list[str] = field(default_factory=list)


class BayesEstimator(BaseEstimator):
    """Base of the estimators: engine dispatch, convergence warnings, posterior access."""

    _parameter_constraints: ClassVar[dict] = {
        "method": [StrOptions({"hmc", "svi"})],
        "sampler": [StrOptions({"split", "leapfrog"})],
        "n_leapfrog": [_COUNT, None],
        "n_chains": [_COUNT],
        "n_warmup": [_COUNT],
        "n_draws": [_COUNT],
        "guide": [StrOptions({"structured", "mean_field", "low_rank"})],
        "max_iter": [_COUNT, None],
        "tol": [Interval(Real, 0, None, closed="neither"), None],
        "learning_rate": [Interval(Real, 0, None, closed="neither"), None],
        "num_particles": [_COUNT, None],
        "batch_size": [_COUNT, None],
        "devices": [None, Integral, "array-like"],
        "precision": [StrOptions({"float32", "tensorfloat32", "bfloat16"})],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    # ------------------------------------------------------------ the road

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Leave the object unfitted if a fit fails half way."""
        try:
            yield
        except BaseException:
            for name in [n for n in vars(self) if n.endswith("_") and not n.startswith("__")]:
                delattr(self, name)
            raise

    def _check_engine(self) -> None:
        """Refuse combinations of parameters that would do nothing, before anything is compiled."""
        if self.method == "hmc":
            from skbayes_shard.inference import hmc  # noqa: F401  says what to install
        if self.batch_size is not None and (self.method, self.guide) not in _BATCHED:
            raise ValueError(
                f"batch_size={self.batch_size} needs method='svi' with guide='mean_field' or "
                f"'low_rank'; got method={self.method!r}, guide={self.guide!r}. Set "
                "batch_size=None."
            )

    def _infer(self, model: Model, data: Any, rng: np.random.RandomState) -> Inference:
        """Climb to the mode and run the engine; warn if it has not converged."""
        key = jax.random.PRNGKey(rng.randint(2**31 - 1))
        start = np.zeros((1, *data.centre.shape), np.float32)
        quick = model.density.gaussian(model.quick_form, start, data)
        hmc = self.method == "hmc"
        max_iter = (self.max_iter if hmc else None) or _MODE_MAX_ITER
        tol = (self.tol if hmc else None) or _MODE_TOL
        top = find_mode(model.density, data, quick, max_iter, tol)
        if hmc:
            result = self._sample(model, top, start, key)
        elif self.guide == "structured":
            result = self._fit_structured(model, top, key)
        else:
            result = self._fit_guide(model, top, start, key)
        for complaint in result.complaints:
            warnings.warn(complaint, ConvergenceWarning, stacklevel=4)
        return result

    def _sample(self, model: Model, top: Mode, start: np.ndarray, key: jax.Array) -> Inference:
        from skbayes_shard.inference import hmc

        reference = model.density.gaussian(model.form, start, top.data)
        plan = hmc.Plan(self.n_chains, self.n_warmup, self.n_draws)
        with progress(self.verbose, self.n_warmup + self.n_draws, "hmc") as tick:
            if self.sampler == "split":
                sampler = hmc.Sampler("split", self.n_leapfrog)
                run = hmc.sample_split(
                    model.density, sampler, plan, model.form, top, reference, key, tick
                )
            else:
                sampler = hmc.Sampler("leapfrog", self.n_leapfrog or 100)
                run = hmc.sample_leapfrog(model.density, sampler, plan, top, reference, key, tick)
        draws, beta = run.draws, run.centre + run.draws.delta
        value = draws.log_density.astype(np.float64) + run.log_density
        value -= log_normal(beta[..., ~model.real], 1.0)
        stats = {
            "step_size": float(draws.step_size.mean()),
            "accept_prob": draws.accept_prob.mean(axis=1),
            "n_gradients": draws.n_leapfrog,
            "gradients_per_draw": float(draws.n_leapfrog.mean()),
            "diverging": draws.diverging.sum(axis=1),
            "log_density": value,
        }
        complaints = _complaints(stats, draws.delta[..., model.real])
        return Inference(beta, stats, top.n_iter, value, complaints=complaints)

    def _fit_structured(self, model: Model, top: Mode, key: jax.Array) -> Inference:
        key_fit, key_draw = jax.random.split(key)
        settings = structured.Settings(
            model.form,
            self.num_particles or model.n_particles,
            self.max_iter or _STRUCTURED_MAX_ITER,
            self.tol or 0.01,
            self.learning_rate or 1.0,
        )
        with progress(self.verbose, settings.max_iter, "svi") as tick:
            fit = structured.fit_structured(model.density, settings, top, key_fit, tick)
        approximation = host((fit.data.centre, fit.gaussian))
        result = self._from_gaussian(approximation, fit, key_draw, settings.max_iter)
        result.stats["mean_error"] = fit.error
        if fit.error > _MOST_MEAN_ERROR:
            result.complaints.append(
                f"the Monte Carlo error of the svi mean is {fit.error:.2f} posterior standard "
                f"deviations, above {_MOST_MEAN_ERROR}. Raise num_particles, which was "
                f"{settings.n_particles}."
            )
        return result

    def _fit_guide(self, model: Model, top: Mode, start: np.ndarray, key: jax.Array) -> Inference:
        key_fit, key_draw = jax.random.split(key)
        quick = model.density.gaussian("diagonal", start, top.data)
        mean, sd = model.spread(*host((top.data.centre, quick.variance())))
        guide = svi.Guide(self.guide, self.num_particles or 1, self.batch_size is not None)
        settings = svi.Settings(
            model.n_batches, self.max_iter or 5000, self.tol, self.learning_rate or 0.02
        )
        with progress(self.verbose, settings.max_iter, "svi") as tick:
            fit = svi.fit_guide(
                model.density, model.spec, guide, settings, top.data,
                model.split(mean), model.split(sd), key_fit, tick,
            )  # fmt: skip
        # NumPyro's ELBO has the prior whole and the likelihood less that at the mode.
        prior = top.data.prior.log_density(host(top.data.centre))
        fit = fit._replace(elbo=fit.elbo + top.log_density - prior)
        approximation = svi.approximation(guide, fit.params, model.split(mean), model.join)
        return self._from_gaussian(approximation, fit, key_draw, settings.max_iter)

    def _from_gaussian(
        self, approximation: tuple[np.ndarray, Any], fit: Any, key: jax.Array, max_iter: int
    ) -> Inference:
        complaints = []
        if not fit.converged:
            complaints.append(
                f"svi did not converge in {max_iter} iterations: the ELBO or the posterior scales "
                "still move. Raise max_iter, or change learning_rate or tol."
            )
        draws = draw(approximation, key, self.n_draws)[None]
        stats = {"elbo": fit.elbo}
        return Inference(draws, stats, fit.n_iter, None, approximation, complaints)

    # ------------------------------------------------------------ what all share

    def _chosen_draws(self, n_draws: int | None, random_state: Any) -> dict[str, np.ndarray]:
        """Return kept draws by parameter, or fresh ones from a variational posterior."""
        check_is_fitted(self, "posterior_")
        if n_draws is not None and (not isinstance(n_draws, Integral) or n_draws < 1):
            raise ValueError(f"n_draws must be a positive integer or None; got {n_draws!r}.")
        kept = {name: self.posterior_.flat(name) for name in self.posterior_.draws}
        total = len(next(iter(kept.values())))
        rng = check_random_state(random_state)
        if self.posterior_.independent and n_draws is not None:
            return self._fresh_draws(n_draws, rng)
        if n_draws is None:
            return kept
        if n_draws > total:
            raise ValueError(
                f"n_draws={n_draws}, but the fit kept {total} draws. Ask for fewer, or fit with "
                "more n_draws or n_chains."
            )
        chosen = rng.permutation(total)[:n_draws]
        return {name: value[chosen] for name, value in kept.items()}

    def sample_posterior(
        self, n_draws: int | None = None, random_state: Any = None
    ) -> dict[str, np.ndarray]:
        """Return draws from the posterior, by parameter.

        Parameters
        ----------
        n_draws : int, default=None
            Number of draws. None returns those kept by ``fit``. A variational posterior can be
            asked for any number, an HMC fit for at most the number kept; these are then chosen
            at random.
        random_state : int, RandomState instance or None, default=None
            Chooses the draws.

        Returns
        -------
        dict of str to ndarray
            Arrays of shape (n_draws, ...).

        Raises
        ------
        ValueError
            If an HMC fit is asked for more draws than it kept.
        """
        return self._chosen_draws(n_draws, random_state)

    def summary(self) -> pd.DataFrame:
        """Tabulate the posterior of each parameter.

        Returns
        -------
        DataFrame
            Columns ``mean``, ``sd``, ``5%``, ``95%``, ``ess_bulk``, ``ess_tail``, ``r_hat``;
            see :meth:`skbayes_shard.Posterior.summary`.
        """
        check_is_fitted(self, "posterior_")
        return self.posterior_.summary()


def draw(approximation: tuple[np.ndarray, Any], key: jax.Array, n: int) -> np.ndarray:
    """Draw from a variational posterior, on the host."""
    mean, gaussian = approximation
    z = jax.random.normal(key, (n, *mean.shape), np.float32)
    return host(mean + coloured(gaussian, z))


def _complaints(stats: dict[str, Any], delta: np.ndarray) -> list[str]:
    """Say what has not converged, and what to turn."""
    scalars = delta.reshape(*delta.shape[:2], -1)
    trace = stats["log_density"][:, :, None]
    found = diagnostics(np.concatenate([spread_evenly(scalars), trace], axis=2))
    least = _LEAST_ESS_PER_CHAIN * len(delta)
    said = []
    if stats["diverging"].sum() > 0:
        said.append(f"{stats['diverging'].sum()} divergent trajectories (by chain: "
                    f"{stats['diverging'].tolist()})")  # fmt: skip
    if stats["accept_prob"].min() < _LEAST_ACCEPTANCE:
        said.append(f"acceptance of {stats['accept_prob'].min():.2f}")
    few = len(delta) * delta.shape[1] < 8 or delta.shape[1] < 4
    if few:
        said.append(f"n_draws={delta.shape[1]} is too few to judge")
    elif not np.all(found["r_hat"] <= _MOST_R_HAT):
        worst = _where(np.argmax(found["r_hat"]), found)
        said.append(f"R-hat up to {np.max(found['r_hat']):.4g} ({worst}), above {_MOST_R_HAT}")
    if not few and not np.all(found["ess_bulk"] >= least):
        worst = _where(np.argmin(found["ess_bulk"]), found)
        said.append(f"bulk ESS down to {np.min(found['ess_bulk']):.0f} ({worst}), below {least}")
    if not said:
        return []
    return [f"hmc has not converged: {'; '.join(said)}. Raise n_draws, n_warmup or n_chains."]


def _where(index: np.intp, found: dict[str, np.ndarray]) -> str:
    """Say which of the quantities that are judged is meant; the log density comes last."""
    last = len(found["r_hat"]) - 1
    return "the log density" if index == last else f"one of {last} coefficients"
