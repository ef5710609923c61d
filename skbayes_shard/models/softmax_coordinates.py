"""Coordinates of softmax coefficients on the host: NumPyro's sites, classes."""

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


def laid_out(columns: Columns, draws: dict[str, np.ndarray]) -> np.ndarray:
    """Return coefficients of laid out columns from those of columns as given."""
    coef = draws["coef"][..., columns.used]
    out = np.zeros((*coef.shape[:-1], columns.width), np.float32)
    out[..., 1 : 1 + coef.shape[-1]] = coef * columns.scale
    if "intercept" in draws:
        out[..., 0] = draws["intercept"] + coef @ columns.shift
    return out


def spread(n_classes: int, mode: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviations of the rows of each class, from those of contrasts."""
    if n_classes == 2:
        return mode, np.sqrt(variance)
    to_logits = contrasts(n_classes).astype(np.float32)
    return to_logits @ mode, np.sqrt(to_logits**2 @ variance)
