"""Logistic regression on simulated rows of 50 columns: seconds and gradients by their number.

Seconds are those of a second fit, so compilation is apart. scikit-learn's penalised maximum
likelihood with the same prior is there for context; it gives a point, no posterior.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from benchmarks import common
from skbayes_shard import BayesianLogisticRegression

_N_COLUMNS = 50


def simulate(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Correlated normal columns in float32, and classes from a logistic model."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, _N_COLUMNS), np.float32)
    X += 0.5 * rng.standard_normal((n, 1), np.float32)
    logits = X @ rng.normal(0, 0.3, _N_COLUMNS).astype(np.float32) - 0.5
    return X, (rng.random(n) < 1 / (1 + np.exp(-logits))).astype(np.int64)


def measure(args: argparse.Namespace, n: int) -> list[dict[str, Any]]:
    """Time all methods on ``n`` rows."""
    X, y = simulate(n)
    rows = []
    for method in ("hmc", "svi"):
        models = [
            BayesianLogisticRegression(
                method=method, n_draws=args.n_draws, n_warmup=args.n_warmup, random_state=seed
            )
            for seed in (0, 1)
        ]
        first, done = (common.timed(lambda model=model: model.fit(X, y)) for model in models)
        stats = done.value.sampler_stats_
        row = {"rows": n, "method": method, "first": first.seconds, "seconds": done.seconds}
        if method == "hmc":
            ess = common.bulk_ess(done.value.posterior_.draws["coef"])
            row |= {
                "acceptance": stats["accept_prob"].mean(),
                "gradients per draw": stats["gradients_per_draw"],
                "ESS min": ess.min(),
                "ESS/s min": ess.min() / done.seconds,
            }
        else:
            row |= dict.fromkeys(("acceptance", "gradients per draw", "ESS min", "ESS/s min"), "")
        rows.append(row | {"warned": bool(done.complaints)})
    point = common.timed(lambda: LogisticRegression(C=1.0, max_iter=1000).fit(X, y))
    empty = dict.fromkeys(rows[0], "")
    rows.append(empty | {"rows": n, "method": "scikit-learn", "seconds": point.seconds})
    return rows


def main() -> None:
    """Time all sizes."""
    made = common.parser(__doc__)
    made.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    made.add_argument("--n-draws", type=int, default=500)
    made.add_argument("--n-warmup", type=int, default=200)
    args = common.parse(made)
    if args.quick:
        args.sizes, args.n_draws, args.n_warmup = [1000, 3000], 100, 100
    rows: list[dict[str, Any]] = []
    for n in args.sizes:
        rows += measure(args, n)
        common.save("scaling", args, {"rows": rows})
    common.table(f"logistic regression, {_N_COLUMNS} columns", rows)


if __name__ == "__main__":
    main()
