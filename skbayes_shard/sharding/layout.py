"""How rows are cut into blocks: equal on every device, padded to sizes that recur.

Arrays travel as ``(n_blocks, block_rows, ...)`` and are split over devices along the first
axis. Sizes are rounded up to *buckets*, so that the folds of a cross-validation, batches at
predict and refits share one compiled program. Padded rows carry the mask value 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_SMALLEST_BUCKET = 32


def bucket(size: int) -> int:
    """Round a size up to a bucket, of which at most a third is padding; an eighth when large.

    Buckets are ``m * 2**k`` with ``m`` in {2, 3} up to 4096 and in {8, ..., 15} beyond.

    Examples
    --------
    >>> from skbayes_shard.sharding import bucket
    >>> [bucket(n) for n in (1, 37, 60, 1437, 1438, 60000)]
    [32, 48, 64, 1536, 1536, 61440]
    """
    if size <= _SMALLEST_BUCKET:
        return _SMALLEST_BUCKET
    steps = 2 if size <= 4096 else 8
    unit = 2 ** ((size - 1).bit_length() - steps.bit_length())
    return -(-size // unit) * unit


class BlockLayout(NamedTuple):
    """Which row of the caller stands where: ``order[b, r]`` is a row number, or -1 for padding."""

    n_rows: int
    order: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        """Number of blocks and rows in a block."""
        return self.order.shape

    @property
    def mask(self) -> np.ndarray:
        """1.0 where a block holds a real row, 0.0 where it is padded."""
        return (self.order >= 0).astype(np.float32)

    def spread(self, values: np.ndarray, fill: float = 0) -> np.ndarray:
        """Lay a vector or array of rows out in blocks, padded with ``fill``."""
        out = np.full(self.shape + values.shape[1:], fill, values.dtype)
        real = self.order >= 0
        out[real] = values[self.order[real]]
        return out

    def collect(self, blocks: np.ndarray) -> np.ndarray:
        """Undo :meth:`spread`: real rows only, in the caller's order."""
        real = self.order >= 0
        out = np.empty((self.n_rows, *blocks.shape[2:]), blocks.dtype)
        out[self.order[real]] = blocks[real]
        return out


def block_layout(n_rows: int, n_devices: int, most_rows: int) -> BlockLayout:
    """Cut rows in their order into blocks of at most ``most_rows``, as many for each device."""
    each = -(-n_rows // n_devices)
    if bucket(each) <= most_rows:
        blocks, rows = 1, bucket(each)
    else:
        rows = most_rows
        blocks = -(-each // rows)
        blocks = blocks if blocks <= _SMALLEST_BUCKET else bucket(blocks)
    order = np.arange(n_devices * blocks * rows).reshape(n_devices * blocks, rows)
    return BlockLayout(n_rows, np.where(order < n_rows, order, -1))


def batch_layout(
    n_rows: int, n_devices: int, batch_size: int, rng: np.random.RandomState
) -> BlockLayout:
    """Deal shuffled rows into mini-batches, each spread evenly over the devices.

    Block ``j`` of every device together is batch ``j``. Batches differ by one row at most.
    """
    n_batches = -(-n_rows // batch_size)
    largest = -(-n_rows // n_batches)
    rows = -(-largest // n_devices)
    shuffled = rng.permutation(n_rows)
    order = np.full((n_devices, n_batches, rows), -1)
    for batch, part in enumerate(np.array_split(shuffled, n_batches)):
        for device, share in enumerate(np.array_split(part, n_devices)):
            order[device, batch, : len(share)] = share
    return BlockLayout(n_rows, order.reshape(n_devices * n_batches, rows))
