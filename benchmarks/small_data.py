"""Small data must be quick: seconds to fit scikit-learn's digits, and a grid search over it.

``first`` includes compilation; ``later`` is the median of fits after it. The grid is 6 prior
scales times 5 folds, predictions included; its folds are smaller than the whole, so it compiles
once more, and ``programs`` counts what XLA compiled for it.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV

from benchmarks import common
from skbayes_shard import BayesianLogisticRegression

_SCALES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
_FOLDS = 5


def measure(args: argparse.Namespace, method: str, X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Time one method."""

    def fit(seed: int) -> common.Timed:
        model = BayesianLogisticRegression(method=method, random_state=seed)
        return common.timed(lambda: model.fit(X, y))

    first, *later = [fit(seed) for seed in range(1 + args.repeats)]
    predict = [common.timed(lambda: first.value.predict_proba(X)) for _ in range(2)]
    seconds = np.median([done.seconds for done in later])
    row = {
        "method": method,
        "first": first.seconds,
        "of which XLA": first.compile_seconds,
        "programs": first.n_programs,
        "later": seconds,
        "programs later": later[-1].n_programs,
        "predict first": predict[0].seconds,
        "predict later": predict[1].seconds,
        "warned": bool(first.complaints),
    }
    common.table(f"digits ({X.shape[0]} x {X.shape[1]}), {method}", [row])
    result = {"fit": row, "complaints": first.complaints}
    if method in args.grid:
        scales = _SCALES[:2] if args.quick else _SCALES
        folds = 2 if args.quick else _FOLDS
        search = GridSearchCV(
            BayesianLogisticRegression(method=method, random_state=0),
            {"prior_scale": list(scales)},
            cv=folds,
            refit=False,
            error_score="raise",
        )
        done = common.timed(lambda: search.fit(X, y))
        grid = {
            "method": method,
            "fits": len(scales) * folds,
            "seconds": done.seconds,
            "of which XLA": done.compile_seconds,
            "programs": done.n_programs,
            "over first fit": done.seconds / first.seconds,
            "over later fit": done.seconds / seconds,
            "warnings": len(done.complaints),
            "best scale": scales[int(np.argmax(search.cv_results_["mean_test_score"]))],
            "best accuracy": search.cv_results_["mean_test_score"].max(),
        }
        common.table(f"grid of {grid['fits']} fits, {method}", [grid])
        result["grid"] = grid
    return result


def main() -> None:
    """Time both methods."""
    made = common.parser(__doc__)
    made.add_argument("--repeats", type=int, default=5, help="fits after the first")
    made.add_argument(
        "--grid", nargs="*", choices=["svi", "hmc"], default=["svi"], help="methods searched over"
    )
    args = common.parse(made)
    X, y = load_digits(return_X_y=True)
    X = X / 16
    if args.quick:
        X, y, args.repeats = X[y < 3], y[y < 3], 1
    result = {method: measure(args, method, X, y) for method in ("svi", "hmc")}
    common.save("small_data", args, result)


if __name__ == "__main__":
    main()
