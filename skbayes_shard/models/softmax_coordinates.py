"""Coordinates of softmax coefficients on the host: NumPyro's sites, classes, padding."""

from __future__ import annotations

import numpy as np

from skbayes_shard.models.columns import Columns
from skbayes_shard.models.softmax_kernel import contrasts


def split(array: np.ndarray) -> dict[str, np.ndarray]:
    """Return the sample sites of an array (rows of coefficients, width)."""
    return {"coef": array[:, 1:], "intercept": array[:, 0]}


def join(sites: dict[str, np.ndarray]) -> np.ndarray:
    """Undo :func:`split`."""
    return np.concatenate([sites["intercept"][:, None], sites["coef"]], axis=1)


def padding(columns: Columns, intercept: bool, beta: np.ndarray) -> np.ndarray:
    """Log density of draws (..., free, width) in padded columns, whose prior is standard normal."""
    padded = beta[..., 1 + len(columns.used) :]
    if not intercept:
        padded = np.concatenate([padded, beta[..., :1]], axis=-1)
    return log_normal(padded, 1.0)


def log_normal(values: np.ndarray, scale: float) -> np.ndarray:
    """Log density of the last two axes as independent Normals."""
    squares = np.sum((values / scale) ** 2, axis=(-2, -1), dtype=np.float64)
    n = values.shape[-2] * values.shape[-1]
    return -0.5 * squares - n * (np.log(scale) + 0.5 * np.log(2 * np.pi))


def spread(n_classes: int, mode: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviations of the rows of each class, from those of contrasts."""
    if n_classes == 2:
        return mode, np.sqrt(variance)
    to_logits = contrasts(n_classes).astype(np.float32)
    return to_logits @ mode, np.sqrt(to_logits**2 @ variance)
