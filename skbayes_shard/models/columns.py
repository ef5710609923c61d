"""Scaling of design columns on the host, and its undoing.

Likelihoods are evaluated on shifted and scaled columns; the prior stays on the columns as
given. Columns that are zero in every row, or as good as zero, never reach a device: the
likelihood does not see their coefficients, so these keep their prior.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

_ROWS_AT_ONCE = 16384
# Column 0 of a laid out design is the intercept; sizes are rounded up to a multiple of this,
# so that data sets of similar width share compiled programs.
_COLUMN_BUCKET = 8
_LEAST_LOGIT = 1e-15


class Columns(NamedTuple):
    """Which columns are used, and the affine map ``(x - shift) / scale`` of each."""

    n_columns: int
    used: np.ndarray
    shift: np.ndarray
    scale: np.ndarray

    @property
    def width(self) -> int:
        """Columns of the laid out design: intercept, used columns, padding."""
        return -(-(1 + len(self.used)) // _COLUMN_BUCKET) * _COLUMN_BUCKET

    def padded(self, values: np.ndarray, first: float, fill: float) -> np.ndarray:
        """Spread one value for each used column over the laid out width."""
        out = np.full(self.width, fill, np.float64)
        out[0] = first
        out[1 : 1 + len(self.used)] = values
        return out

    def real(self, intercept: bool) -> np.ndarray:
        """Which laid out columns are not padding; that of the intercept may be, too."""
        column = np.arange(self.width)
        return np.where(column == 0, intercept, column <= len(self.used))

    def felt(self, prior_scale: float) -> Columns:
        """Leave out columns that the likelihood cannot feel within the prior.

        Their logits are zero to many digits, and numbers of their size leave float32's range.
        """
        felt = self.scale * prior_scale > _LEAST_LOGIT
        return self._replace(used=self.used[felt], shift=self.shift[felt], scale=self.scale[felt])


def require_float32(X: Any) -> None:
    """Refuse numbers that devices cannot hold."""
    values = X.data if sp.issparse(X) else X
    largest = np.finfo(np.float32).max
    if values.dtype == np.float32 or values.size == 0:
        return
    if max(values.max(), -values.min()) > largest:
        beyond = np.abs(values) > largest
        column = X.tocsr().indices[beyond][0] if sp.issparse(X) else np.argwhere(beyond)[0, 1]
        raise ValueError(
            f"Input X contains a value too large for dtype('float32'), beyond {largest:.3g}, in "
            f"column {column}. Rescale it."
        )


def measure(X: Any, centre: bool) -> Columns:
    """Find used columns, their means (if ``centre``) and their scales, in float64.

    The scale is the standard deviation, or the root mean square where columns are not centred;
    a column that does not vary gets scale 1 when centred.
    """
    if sp.issparse(X):
        values = X.astype(np.float64)
        root = np.sqrt(np.asarray(values.multiply(values).mean(axis=0))).ravel()
        used = np.flatnonzero(root > 0)
        return Columns(X.shape[1], used, np.zeros(len(used)), root[used])
    mean = np.zeros(X.shape[1])
    if centre:
        mean = np.mean(X, axis=0, dtype=np.float64)
    square, largest = np.zeros(X.shape[1]), np.zeros(X.shape[1])
    for start in range(0, len(X), _ROWS_AT_ONCE):
        part = np.asarray(X[start : start + _ROWS_AT_ONCE], np.float64)
        largest = np.maximum(largest, np.abs(part).max(axis=0))
        square += np.sum((part - mean) ** 2, axis=0)
    used = np.flatnonzero(largest > 0)
    scale = np.sqrt(square / len(X))
    # A constant column leaves only the rounding of its mean behind.
    scale[scale <= 1e-7 * np.abs(mean)] = 1.0
    return Columns(X.shape[1], used, mean[used], scale[used])


def scaled(X: np.ndarray, columns: Columns, order: np.ndarray, intercept: float) -> np.ndarray:
    """Return rows of a dense ``X`` in the given order of blocks, scaled, in float32.

    ``order`` holds row numbers, -1 for padding; padded rows are zero.
    """
    out = np.zeros((order.size, columns.width), np.float32)
    flat = order.ravel()
    for start in range(0, len(flat), _ROWS_AT_ONCE):
        rows = flat[start : start + _ROWS_AT_ONCE]
        real = np.flatnonzero(rows >= 0)
        part = np.asarray(X[rows[real]][:, columns.used], np.float64)
        part = (part - columns.shift) / columns.scale
        out[start + real, 1 : 1 + len(columns.used)] = part
        out[start + real, 0] = intercept
    return out.reshape(*order.shape, columns.width)
