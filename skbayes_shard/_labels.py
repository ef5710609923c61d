"""Class labels and row weights: what a classifier makes of y, sample_weight, class_weight."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
from sklearn.utils import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from skbayes_shard._sklearn_compat import check_sample_weight

# Sums of weights, times squares of scaled columns, must fit in float32.
_MOST_WEIGHT = 1e30


def encode_labels(y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted classes, and the number of each row's class."""
    y = column_or_1d(y, warn=True)
    if y.dtype == object and np.any(missing := pd.isna(y)):
        raise ValueError(
            f"y holds {np.sum(missing)} missing labels, the first in row {np.argmax(missing)}; "
            "drop these rows."
        )
    try:
        check_classification_targets(y)
        classes, label = np.unique(y, return_inverse=True)
    except TypeError as error:
        types = sorted({type(value).__name__ for value in y})
        raise ValueError(
            f"y holds labels of types that have no order among them, {types}; make them all one."
        ) from error
    if len(classes) < 2:
        raise ValueError(
            f"y holds 1 class only, {classes.tolist()[0]!r}; a classifier needs two or more."
        )
    return classes, label.astype(np.int32)


def encode_weights(sample_weight: Any, class_weight: Any, X: Any, y: Any) -> np.ndarray:
    """Return each row's weight, the product of both, in float32."""
    weight = check_sample_weight(sample_weight, X, ensure_non_negative=True).astype(np.float64)
    _require_sum(weight, "sample_weight")
    if not np.any(weight > 0):
        raise ValueError("sample_weight is zero for every row; at least one must be positive.")
    if class_weight is not None:
        weight = weight * _class_factors(class_weight, y)
        if not np.any(weight > 0):
            raise ValueError(
                "class_weight must give finite, non-negative weights, not all zero; got "
                f"{class_weight!r}."
            )
        _require_sum(weight, "class_weight times sample_weight")
    return weight.astype(np.float32)


def _require_sum(weight: np.ndarray, name: str) -> None:
    total = weight.sum(dtype=np.float64)
    if total > _MOST_WEIGHT:
        raise ValueError(
            f"{name} adds up to {total:.3g}, too large for float32 arithmetic, which takes "
            f"{_MOST_WEIGHT:.0e}. Divide the weights by a constant."
        )


def _class_factors(class_weight: Any, y: Any) -> np.ndarray:
    if isinstance(class_weight, dict):
        bad = {
            label: value
            for label, value in class_weight.items()
            if not isinstance(value, Real) or not 0 <= value < np.inf
        }
        if bad:
            raise ValueError(
                "class_weight must give finite, non-negative weights, not all zero; got "
                f"{class_weight!r}."
            )
    return compute_sample_weight(class_weight, y)
