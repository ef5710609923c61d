"""Design matrices on devices: dense blocks, and sparse blocks summed without scatter.

Both are pytrees whose leaves have the block axis in front; a kernel scans over blocks and
calls these methods on one block: ``logits(w)``, the product of ``w`` (m, width) with the
transposed rows; ``pullback(r)``, the product of ``r`` (m, rows) with the rows;
``squares(v)`` and ``squared_logits(w)``, transposed to each other, the same two products with
squared entries; and ``rows()``, the block itself, dense.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from skbayes_shard.models.columns import Columns, scaled
from skbayes_shard.models.pivot import Pivot
from skbayes_shard.models.ragged import RaggedSum, ragged_plans

_PRECISIONS = {
    "float32": jax.lax.Precision.HIGHEST,
    "tensorfloat32": jax.lax.Precision.HIGH,
    "bfloat16": jax.lax.Precision.DEFAULT,
}


def matmul(a: jax.Array, b: jax.Array, precision: str) -> jax.Array:
    """Multiply matrices in the given precision, adding up in float32."""
    if precision == "bfloat16":
        # CPUs ignore the precision attribute, so the operands themselves are rounded.
        a, b = a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)
    return jnp.dot(a, b, precision=_PRECISIONS[precision], preferred_element_type=jnp.float32)


class DenseDesign(NamedTuple):
    """Rows as they are, ``values`` of shape (blocks, rows, width)."""

    values: jax.Array

    def logits(self, w: jax.Array, precision: str) -> jax.Array:
        """Product of ``w`` with the transposed rows."""
        return matmul(w, self.values.T, precision)

    def pullback(self, r: jax.Array, precision: str) -> jax.Array:
        """Product of ``r`` with the rows."""
        return matmul(r, self.values, precision)

    def squares(self, v: jax.Array) -> jax.Array:
        """Product of ``v`` with the squared rows."""
        return matmul(v, self.values**2, "float32")

    def squared_logits(self, w: jax.Array) -> jax.Array:
        """Product of ``w`` with the transposed squared rows."""
        return matmul(w, self.values.T**2, "float32")

    def rows(self) -> jax.Array:
        """Return the block, dense."""
        return self.values


class SparseDesign(NamedTuple):
    """Rows of a sparse matrix, held twice: summed by row and summed by column."""

    by_row: RaggedSum
    by_column: RaggedSum
    intercept: jax.Array

    def logits(self, w: jax.Array, precision: str) -> jax.Array:
        """Product of ``w`` with the transposed rows."""
        return self.by_row.sum(w, precision) + w[:, :1] * self.intercept

    def pullback(self, r: jax.Array, precision: str) -> jax.Array:
        """Product of ``r`` with the rows."""
        return self.by_column.sum(r, precision) + self._first(r)

    def squares(self, v: jax.Array) -> jax.Array:
        """Product of ``v`` with the squared rows."""
        squared = self.by_column._replace(value=self.by_column.value**2)
        return squared.sum(v, "float32") + self._first(v)

    def squared_logits(self, w: jax.Array) -> jax.Array:
        """Product of ``w`` with the transposed squared rows."""
        squared = self.by_row._replace(value=self.by_row.value**2)
        return squared.sum(w, "float32") + w[:, :1] * self.intercept

    def rows(self) -> jax.Array:
        """Return the block, dense; a scatter, so never in the hot path."""
        dense = self.by_row.dense(self.by_column.n_sums)
        return dense.at[:, 0].add(self.intercept)

    def _first(self, r: jax.Array) -> jax.Array:
        column = jnp.arange(self.by_column.n_sums) == 0
        return jnp.sum(r, axis=1, keepdims=True) * self.intercept * column


def lay_out(
    X: Any, columns: Columns, order: np.ndarray, intercept: bool, pivot: Pivot | None = None
) -> Any:
    """Lay dense or sparse rows out in blocks, on the host.

    With a ``pivot`` in its coordinates; column 0 is then there with or without an intercept.
    """
    mix = None if pivot is None else pivot.matrix()
    intercept = intercept or pivot is not None
    if not sp.issparse(X):
        return DenseDesign(scaled(X, columns, order, float(intercept), mix))
    matrix = _centred(sp.csr_matrix(X)[:, columns.used].astype(np.float64), columns.shift)
    matrix = sp.csr_matrix(matrix @ sp.diags_array(1 / columns.scale))
    # Column 0 is the intercept's, which is not stored unless others are mixed with it.
    first = sp.csr_matrix(np.full((matrix.shape[0], 1), float(mix is not None)))
    right = sp.csr_matrix((matrix.shape[0], columns.width - 1 - matrix.shape[1]))
    matrix = sp.hstack([first, matrix, right], format="csr")
    if mix is not None:
        matrix, intercept = sp.csr_matrix(matrix @ mix), False
    matrix = matrix.astype(np.float32)
    blocks = [_rows(matrix, rows) for rows in order]
    by_row = ragged_plans(blocks)
    by_column = ragged_plans([sp.csr_matrix(block.T) for block in blocks])
    return SparseDesign(by_row, by_column, np.full(len(order), intercept, np.float32))


def _centred(matrix: sp.csr_matrix, shift: np.ndarray) -> sp.csr_matrix:
    """Take off the shifts of those few columns, full ones, that have any."""
    moved = np.flatnonzero(shift)
    n_rows = matrix.shape[0]
    if len(moved) == 0:
        return matrix
    entries = np.tile(shift[moved], n_rows), np.tile(moved, n_rows)
    starts = len(moved) * np.arange(n_rows + 1)
    return sp.csr_matrix(matrix - sp.csr_matrix((*entries, starts), shape=matrix.shape))


def _rows(matrix: sp.csr_matrix, rows: np.ndarray) -> sp.csr_matrix:
    """Take rows by number; padded rows (-1) are empty."""
    real = rows[rows >= 0]
    position = np.flatnonzero(rows >= 0)
    pick = sp.csr_matrix(
        (np.ones(len(real), np.float32), (position, real)), shape=(len(rows), matrix.shape[0])
    )
    return pick @ matrix
