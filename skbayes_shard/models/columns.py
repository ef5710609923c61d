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
# Means of so many standard deviations cost float32 two of its seven digits.
_OFFSET = 30.0


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
        Where only a column's offset is felt, that is the column's scale.
        """
        varies = self.scale * prior_scale > _LEAST_LOGIT
        scale = np.where(varies, self.scale, np.abs(self.shift))
        felt = scale * prior_scale > _LEAST_LOGIT
        return self._replace(used=self.used[felt], shift=self.shift[felt], scale=scale[felt])

    def near_zero(self) -> Columns:
        """Leave columns where they are, but for those far from zero."""
        return self._replace(shift=np.where(_far(self.shift, self.scale), self.shift, 0.0))


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
    """Find used columns, their means and their scales, in float64.

    Columns are centred if ``centre`` says so or where they are far from zero (sparse ones only
    if every row stores a value); the scale is then the standard deviation, or 1 of a constant
    column, else the root mean square.
    """
    mean, sd, largest, full = _sparse_moments(X) if sp.issparse(X) else _dense_moments(X)
    used = np.flatnonzero(largest > 0)
    mean, sd, full = mean[used], sd[used], full[used]
    centred = full & (centre | _far(mean, sd))
    scale = np.where(centred, np.where(sd == 0, 1.0, sd), np.hypot(mean, sd))
    return Columns(X.shape[1], used, np.where(centred, mean, 0.0), scale)


def _far(mean: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Whether columns are so far from zero that they must be centred to keep their digits."""
    return np.abs(mean) > _OFFSET * sd


def _dense_moments(X: np.ndarray) -> tuple[np.ndarray, ...]:
    mean = np.mean(X, axis=0, dtype=np.float64)
    total, square = np.zeros(X.shape[1]), np.zeros(X.shape[1])
    low, high = np.full(X.shape[1], np.inf), np.full(X.shape[1], -np.inf)
    for start in range(0, len(X), _ROWS_AT_ONCE):
        part = np.asarray(X[start : start + _ROWS_AT_ONCE], np.float64)
        low, high = np.minimum(low, part.min(axis=0)), np.maximum(high, part.max(axis=0))
        total += np.sum(part - mean, axis=0)
        square += np.sum((part - mean) ** 2, axis=0)
    # What the rounding of the first sum has left.
    rest = total / len(X)
    sd = np.sqrt(np.maximum(square / len(X) - rest**2, 0.0))
    mean, sd = np.where(low == high, low, mean + rest), np.where(low == high, 0.0, sd)
    return mean, sd, np.maximum(np.abs(low), np.abs(high)), np.ones(len(mean), bool)


def _sparse_moments(X: Any) -> tuple[np.ndarray, ...]:
    matrix = sp.csc_matrix(X, dtype=np.float64)
    matrix.sum_duplicates()
    n_rows = matrix.shape[0]
    full = np.diff(matrix.indptr) == n_rows
    mean = np.asarray(matrix.mean(axis=0)).ravel()
    largest = abs(matrix).max(axis=0).toarray().ravel()
    sd = np.zeros(len(mean))
    for j in np.flatnonzero(full):
        mean[j], sd[j] = (a[0] for a in _dense_moments(_column(matrix, j))[:2])
    square = np.asarray(matrix.multiply(matrix).mean(axis=0)).ravel()
    sd = np.where(full, sd, np.sqrt(np.maximum(square - mean**2, 0.0)))
    return mean, sd, largest, full


def _column(matrix: sp.csc_matrix, j: int) -> np.ndarray:
    return matrix.data[matrix.indptr[j] : matrix.indptr[j + 1], None]


def scaled(
    X: np.ndarray, columns: Columns, order: np.ndarray, intercept: float, mix: Any = None
) -> np.ndarray:
    """Return rows of a dense ``X`` in the given order of blocks, scaled, in float32.

    ``order`` holds row numbers, -1 for padding; padded rows are zero. ``mix`` is a matrix that
    all columns are multiplied with, in float64.
    """
    out = np.zeros((order.size, columns.width), np.float32)
    flat = order.ravel()
    for start in range(0, len(flat), _ROWS_AT_ONCE):
        rows = flat[start : start + _ROWS_AT_ONCE]
        real = np.flatnonzero(rows >= 0)
        part = np.asarray(X[rows[real]][:, columns.used], np.float64)
        part = (part - columns.shift) / columns.scale
        if mix is None:
            out[start + real, 1 : 1 + len(columns.used)] = part
            out[start + real, 0] = intercept
        else:
            wide = np.zeros((len(real), columns.width))
            wide[:, 0], wide[:, 1 : 1 + len(columns.used)] = intercept, part
            out[start + real] = wide @ mix
    return out.reshape(*order.shape, columns.width)
