"""Softmax problems: laid out for the package, and the same density in plain NumPy float64.

The reference knows columns as given. It shares with the package only the coordinates in which
displacements are expressed: scaled columns behind the intercept, padded, in class contrasts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from skbayes_shard.models.columns import Columns, measure
from skbayes_shard.models.design import lay_out
from skbayes_shard.models.softmax import Softmax, SoftmaxData, make_prior
from skbayes_shard.models.softmax_kernel import Rows
from skbayes_shard.sharding import (
    BlockLayout,
    batch_layout,
    block_layout,
    make_mesh,
    place_blocks,
    replicate,
)


@dataclass
class Problem:
    """Rows and prior as given, and what the package makes of them."""

    X: Any
    label: np.ndarray
    weight: np.ndarray
    n_classes: int
    intercept: bool
    scales: tuple[float, float]
    columns: Columns
    layout: BlockLayout
    model: Softmax
    data: SoftmaxData

    @property
    def dense(self) -> np.ndarray:
        """X as a float64 array."""
        return np.asarray(self.X.todense() if sp.issparse(self.X) else self.X, np.float64)

    @property
    def shape(self) -> tuple[int, int]:
        """Of a displacement."""
        return self.n_classes - 1, -(-(1 + len(self.affine()[0])) // 8) * 8

    def affine(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Numbers, shifts and scales of the columns that vary or are not zero."""
        X = self.dense
        used = np.flatnonzero(np.any(X != 0, axis=0))
        X = X[:, used]
        mean, sd = X.mean(axis=0), np.where(np.ptp(X, axis=0) == 0, 0.0, X.std(axis=0))
        centred = np.abs(mean) > 30 * sd
        if sp.issparse(self.X):
            centred &= np.all(X != 0, axis=0)
        elif self.intercept:
            centred = np.full(len(used), True)
        scale = np.where(centred, np.where(sd == 0, 1.0, sd), np.sqrt(np.mean(X**2, axis=0)))
        return used, np.where(centred, mean, 0.0), scale

    def as_given(self, beta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Coefficients (free, columns) and intercepts as given, and the padded coordinates."""
        used, shift, scale = self.affine()
        coef = np.zeros((len(beta), self.dense.shape[1]))
        coef[:, used] = beta[:, 1 : 1 + len(used)] / scale
        padded = beta[:, 1 + len(used) :]
        if not self.intercept:
            return coef, np.zeros(len(beta)), np.column_stack([padded, beta[:, 0]])
        return coef, beta[:, 0] - coef[:, used] @ shift, padded

    def log_density(self, beta: np.ndarray, rows: Any = slice(None)) -> float:
        """Log likelihood of some rows plus log prior (up to a constant) at a point."""
        coef, intercept, padded = self.as_given(np.asarray(beta, np.float64))
        value = self.log_likelihood(beta, rows)
        prior = np.sum(coef**2) / self.scales[0] ** 2 + np.sum(intercept**2) / self.scales[1] ** 2
        return value - 0.5 * (prior + np.sum(padded**2))

    def log_likelihood(self, beta: np.ndarray, rows: Any = slice(None)) -> float:
        """Weighted log likelihood of some rows."""
        log_p = self.log_p(beta)[rows]
        chosen = np.take_along_axis(log_p, self.label[rows, None], axis=1)[:, 0]
        return float(self.weight[rows] @ chosen)

    def log_p(self, beta: np.ndarray) -> np.ndarray:
        """Log probabilities (rows, classes)."""
        coef, intercept, _ = self.as_given(np.asarray(beta, np.float64))
        logits = (self.dense @ coef.T + intercept) @ to_classes(self.n_classes)
        return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)

    def gradient(self, beta: np.ndarray) -> np.ndarray:
        """Gradient of :meth:`log_density`, by the chain rule from columns as given."""
        beta = np.asarray(beta, np.float64)
        used, shift, scale = self.affine()
        coef, intercept, _ = self.as_given(beta)
        residual = np.eye(self.n_classes)[self.label] - np.exp(self.log_p(beta))
        residual = (residual * self.weight[:, None]) @ to_classes(self.n_classes).T
        by_coef = residual.T @ self.dense - coef / self.scales[0] ** 2
        by_intercept = residual.sum(axis=0) - intercept / self.scales[1] ** 2
        out = -beta
        if self.intercept:
            out[:, 0] = by_intercept
            by_coef[:, used] -= np.outer(by_intercept, shift)
        out[:, 1 : 1 + len(used)] = by_coef[:, used] / scale
        return out


def to_classes(n_classes: int) -> np.ndarray:
    """Orthonormal contrasts of the classes, in rows; class 1 against class 0 for two."""
    if n_classes == 2:
        return np.array([[0.0, 1.0]])
    rows = []
    for k in range(n_classes - 1):
        rest = n_classes - 1 - k
        row = np.r_[np.zeros(k), -rest, np.ones(rest)]
        rows.append(row / np.linalg.norm(row))
    return np.array(rows)


def make_problem(
    n_rows: int,
    n_classes: int = 2,
    *,
    n_columns: int = 3,
    sparse: bool = False,
    intercept: bool = True,
    weighted: bool = False,
    scales: tuple[float, float] = (1.0, 1.0),
    by_x: bool = False,
    most_rows: int = 4096,
    batch_size: int | None = None,
    precision: str = "float32",
    devices: Any = None,
    seed: int = 0,
) -> Problem:
    """Draw a problem; ``by_x`` sorts its rows, so that devices see different data."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, n_columns)) * np.logspace(-1, 1, n_columns) + 0.5
    if sparse:
        X = np.where(rng.uniform(size=X.shape) < 0.4, X, 0.0)
        X[0] = 0.5
    logits = (X / np.logspace(-1, 1, n_columns)) @ rng.normal(size=(n_columns, n_classes))
    label = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1).astype(np.int32)
    weight = rng.choice([0.0, 0.5, 1.0, 3.0], n_rows) if weighted else np.ones(n_rows)
    if by_x:
        order = np.argsort(X[:, 0])
        X, label, weight = X[order], label[order], weight[order]
    return problem_of(
        sp.csr_matrix(X) if sparse else X, label, n_classes, weight=weight, intercept=intercept,
        scales=scales, most_rows=most_rows, batch_size=batch_size, precision=precision,
        devices=devices,
    )  # fmt: skip


