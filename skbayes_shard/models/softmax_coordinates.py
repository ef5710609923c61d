"""Coordinates of softmax coefficients on the host: NumPyro's sites, classes."""

from __future__ import annotations

import numpy as np

from skbayes_shard.models.columns import Columns
from skbayes_shard.models.pivot import Pivot
from skbayes_shard.models.softmax_kernel import contrasts


def split(array: np.ndarray) -> dict[str, np.ndarray]:
    """Return the sample sites of an array (rows of coefficients, width)."""
    return {"coef": array[:, 1:], "intercept": array[:, 0]}


def join(sites: dict[str, np.ndarray]) -> np.ndarray:
    """Undo :func:`split`."""
    return np.concatenate([sites["intercept"][:, None], sites["coef"]], axis=1)


def laid_out(columns: Columns, draws: dict[str, np.ndarray]) -> np.ndarray:
    """Return coefficients of laid out columns from those of columns as given.

    What all classes have in common changes no probability and is taken off: times columns far
    from zero it would leave float32 no digits for the rest.
    """
    coef = draws["coef"][..., columns.used]
    if coef.shape[-2] > 1:
        coef = coef - coef.mean(axis=-2, keepdims=True, dtype=np.float64)
    out = np.zeros((*coef.shape[:-1], columns.width), np.float32)
    out[..., 1 : 1 + coef.shape[-1]] = coef * columns.scale
    out[..., 0] = draws.get("intercept", 0.0) + coef @ columns.shift
    return out


def as_given(
    columns: Columns, pivot: Pivot | None, beta: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Undo :func:`laid_out`: coefficients of the used columns as given, and intercepts.

    Coefficients are float32, and intercepts take up their rounding; with a pivot, where nine
    digits of them may matter, they are float64.
    """
    n_used = len(columns.used)
    if pivot is not None:
        beta, intercept = pivot.undo(beta)
        return beta[..., 1 : 1 + n_used] / columns.scale, intercept
    coef = (beta[..., 1 : 1 + n_used] / columns.scale).astype(np.float32)
    return coef, beta[..., 0].astype(np.float64) - coef @ columns.shift


def spread(n_classes: int, mode: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviations of the rows of each class, from those of contrasts."""
    if n_classes == 2:
        return mode, np.sqrt(variance)
    to_logits = contrasts(n_classes).astype(np.float32)
    return to_logits @ mode, np.sqrt(to_logits**2 @ variance)
