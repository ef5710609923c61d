"""Coordinates for columns far from zero, or intercepts held tightly at zero.

In scaled columns the logit at the columns' mean is ``a = b + lean . beta`` (``b`` the intercept
as given, ``lean = shift / scale``). Where ``lean . beta`` is by far the larger part, ``a`` and
``beta`` are tied together much more tightly than float32 resolves: seconds since 1970 pin a
combination of coefficients to nine digits. Then ``a`` takes the place of one of the
coefficients instead of that of ``b``: ``beta_p = (a - b) / lean_p - sum_j r_j beta_j`` with
``r_j = lean_j / lean_p``, and every coordinate is as free as the data leave it. Without an
intercept ``b = 0`` and ``a`` itself replaces ``beta_p``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from skbayes_shard.models.columns import Columns

# As long as lean . beta is no longer than this in prior deviations of b, float32 has room.
_STIFF = 1e3
# Columns whose lean is this much less than the largest are no candidates: r_j stays moderate.
_NEAR = 1e-2


class Pivot(NamedTuple):
    """The linear map ``beta = T gamma`` from pivoted to laid out coordinates.

    ``gamma[0] = gain * a``, ``gamma[column] = -b / lean[column]`` (padding without an
    intercept), and all others are those of ``beta``.
    """

    column: int
    lean: np.ndarray
    intercept: bool

    @property
    def size(self) -> float:
        """The lean of the coefficient that gives way."""
        return float(self.lean[self.column])

    @property
    def gain(self) -> float:
        """Scale of ``gamma[0]``: keeps entries of :meth:`matrix` at most about one."""
        return max(1.0, 1 / abs(self.size))

    def tilt(self) -> np.ndarray:
        """Return the row of :meth:`matrix` that belongs to the coefficient that gives way."""
        tilt = -self.lean / self.size
        tilt[0] = 1 / (self.gain * self.size)
        tilt[self.column] = float(self.intercept)
        return tilt

    def matrix(self) -> sp.csr_matrix:
        """Return ``T``; a design ``Z`` of laid out columns becomes ``Z @ T``."""
        matrix = sp.eye_array(len(self.lean), format="lil")
        matrix[0, 0] = 1 / self.gain
        matrix[self.column] = self.tilt()
        return sp.csr_matrix(matrix)

    def undo(self, gamma: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return laid out coefficients ``beta``, and intercepts ``b``, in float64."""
        beta = np.array(gamma, np.float64)
        beta[..., self.column] = beta @ self.tilt()
        intercept = -self.size * np.asarray(gamma[..., self.column], np.float64)
        beta[..., 0] /= self.gain
        return beta, intercept if self.intercept else np.zeros_like(intercept)

    def prior(self, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ``scale`` and ``lean`` of the prior of ``gamma``, given ``scale`` of ``beta``.

        ``scale[0]`` is that of ``b``.
        """
        out, lean = scale.copy(), self.gain * self.lean
        out[0] = self.gain * abs(self.size) * scale[self.column]
        out[self.column] = scale[0] / abs(self.size) if self.intercept else 1.0
        lean[self.column] = -self.gain * self.size if self.intercept else 0.0
        return out, lean

    def real(self, real: np.ndarray) -> np.ndarray:
        """Return which coordinates are not padding, given that of laid out columns."""
        column = np.arange(len(real))
        return np.where(column == self.column, self.intercept, real | (column == 0))


def choose_pivot(
    columns: Columns, prior_scale: float, intercept_prior_scale: float, intercept: bool
) -> Pivot | None:
    """Return the pivot that a fit needs, or None where the usual coordinates serve."""
    lean = np.abs(columns.shift / columns.scale)
    if not np.any(lean > 0):
        return None
    tied = np.max(lean * np.minimum(1.0, columns.scale * prior_scale))
    if intercept and tied <= _STIFF * intercept_prior_scale:
        return None
    near = lean >= _NEAR * lean.max()
    column = 1 + int(np.argmax(np.where(near, np.abs(columns.shift), -1.0)))
    return Pivot(column, columns.padded(columns.shift / columns.scale, 0.0, 0.0), intercept)
