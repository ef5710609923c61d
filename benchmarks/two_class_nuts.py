"""Two-class logistic regression against NumPyro's NUTS: German credit and wells.

The reference is a plain transcription of the model that shares no code with the package.
Required: every mean within 0.1 posterior standard deviations, every standard deviation within
10 %. Seconds are those of a second run of the same program, so compilation is apart; both ours
and NUTS include warm-up.
"""

from __future__ import annotations

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS

from benchmarks import common
from skbayes_shard import BayesianLogisticRegression

_MEAN_LIMIT, _SD_LIMIT = 0.1, 0.1
# So many that Monte Carlo noise does not count: it moves a standard deviation by 0.5 %.
_SVI_DRAWS = 20_000


def _model(X: Any, y: Any, scale: float, intercept_scale: float) -> None:
    intercept = numpyro.sample("intercept", dist.Normal(0.0, intercept_scale))
    coef = numpyro.sample("coef", dist.Normal(0.0, scale).expand([X.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=intercept + X @ coef), obs=y)


def _nuts(
    args: argparse.Namespace, X: np.ndarray, y: np.ndarray, scale: float
) -> tuple[np.ndarray, common.Timed]:
    """Draws (chains, draws, parameters), coefficients first."""

    # As one program, because every call of MCMC.run compiles anew.
    @jax.jit
    def run(key: Any, X: Any, y: Any) -> Any:
        sampler = MCMC(
            NUTS(_model),
            num_warmup=args.n_warmup,
            num_samples=args.n_draws,
            num_chains=args.n_chains,
            chain_method=args.chain_method,
            progress_bar=False,
        )
        sampler.run(key, X, y, scale, scale)
        found = sampler.get_samples(group_by_chain=True)
        return jnp.concatenate([found["coef"], found["intercept"][..., None]], axis=2)

    given = (jnp.asarray(X, jnp.float32), jnp.asarray(y))
    _, done = (common.timed(lambda i=i: run(jax.random.PRNGKey(i), *given)) for i in (0, 1))
    return np.asarray(done.value), done


def _fit(X: np.ndarray, y: np.ndarray, **parameters: Any) -> common.Timed:
    """Fit twice; the second is timed."""
    models = [BayesianLogisticRegression(random_state=seed, **parameters) for seed in (0, 1)]
    return [common.timed(lambda model=model: model.fit(X, y)) for model in models][1]


def _row(
    name: str,
    found: tuple[np.ndarray, np.ndarray],
    reference: tuple[np.ndarray, np.ndarray],
    done: common.Timed,
    ess: np.ndarray | None,
) -> dict[str, Any]:
    mean = np.max(np.abs(found[0] - reference[0]) / reference[1])
    sd = np.max(np.abs(found[1] / reference[1] - 1))
    return {
        "fit": name,
        "worst mean, sd": mean,
        "worst sd - 1": sd,
        "within": bool(mean <= _MEAN_LIMIT and sd <= _SD_LIMIT),
        "seconds": done.seconds,
        "ESS min": np.nan if ess is None else ess.min(),
        "ESS/s min": np.nan if ess is None else ess.min() / done.seconds,
        "ESS/s median": np.nan if ess is None else np.median(ess) / done.seconds,
        "XLA seconds": done.compile_seconds,
        "warned": bool(done.complaints),
    }


def compare(
    args: argparse.Namespace, name: str, X: np.ndarray, y: np.ndarray, scale: float
) -> dict[str, Any]:
    """Compare on one data set."""
    reference, done = _nuts(args, X, y, scale)
    mean, sd = reference.mean(axis=(0, 1)), reference.std(axis=(0, 1), ddof=1)
    nuts_ess = common.bulk_ess(reference)
    rows = [_row("NumPyro NUTS", (mean, sd), (mean, sd), done, nuts_ess)]
    prior = {"prior_scale": scale, "intercept_prior_scale": scale}
    plan = {"n_chains": args.n_chains, "n_warmup": args.hmc_warmup, "n_draws": args.n_draws}
    hmc = _fit(X, y, method="hmc", **prior, **plan)
    posterior = hmc.value.posterior_
    draws = [posterior.draws["coef"][:, :, 0], posterior.draws["intercept"]]
    ess = common.bulk_ess(np.concatenate(draws, axis=2))
    rows.append(_row("hmc", common.moments(hmc.value), (mean, sd), hmc, ess))
    svi = _fit(X, y, method="svi", guide="structured", **prior)
    rows.append(
        _row("svi structured", common.moments(svi.value, _SVI_DRAWS), (mean, sd), svi, None)
    )
    common.table(f"{name}: {X.shape[0]} rows, {X.shape[1]} columns, prior scale {scale:g}", rows)
    ratios = {
        "ESS/s min, hmc over NUTS": rows[1]["ESS/s min"] / rows[0]["ESS/s min"],
        "ESS/s median, hmc over NUTS": rows[1]["ESS/s median"] / rows[0]["ESS/s median"],
        "seconds, NUTS over hmc": done.seconds / hmc.seconds,
        "seconds, NUTS over svi": done.seconds / svi.seconds,
        "NUTS R-hat max": common.rank_r_hat(reference).max(),
        "hmc gradients per draw": hmc.value.sampler_stats_["gradients_per_draw"],
        "hmc acceptance": hmc.value.sampler_stats_["accept_prob"].mean(),
    }
    common.table(f"{name}: ratios", [{"what": k, "value": v} for k, v in ratios.items()])
    return {"fits": rows, "ratios": ratios, "complaints": hmc.complaints + svi.complaints}


def main() -> None:
    """Compare on every data set that is there."""
    made = common.parser(__doc__)
    made.add_argument("--n-draws", type=int, default=2000)
    made.add_argument("--n-warmup", type=int, default=1000, help="of NUTS")
    made.add_argument("--hmc-warmup", type=int, default=200, help="ours")
    made.add_argument("--n-chains", type=int, default=4)
    made.add_argument("--chain-method", choices=["vectorized", "sequential"], default="vectorized")
    args = common.parse(made)
    if args.quick:
        args.n_draws, args.n_warmup = 200, 200
    result = {}
    for name, load, scale in (
        ("german credit", common.german_credit, 1.0),
        ("wells", common.wells, 10.0),
    ):
        loaded = common.load_or_skip(load)
        if loaded is not None:
            result[name] = compare(args, name, *loaded, scale)
    if result:
        common.save("two_class_nuts", args, result)


if __name__ == "__main__":
    main()
