"""Inverse Cholesky factors on the host, careful with badly scaled precisions."""

from __future__ import annotations

import numpy as np
from scipy.linalg import lapack

# Beyond this, float64 factors would cost more time and memory than their digits are worth.
_MOST_IN_FLOAT64 = 2048


def inverse_root(precision: np.ndarray) -> np.ndarray:
    """Return standard deviations of independent coordinates, in float32."""
    precision = np.asarray(precision, np.float64)
    if not np.all((precision > 0) & np.isfinite(precision)):
        raise FloatingPointError("the posterior precision is not positive and finite")
    return (1 / np.sqrt(precision)).astype(np.float32)


def inverse_factor(precision: np.ndarray) -> np.ndarray:
    """Return the upper triangular ``A`` with ``A A' = inv(precision)``, in float32."""
    dtype = np.float64 if len(precision) <= _MOST_IN_FLOAT64 else np.float32
    scale = np.sqrt(np.maximum(np.diagonal(precision), np.finfo(np.float32).tiny), dtype=dtype)
    unit = np.asarray(precision, dtype) / scale
    unit /= scale[:, None]
    lower = _cholesky(unit)
    (invert,) = lapack.get_lapack_funcs(("trtri",), (lower,))
    inverse, info = invert(lower, lower=1, overwrite_c=1)
    if info != 0 or not np.all(np.isfinite(inverse)):
        raise FloatingPointError("the posterior precision could not be inverted")
    return np.ascontiguousarray(inverse.T / scale[:, None], dtype=np.float32)


def _cholesky(unit: np.ndarray) -> np.ndarray:
    (factor,) = lapack.get_lapack_funcs(("potrf",), (unit,))
    # Entries are sums made in float32: rounding can leave small negative eigenvalues, and a
    # ridge of their size mends them.
    for jitter in (0.0, 1e-6, 1e-5, 1e-4, 1e-3):
        trial = unit + jitter * np.eye(len(unit), dtype=unit.dtype) if jitter else unit
        lower, info = factor(trial, lower=1, clean=1)
        if info == 0:
            return lower
    raise FloatingPointError(
        "the posterior precision is not positive definite; check for columns of extreme scale "
        "or a prior scale that is too large"
    )
