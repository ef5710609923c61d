"""Sums over ragged lists, by gathers alone.

A sparse product needs sums over rows or columns of very different lengths. Scatter-add does
that, and is slow: serial on CPUs, and on some GPU releases hundreds of times slower than a
sum. Here the lists are cut into chunks of eight, the chunk sums into chunks of eight again,
and so on up to one sum for each list: a tree of gathers with at most seven wasted entries in
a list and level.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from skbayes_shard.sharding import bucket

_CHUNK = 8
_GATHERED_AT_ONCE = 2**20


class RaggedSum(NamedTuple):
    """A sparse matrix as a plan of chunked sums; leaves carry the block axis in front.

    ``index`` and ``value`` (chunks, 8) are the entries, ``owner`` the row of each chunk,
    ``levels`` the sums of sums, ``last`` the position of each row's sum in the last level.
    """

    index: jax.Array
    value: jax.Array
    owner: jax.Array
    levels: tuple[jax.Array, ...]
    last: jax.Array

    @property
    def n_sums(self) -> int:
        """Number of lists that are summed."""
        return self.last.shape[-1]

    def sum(self, source: jax.Array, precision: str) -> jax.Array:
        """Product of ``source`` (m, n) with the transposed matrix, shape (m, n_sums)."""
        dtype = jnp.bfloat16 if precision == "bfloat16" else jnp.float32
        rows = source.T.astype(dtype)
        values = self.value.astype(dtype)

        def chunk(entry: tuple[jax.Array, jax.Array]) -> jax.Array:
            index, value = entry
            return jnp.sum((rows[index] * value[:, None]).astype(jnp.float32), axis=0)

        at_once = max(1, _GATHERED_AT_ONCE // (_CHUNK * source.shape[0]))
        sums = jax.lax.map(chunk, (self.index, values), batch_size=at_once)
        for level in self.levels:
            sums = jnp.sum(_with_zero(sums)[level], axis=1)
        return _with_zero(sums)[self.last].T

    def dense(self, n_columns: int) -> jax.Array:
        """Return the matrix itself, by a scatter."""
        out = jnp.zeros((self.n_sums, n_columns), jnp.float32)
        return out.at[self.owner[:, None], self.index].add(self.value)


def _with_zero(sums: jax.Array) -> jax.Array:
    return jnp.concatenate([sums, jnp.zeros_like(sums[:1])])


def ragged_plans(blocks: list[sp.csr_matrix]) -> RaggedSum:
    """Plan the row sums of each block, all padded to one shape."""
    plans = [_entries(block) for block in blocks]
    n_chunks = bucket(max(len(plan[0]) for plan in plans))
    index, value, owner = (np.stack([_pad(plan[k], n_chunks) for plan in plans]) for k in range(3))
    counts = [plan[3] for plan in plans]
    size, levels = n_chunks, []
    while max(count.max(initial=0) for count in counts) > 1:
        steps = [_level(count, size) for count in counts]
        wider = bucket(max(len(step) for step, _ in steps))
        levels.append(np.stack([_pad(step, wider, size) for step, _ in steps]))
        counts, size = [count for _, count in steps], wider
    last = np.stack([np.where(c > 0, np.cumsum(c) - c, size) for c in counts]).astype(np.int32)
    return RaggedSum(index, value, owner, tuple(levels), last)


def _entries(block: sp.csr_matrix) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    length = np.diff(block.indptr)
    count = -(-length // _CHUNK)
    owner, position = _chunks(count)
    entry = block.indptr[owner][:, None] + position[:, None] * _CHUNK + np.arange(_CHUNK)
    real = entry < block.indptr[owner + 1][:, None]
    entry = np.minimum(entry, max(block.nnz - 1, 0))
    index = np.where(real, block.indices[entry], 0).astype(np.int32)
    value = np.where(real, block.data[entry], 0).astype(np.float32)
    return index, value, owner.astype(np.int32), count


def _level(count: np.ndarray, nowhere: int) -> tuple[np.ndarray, np.ndarray]:
    start = np.cumsum(count) - count
    fewer = -(-count // _CHUNK)
    owner, position = _chunks(fewer)
    place = position[:, None] * _CHUNK + np.arange(_CHUNK)
    real = place < count[owner][:, None]
    return np.where(real, start[owner][:, None] + place, nowhere).astype(np.int32), fewer


def _chunks(count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Owner of each chunk, and its position within the owner's list."""
    owner = np.repeat(np.arange(len(count)), count)
    return owner, np.arange(len(owner)) - (np.cumsum(count) - count)[owner]


def _pad(array: np.ndarray, size: int, fill: int = 0) -> np.ndarray:
    out = np.full((size, *array.shape[1:]), fill, array.dtype)
    out[: len(array)] = array
    return out
