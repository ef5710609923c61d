"""The demonstration: ``python -m skbayes_shard.demo [FOLDER]``.

Fits every estimator on data that come with its dependencies, prints a table and writes
pictures.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_digits
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import train_test_split

from skbayes_shard import BayesianLogisticRegression
from skbayes_shard.plots import IntervalDisplay, TraceDisplay

_METHODS = {
    "hmc": {"method": "hmc"},
    "svi, structured": {"method": "svi"},
    "svi, mean field": {"method": "svi", "guide": "mean_field"},
}


def main(arguments: list[str] | None = None) -> None:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(prog="python -m skbayes_shard.demo")
    parser.add_argument("folder", nargs="?", default="demo_output", type=Path)
    folder = parser.parse_args(arguments).folder
    folder.mkdir(parents=True, exist_ok=True)
    X, y = load_digits(return_X_y=True)
    parts = train_test_split(X / 16, y, test_size=0.25, random_state=0, stratify=y)
    print("BayesianLogisticRegression on scikit-learn's digits: 1,347 rows x 64, 10 classes\n")
    rows = {}
    for title, parameters in _METHODS.items():
        model, rows[title] = _measured(parameters, *parts)
        if title == "hmc":
            _pictures(model, folder, parts[1], parts[3])
    print(pd.DataFrame(rows).T.to_string(float_format=lambda value: f"{value:.3f}", na_rep="-"))
    print(f"\npictures: {folder.resolve()}")


def _measured(
    parameters: dict[str, Any], X: np.ndarray, X_test: np.ndarray, y: np.ndarray, y_test: np.ndarray
) -> tuple[BayesianLogisticRegression, dict[str, float]]:
    """Fit twice, so that compilation can be told apart, and judge on held-out rows."""
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        model = BayesianLogisticRegression(random_state=0, **parameters).fit(X, y)
        seconds.append(time.perf_counter() - start)
    table = model.summary()
    proba = model.predict_proba(X_test).astype(np.float64)
    return model, {
        "accuracy": accuracy_score(y_test, model.classes_[proba.argmax(axis=1)]),
        "log loss": log_loss(y_test, proba / proba.sum(axis=1, keepdims=True)),
        "largest R-hat": table["r_hat"].max(),
        "smallest ESS": table["ess_bulk"].min(),
        "seconds": seconds[1],
        "compile seconds": seconds[0] - seconds[1],
    }


def _pictures(
    model: BayesianLogisticRegression, folder: Path, X_test: np.ndarray, y_test: np.ndarray
) -> None:
    TraceDisplay.from_estimator(model).ax_.figure.savefig(folder / "digits_trace.png", dpi=120)
    display = IntervalDisplay.from_estimator(model)
    display.ax_.figure.savefig(folder / "digits_coefficients.png", dpi=120)
    _least_certain(model, X_test, y_test).savefig(folder / "digits_least_certain.png", dpi=120)


def _least_certain(
    model: BayesianLogisticRegression, X_test: np.ndarray, y_test: np.ndarray
) -> Any:
    """Draw the test digits whose probability is least certain, with its mean and sd."""
    from matplotlib.figure import Figure

    proba, std = model.predict_proba(X_test, return_std=True)
    best = proba.argmax(axis=1)
    rows = np.arange(len(best))
    chosen = np.argsort(-std[rows, best])[:10]
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    for ax, row in zip(figure.subplots(2, 5).flat, chosen, strict=True):
        ax.imshow(X_test[row].reshape(8, 8), cmap="gray_r")
        mean, sd = proba[row, best[row]], std[row, best[row]]
        ax.set_title(f"{best[row]}: {mean:.2f} ± {sd:.2f} (is {y_test[row]})", fontsize="small")
        ax.set_axis_off()
    return figure


if __name__ == "__main__":
    main()
