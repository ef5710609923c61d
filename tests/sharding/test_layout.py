"""Every row stands in exactly one place, and sizes recur."""

import numpy as np
import pytest

from skbayes_shard.sharding import batch_layout, block_layout, bucket

SIZES = [1, 2, 3, 7, 8, 9, 37, 100, 1000, 4097, 20_000]
DEVICES = [1, 2, 3, 8]


def real_rows(layout):
    """Row numbers in the order of blocks, without padding."""
    return layout.order[layout.order >= 0]


# ---------------------------------------------------------------- buckets


@pytest.fixture(scope="module")
def sizes():
    """All small sizes, and large ones either side of every power of two."""
    powers = 2 ** np.arange(13, 31)
    return np.unique(np.r_[1:10_000, powers - 1, powers, powers + 1, 3 * powers, 3 * powers + 1])


@pytest.fixture(scope="module")
def buckets(sizes):
    return np.array([bucket(int(size)) for size in sizes])


def test_buckets_hold_their_size(sizes, buckets):
    """A bucket is no smaller than what goes into it."""
    assert np.all(buckets >= sizes)


def test_buckets_are_monotone(buckets):
    """A larger size never gets a smaller bucket."""
    assert np.all(np.diff(buckets) >= 0)


def test_bucket_of_a_bucket_is_itself(buckets):
    """Rounding up twice changes nothing, so laid out data keep their shapes."""
    assert [bucket(int(size)) for size in np.unique(buckets)] == np.unique(buckets).tolist()


def test_buckets_waste_little(sizes, buckets):
    """At most a third of a bucket is padding when small, a ninth when large."""
    waste = 1 - sizes / buckets
    assert np.all(waste[(sizes > 32) & (sizes <= 4096)] < 1 / 3)
    assert np.all(waste[sizes > 4096] < 1 / 9)


def test_buckets_are_few(buckets, sizes):
    """Two buckets for each doubling when small, eight when large: programs are reused."""
    doubling = np.floor(np.log2(buckets - 0.5)).astype(int)
    found = {k: len(np.unique(buckets[doubling == k])) for k in np.unique(doubling)}
    assert max(found[k] for k in found if k < 12) <= 2
    assert max(found[k] for k in found if k >= 12) <= 8


# ---------------------------------------------------------------- blocks


@pytest.mark.parametrize("n_rows", SIZES)
@pytest.mark.parametrize("n_devices", DEVICES)
@pytest.mark.parametrize("most_rows", [64, 4096])
def test_blocks_hold_every_row_once(n_rows, n_devices, most_rows):
    """All rows, in order, each once; as many blocks on each device, none larger than asked."""
    layout = block_layout(n_rows, n_devices, most_rows)
    assert real_rows(layout).tolist() == list(range(n_rows))
    assert layout.shape[0] % n_devices == 0
    assert layout.shape[1] <= most_rows
    assert layout.n_rows == n_rows


@pytest.mark.parametrize("n_devices", DEVICES)
def test_blocks_waste_little(n_devices):
    """Beyond the smallest block, a third of the laid out rows at most is padding."""
    for n_rows in (n_devices * 33, n_devices * 1025, n_devices * 70_000 + 1):
        layout = block_layout(n_rows, n_devices, 4096)
        assert layout.order.size <= 1.5 * (n_rows + n_devices)


def test_similar_sizes_share_a_layout():
    """The folds of a cross-validation have one shape."""
    assert len({block_layout(n, 2, 4096).shape for n in range(900, 1000)}) == 1


@pytest.mark.parametrize("n_devices", DEVICES)
def test_mask_marks_real_rows(n_devices):
    """The mask is float32, one where there is a row and zero elsewhere."""
    layout = block_layout(37, n_devices, 4096)
    assert layout.mask.dtype == np.float32
    assert layout.mask.sum() == 37
    assert np.array_equal(layout.mask == 1, layout.order >= 0)


# ---------------------------------------------------------------- spread and collect


def layouts():
    for n_devices in DEVICES:
        for n_rows in (1, 3, 37, 1000):
            name = f"{n_rows}x{n_devices}"
            rng = np.random.RandomState(0)
            yield pytest.param(block_layout(n_rows, n_devices, 64), id=f"blocks-{name}")
            yield pytest.param(batch_layout(n_rows, n_devices, 10, rng), id=f"batches-{name}")


@pytest.mark.parametrize("layout", list(layouts()))
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int32])
@pytest.mark.parametrize("rest", [(), (3,), (2, 4)], ids=str)
def test_collect_undoes_spread(layout, dtype, rest):
    """Rows come back in the caller's order, with their shape and type."""
    values = np.arange(layout.n_rows * int(np.prod(rest)), dtype=dtype)
    values = values.reshape(layout.n_rows, *rest) - 5
    blocks = layout.spread(values, fill=77)
    assert blocks.shape == layout.shape + rest
    assert np.all(blocks[layout.order < 0] == 77)
    back = layout.collect(blocks)
    assert back.dtype == dtype
    assert np.array_equal(back, values)


# ---------------------------------------------------------------- mini-batches


@pytest.mark.parametrize("n_rows", [n for n in SIZES if n <= 1000])
@pytest.mark.parametrize("n_devices", DEVICES)
@pytest.mark.parametrize("batch_size", [1, 4, 10, 64, 1000])
def test_batches_are_even(n_rows, n_devices, batch_size):
    """Each row once; batches of one size (give or take a row), spread evenly over devices."""
    rng = np.random.RandomState(0)
    layout = batch_layout(n_rows, n_devices, batch_size, rng)
    assert sorted(real_rows(layout)) == list(range(n_rows))
    n_batches = -(-n_rows // batch_size)
    shares = layout.mask.reshape(n_devices, n_batches, -1).sum(axis=2)
    assert np.all(np.ptp(shares, axis=0) <= 1)
    assert np.ptp(shares.sum(axis=0)) <= 1
    assert shares.sum(axis=0).max() <= batch_size


def test_batches_are_shuffled():
    """Sorted data do not become sorted batches, and the generator decides how."""
    first, again, other = (
        batch_layout(1000, 2, 100, np.random.RandomState(seed)).order for seed in (0, 0, 1)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    means = first.reshape(2, 10, -1).mean(axis=(0, 2))
    # A batch of 100 out of 1000 numbers has a mean of 499.5 with standard error 27.
    assert np.all(np.abs(means - 499.5) < 4 * 27)
