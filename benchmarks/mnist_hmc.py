"""Softmax regression on all of MNIST by HMC, against TensorFlow Probability's own recipe.

The peer (``benchmarks/_tfp_recipe.py``) runs in this process on the same devices, from one of
our posterior draws, so that it has nothing to burn in. It can afford few draws; its effective
sample sizes are therefore given three ways:

- ``estimate``: as everybody estimates them, noisy for short chains and too high for slow ones;
- ``jump bound``: a chain that satisfies detailed balance cannot be better than
  ``n (1 - r) / (1 + r)``, with the lag-one autocorrelation ``r`` from its mean squared jump and
  the variance of *our* posterior (the integrated autocorrelation is a convex function of the
  spectrum). This is the conservative figure;
- ``draws``: as if every draw were independent.

The worst of many noisy figures lies too low, so quote the medians. All rates are per second
after adaptation or warm-up, compilation apart, but ``fit``, which divides by the seconds of our
whole fit, compilation and warm-up included.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from typing import Any

import numpy as np
from sklearn.metrics import log_loss

from benchmarks import common
from skbayes_shard import BayesianLogisticRegression

_PROBE_ROWS = 200
_SINGLE_DRAWS = 100
_POOL = 4
_LEAST_R = -0.5


def _data(quick: bool) -> tuple[np.ndarray, ...]:
    X, y = common.mnist("train")
    X_test, y_test = common.mnist("t10k")
    if not quick:
        return X, y, X_test, y_test
    pooled = [
        part.reshape(-1, 28 // _POOL, _POOL, 28 // _POOL, _POOL).mean(axis=(2, 4)).reshape(n, -1)
        for part, n in ((X[:2000], 2000), (X_test[:1000], 1000))
    ]
    return pooled[0], y[:2000], pooled[1], y_test[:1000]


def _quantities(
    coef: np.ndarray, intercept: np.ndarray, rows: np.ndarray, labels: np.ndarray, ink: np.ndarray
) -> dict[str, np.ndarray]:
    """Scalars whose mixing is judged, from draws (chains, draws, classes, columns)."""
    logits = np.einsum("cdkp,np->cdnk", coef, rows, optimize=True) + intercept[:, :, None]
    logits -= logits.mean(axis=-1, keepdims=True)
    flat = (*coef.shape[:2], -1)
    # The shift common to all classes and pixels without ink are drawn from the prior, draw by
    # draw; what is left after them is what the chains move.
    moved = coef[..., ink] - coef[..., ink].mean(axis=2, keepdims=True)
    return {
        "probe, true class": logits[:, :, np.arange(len(rows)), labels],
        "probe, all classes": logits.reshape(flat),
        "coefficients, all": np.concatenate([coef.reshape(flat), intercept], axis=2),
        "coefficients, contrasts": moved.reshape(flat),
    }


def _accuracy(model: Any, X: np.ndarray, y: np.ndarray) -> dict[str, float]:
    proba = model.predict_proba(X)
    coef, intercept = model.posterior_.flat("coef"), model.posterior_.flat("intercept")
    chosen = np.unique(np.linspace(0, len(coef) - 1, _SINGLE_DRAWS).astype(int))
    single = [np.mean((X @ coef[i].T + intercept[i]).argmax(axis=1) == y) for i in chosen]
    return {
        "ensemble accuracy": np.mean(model.classes_[proba.argmax(axis=1)] == y),
        "mean single-draw accuracy": np.mean(single),
        "log loss": log_loss(y, proba, labels=model.classes_),
    }


def _ours(
    args: argparse.Namespace, data: tuple[np.ndarray, ...]
) -> tuple[Any, dict[str, Any], dict[str, np.ndarray], dict[str, np.ndarray]]:
    X, y, X_test, y_test = data
    model = BayesianLogisticRegression(
        method="hmc",
        prior_scale=1.0,
        n_chains=args.n_chains,
        n_warmup=args.n_warmup,
        n_draws=args.n_draws,
        random_state=0,
    )
    with common.watched_steps() as steps:
        fit = common.timed(lambda: model.fit(X, y))
    stats = model.sampler_stats_
    kept = [now for done, now in steps if done >= args.n_warmup]
    at = [done - args.n_warmup for done, _ in steps if done >= args.n_warmup]
    gradients = [stats["n_gradients"][a:b].sum() for a, b in pairwise(at)]
    each = np.diff(kept) / np.array(gradients) / args.n_chains
    # The lower median over dispatches, so that one that compiles does not count.
    typical = np.quantile(each, 0.5, method="lower")
    record = {
        "fit": fit.record(),
        "seconds before sampling": steps[0][1] - (steps[-1][1] - fit.seconds),
        "seconds of warm-up": kept[0] - steps[0][1],
        "seconds of kept draws": typical * args.n_chains * sum(gradients),
        "seconds per gradient and chain": typical,
        "gradients per draw": stats["gradients_per_draw"],
        "step size": stats["step_size"],
        "acceptance": stats["accept_prob"].tolist(),
        "divergent": stats["diverging"].tolist(),
        **_accuracy(model, X_test, y_test),
    }
    draws, rows = model.posterior_.draws, X_test[:_PROBE_ROWS]
    ink = X.max(axis=0) > 0
    found = _quantities(draws["coef"], draws["intercept"], rows, y_test[:_PROBE_ROWS], ink)
    found["log density"] = model.posterior_.log_density[:, :, None]
    ess = {name: common.bulk_ess(value) for name, value in found.items()}
    total = args.n_chains * stats["n_gradients"].sum()
    record["mixing"] = [
        {
            "quantity": name,
            "scalars": value.size,
            "R-hat max": common.rank_r_hat(found[name]).max(),
            "ESS min": value.min(),
            "ESS 1 %": np.quantile(value, 0.01),
            "ESS median": np.median(value),
            "gradients per ESS, median": total / np.median(value),
            "worst": total / value.min(),
        }
        for name, value in ess.items()
    ]
    variance = {name: value.var(axis=(0, 1), dtype=np.float64) for name, value in found.items()}
    return model, record, ess, variance


def _peer(
    args: argparse.Namespace,
    data: tuple[np.ndarray, ...],
    model: Any,
    ours: dict[str, Any],
    our_ess: dict[str, np.ndarray],
    variance: dict[str, np.ndarray],
) -> dict[str, Any]:
    from benchmarks import _tfp_recipe

    X, y, X_test, y_test = data
    recipe = _tfp_recipe.Recipe(
        args.peer_leapfrogs, args.peer_adapt, args.peer_draws, args.peer_step, args.peer_seconds
    )
    start = np.linspace(0, args.n_chains * args.n_draws - 1, args.peer_chains).astype(int)
    w = model.posterior_.flat("coef")[start].swapaxes(1, 2)
    b = model.posterior_.flat("intercept")[start].astype(np.float32)
    run = _tfp_recipe.sample(X, y.astype(np.int32), recipe, w, b)
    n = run.log_density.size
    rows, labels = X_test[:_PROBE_ROWS], y_test[:_PROBE_ROWS]
    found = _quantities(run.coef, run.intercept, rows, labels, X.max(axis=0) > 0)
    table = []
    for name, draws in found.items():
        estimate = common.bulk_ess(draws)
        jump = np.mean(np.diff(draws.astype(np.float64), axis=1) ** 2, axis=(0, 1))
        r = 1 - jump / (2 * variance[name])
        # Noise can take r to -1 and beyond, where the bound has no meaning.
        r = np.maximum(r, _LEAST_R)
        bound = n * (1 - r) / (1 + r)
        for which in (np.median, np.min):
            mine = which(our_ess[name]) / ours["seconds of kept draws"]
            whole = which(our_ess[name]) / ours["fit"]["seconds"]
            theirs = {"estimate": which(estimate), "jump bound": which(bound), "draws": n}
            rates = {key: value / run.seconds for key, value in theirs.items()}
            table.append(
                {"quantity": name, "of all": "median" if which is np.median else "worst"}
                | {"ours ESS/s": mine, "peer ESS/s": rates["estimate"]}
                | {"peer ESS/s, bound": rates["jump bound"]}
                | {f"ratio by {key}": mine / value for key, value in rates.items()}
                | {"fit by jump bound": whole / rates["jump bound"]}
                | {"peer gradients per ESS": n * args.peer_leapfrogs / theirs["jump bound"]}
            )
    return {
        "chains": args.peer_chains,
        "kept draws": n,
        "acceptance": run.accept_prob,
        "step size": run.step_size,
        "compile seconds": run.compile_seconds,
        "seconds of kept draws": run.seconds,
        "seconds per gradient and chain": run.seconds_per_gradient,
        "ratio of seconds per gradient and chain": run.seconds_per_gradient
        / ours["seconds per gradient and chain"],
        "extrapolated": f"rates from {n} draws; its first adaptation and burn-in are left out",
        "table": table,
    }


def main() -> None:
    """Run both and print."""
    made = common.parser(__doc__)
    made.add_argument("--n-draws", type=int, default=1000)
    made.add_argument("--n-warmup", type=int, default=200)
    made.add_argument("--n-chains", type=int, default=4)
    made.add_argument("--no-peer", action="store_true")
    made.add_argument("--peer-chains", type=int, default=1, help="run together, by vmap")
    made.add_argument("--peer-leapfrogs", type=int, default=100)
    made.add_argument("--peer-adapt", type=int, default=60)
    made.add_argument("--peer-draws", type=int, default=60)
    made.add_argument("--peer-step", type=float, default=1e-3, help="first step; the recipe: 1e-2")
    made.add_argument("--peer-seconds", type=float, default=900.0, help="stop keeping draws then")
    args = common.parse(made)
    if args.quick:
        args.n_draws, args.n_warmup = 100, 100
        args.peer_leapfrogs, args.peer_adapt, args.peer_draws = 10, 20, 20
    data = common.load_or_skip(lambda: _data(args.quick))
    if data is None:
        return
    model, ours, ess, variance = _ours(args, data)
    common.table("mixing of kept draws", ours["mixing"])
    scalars = {k: v for k, v in ours.items() if k not in ("mixing", "fit")} | ours["fit"]
    common.table("ours", [{"what": key, "value": value} for key, value in scalars.items()])
    result = {"ours": ours}
    common.save("mnist_hmc", args, result)
    if args.no_peer:
        return
    result["peer"] = _peer(args, data, model, ours, ess, variance)
    rest = {key: value for key, value in result["peer"].items() if key != "table"}
    common.table("peer", [{"what": key, "value": value} for key, value in rest.items()])
    common.table("effective draws", result["peer"]["table"])
    common.save("mnist_hmc", args, result)


if __name__ == "__main__":
    main()