def problem_of(
    X: Any,
    label: np.ndarray,
    n_classes: int,
    *,
    weight: np.ndarray | None = None,
    intercept: bool = True,
    scales: tuple[float, float] = (1.0, 1.0),
    most_rows: int = 4096,
    batch_size: int | None = None,
    precision: str = "float32",
    devices: Any = None,
) -> Problem:
    """Lay given rows out, as the front door does."""
    mesh, n_rows = make_mesh(devices), X.shape[0]
    weight = np.ones(n_rows) if weight is None else np.asarray(weight, np.float64)
    columns = measure(X, centre=intercept and not sp.issparse(X))
    layout = block_layout(n_rows, mesh.size, most_rows)
    if batch_size is not None:
        layout = batch_layout(n_rows, mesh.size, batch_size, np.random.RandomState(0))
    n_batches = layout.shape[0] // mesh.size if batch_size is not None else 1
    uniform = np.full((layout.shape[0], n_classes, layout.shape[1]), -np.log(n_classes), np.float32)
    rows = Rows(
        lay_out(X, columns, layout.order, intercept),
        layout.spread(np.asarray(label, np.int32)),
        layout.spread(weight.astype(np.float32)),
        uniform,
    )
    prior = make_prior(columns, *scales, intercept)
    centre = np.zeros((n_classes - 1, columns.width), np.float32)
    batch_scale = np.float32(n_batches)
    data = SoftmaxData(place_blocks(mesh, rows), *replicate(mesh, (prior, centre, batch_scale)))
    model = Softmax(mesh, n_classes, precision)
    return Problem(X, label, weight, n_classes, intercept, scales, columns, layout, model, data)


def precisions(program: str) -> set[str]:
    """Precisions of all matrix products in a lowered program."""
    products = re.findall(r"stablehlo\.dot_general[^\n]*", program)
    found = [re.search(r"precision = \[(\w+), (\w+)\]", line) for line in products]
    return {word for match in found for word in (match.groups() if match else ("none",))}
