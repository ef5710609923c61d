"""Variational posteriors against a long HMC run: digits (scaled and raw) and German credit.

Counted are coefficients of columns that vary, and intercepts: with a mean within 0.15 posterior
standard deviations, with a standard deviation within 15 %, and with both. The reference's own
Monte Carlo error is printed with it. ``one iteration`` is the structured guide with
``max_iter=1``: one step from Laplace's approximation, and the mean curvature there.
``laplace`` is Laplace's approximation itself, by Newton steps in float64, apart from the package.
Seconds are those of a second fit of the same program.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from benchmarks import common
from skbayes_shard import BayesianLogisticRegression

_LIMIT = 0.15
# So many that Monte Carlo noise does not count: it moves a standard deviation by 0.5 %.
_DRAWS = 20_000
_GUIDES = {
    "structured": {"guide": "structured"},
    "one iteration": {"guide": "structured", "max_iter": 1},
    "mean_field": {"guide": "mean_field"},
    "low_rank": {"guide": "low_rank"},
}


def laplace(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mode and standard deviations under priors N(0, 1): coefficients first, then intercepts."""
    classes = np.unique(y)
    X = np.column_stack([X, np.ones(len(X))]).astype(np.float64)
    free = len(classes) if len(classes) > 2 else 1
    observed = (y[:, None] == classes[-free:]).astype(float)
    beta = np.zeros((free, X.shape[1]))

    def parts(beta: np.ndarray) -> tuple[float, np.ndarray]:
        logits = X @ beta.T
        if free == 1:
            logits = np.column_stack([np.zeros(len(X)), logits])
        top = logits.max(axis=1, keepdims=True)
        e = np.exp(logits - top)
        total = np.sum(top) + np.sum(np.log(e.sum(axis=1)))
        p = (e / e.sum(axis=1, keepdims=True))[:, -free:]
        return np.sum(logits[:, -free:] * observed) - total - 0.5 * np.sum(beta**2), p

    for _ in range(100):
        value, p = parts(beta)
        slope = (observed - p).T @ X - beta
        weight = np.eye(free) * p[:, :, None] - p[:, :, None] * p[:, None, :]
        curvature = np.eye(beta.size).reshape(*beta.shape, *beta.shape)
        for a in range(free):
            for b in range(free):
                curvature[a, :, b] += X.T @ (weight[:, a, b, None] * X)
        curvature = curvature.reshape(beta.size, beta.size)
        step = np.linalg.solve(curvature, slope.ravel()).reshape(beta.shape)
        length = 1.0
        while parts(beta + length * step)[0] < value - 1e-9 and length > 1e-6:
            length /= 2
        beta = beta + length * step
        if slope.ravel() @ step.ravel() < 1e-10:
            break
    sd = np.sqrt(np.diagonal(np.linalg.inv(curvature))).reshape(beta.shape)
    return tuple(np.concatenate([a[:, :-1].ravel(), a[:, -1]]) for a in (beta, sd))


def _row(
    name: str,
    found: tuple[np.ndarray, np.ndarray],
    reference: tuple[np.ndarray, np.ndarray],
    done: common.Timed | None,
) -> dict[str, Any]:
    mean = np.abs(found[0] - reference[0]) / reference[1]
    sd = np.abs(found[1] / reference[1] - 1)
    return {
        "fit": name,
        "both within": np.mean((mean <= _LIMIT) & (sd <= _LIMIT)),
        "means within": np.mean(mean <= _LIMIT),
        "sds within": np.mean(sd <= _LIMIT),
        "mean, median": np.median(mean),
        "mean, worst": mean.max(),
        "sd, median": np.median(sd),
        "sd, worst": sd.max(),
        "sd ratio, median": np.median(found[1] / reference[1]),
        "seconds": np.nan if done is None else done.seconds,
        "iterations": "" if done is None else done.value.n_iter_,
        "warned": "" if done is None else bool(done.complaints),
    }


def _fit(X: np.ndarray, y: np.ndarray, twice: bool, **parameters: Any) -> common.Timed:
    """Fit, or fit twice and time the second."""
    models = [BayesianLogisticRegression(random_state=seed, **parameters) for seed in (0, 1)]
    times = [common.timed(lambda model=model: model.fit(X, y)) for model in models[: 1 + twice]]
    return times[-1]


def compare(args: argparse.Namespace, name: str, X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Compare all guides with HMC on one data set."""
    hmc = _fit(X, y, twice=False, method="hmc", n_draws=args.n_draws, n_warmup=args.n_warmup)
    n_rows = len(np.atleast_2d(hmc.value.coef_))
    varies = np.tile(np.ptp(X, axis=0) > 0, n_rows)
    varies = np.concatenate([varies, np.ones(n_rows, bool)])

    def chosen(moments: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        return moments[0][varies], moments[1][varies]

    reference = chosen(common.moments(hmc.value))
    posterior = hmc.value.posterior_
    draws = [posterior.draws[key] for key in ("coef", "intercept")]
    draws = [value.reshape(*value.shape[:2], -1) for value in draws]
    draws = np.concatenate(draws, axis=2)[:, :, varies]
    ess = common.bulk_ess(draws)
    stats = hmc.value.sampler_stats_
    check = {
        "seconds, compilation included": hmc.seconds,
        "ESS min": ess.min(),
        "ESS median": np.median(ess),
        "R-hat max": common.rank_r_hat(draws).max(),
        "Monte Carlo error of worst mean, in sd": ess.min() ** -0.5,
        "acceptance": stats["accept_prob"].mean(),
        "gradients per draw": stats["gradients_per_draw"],
        "complaints": hmc.complaints,
    }
    common.table(f"{name}: the hmc reference", [{"what": k, "value": v} for k, v in check.items()])
    rows, complaints = [], {}
    for label, guide in _GUIDES.items():
        quick = {"max_iter": 200} if args.quick and "max_iter" not in guide else {}
        done = _fit(X, y, twice=not args.quick, method="svi", **guide, **quick)
        rows.append(_row(label, chosen(common.moments(done.value, _DRAWS)), reference, done))
        complaints[label] = done.complaints
    rows.append(_row("laplace", chosen(laplace(X, y)), reference, None))
    common.table(f"{name}: svi against hmc, {varies.sum()} parameters", rows)
    return {"reference": check, "fits": rows, "complaints": complaints}


def main() -> None:
    """Compare on every data set that is there."""
    made = common.parser(__doc__)
    made.add_argument("--n-draws", type=int, default=2000, help="of each of 4 hmc chains")
    made.add_argument("--n-warmup", type=int, default=500, help="of hmc")
    args = common.parse(made)
    if args.quick:
        args.n_draws, args.n_warmup = 100, 100
    digits, label = load_digits(return_X_y=True)
    if args.quick:
        digits, label = digits[label < 3], label[label < 3]
    sets = {"digits / 16": (digits / 16, label), "digits, raw": (digits, label)}
    loaded = common.load_or_skip(common.german_credit)
    if loaded is not None:
        sets["german credit"] = loaded
    result = {name: compare(args, name, *data) for name, data in sets.items()}
    common.save("svi_accuracy", args, result)


if __name__ == "__main__":
    main()
