"""Sums over lists of very different lengths equal the plain matrix product."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

from skbayes_shard.models import ragged
from skbayes_shard.models.ragged import ragged_plans

WIDE = 6000
# Lengths of the rows of one block.
LENGTHS = {
    "empty": [0, 0, 0],
    "single": [1],
    "around a chunk": [7, 8, 9, 0, 63, 64, 65],
    "one long row": [0, 3, 5000, 0, 0, 1],
    "long row last": [0] * 40 + [4097],
    "long row first": [513] + [0] * 40,
    "even": [5] * 100,
    "zipf": [4000 // (k + 1) for k in range(300)],
}


def matrix_of(lengths, seed=0):
    """A sparse matrix whose rows have the given numbers of entries."""
    rng = np.random.default_rng(seed)
    columns = [np.sort(rng.choice(WIDE, n, replace=False)) for n in lengths]
    indices = np.concatenate(columns) if columns else np.zeros(0, int)
    indptr = np.r_[0, np.cumsum(lengths)]
    data = rng.normal(size=len(indices)).astype(np.float32)
    return sp.csr_matrix((data, indices, indptr), shape=(len(lengths), WIDE))


def block(plan, b=0):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[b]), plan)


def source(m=3, seed=1):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(m, WIDE)), jnp.float32)


def bound(matrix, x):
    """What float32 rounding of products and of their sums may amount to."""
    return 1e-6 * (np.abs(x) @ abs(matrix).T.astype(np.float64)) + 1e-30


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("m", [1, 3])
def test_sums_equal_the_dense_product(lengths, m):
    """``sum`` is the product with the transposed matrix, to float32 rounding."""
    matrix, x = matrix_of(lengths), source(m)
    plan = ragged_plans([matrix])
    found = np.asarray(block(plan).sum(x, "float32"), np.float64)
    exact = np.asarray(x, np.float64) @ matrix.toarray().T.astype(np.float64)
    assert found.shape == (m, len(lengths))
    assert np.all(np.abs(found - exact) <= bound(matrix, np.asarray(x, np.float64)))


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_dense_is_the_matrix(lengths):
    """The matrix comes back out of its plan."""
    matrix = matrix_of(lengths)
    found = block(ragged_plans([matrix])).dense(WIDE)
    assert np.array_equal(found, matrix.toarray())


def test_blocks_share_one_plan():
    """Blocks of one number of rows and other lengths are padded to one shape, each right."""
    rows = [[0] * 6, [1, 0, 9, 80, 0, 2], [0, 0, 5000, 0, 0, 0], [600] * 6]
    matrices = [matrix_of(lengths, seed) for seed, lengths in enumerate(rows)]
    plan, x = ragged_plans(matrices), source()
    assert plan.n_sums == 6
    for b, matrix in enumerate(matrices):
        exact = np.asarray(x, np.float64) @ matrix.toarray().T.astype(np.float64)
        found = np.asarray(block(plan, b).sum(x, "float32"), np.float64)
        assert np.all(np.abs(found - exact) <= bound(matrix, np.asarray(x, np.float64)))


def test_long_lists_are_gathered_in_portions(monkeypatch):
    """Bounding what is gathered at a time changes no sum."""
    matrix, x = matrix_of(LENGTHS["zipf"]), source()
    plan = block(ragged_plans([matrix]))
    whole = np.asarray(plan.sum(x, "float32"))
    monkeypatch.setattr(ragged, "_GATHERED_AT_ONCE", 1000)
    np.testing.assert_allclose(plan.sum(x, "float32"), whole, rtol=1e-5, atol=1e-5)


def test_unsorted_and_repeated_entries():
    """Entries that come in any order, or twice, are all added up."""
    data, indices = np.array([1, 2, 4, 8], np.float32), np.array([5, 2, 5, 0])
    matrix = sp.csr_matrix((data, indices, [0, 3, 4]), shape=(2, 8))
    x = jnp.asarray([np.arange(8.0)], jnp.float32)
    plan = block(ragged_plans([matrix]))
    assert plan.sum(x, "float32").tolist() == [[1 * 5 + 2 * 2 + 4 * 5, 0.0]]
    assert np.array_equal(plan.dense(8), matrix.toarray())


def test_many_small_numbers_are_not_lost():
    """A sum of 5000 terms is added up in a tree, so its error does not grow with its length."""
    matrix = sp.csr_matrix(np.full((1, 5000), 0.1, np.float32))
    found = block(ragged_plans([matrix])).sum(jnp.ones((1, 5000), jnp.float32), "float32")
    np.testing.assert_allclose(found, [[5000 * float(np.float32(0.1))]], rtol=3e-7)


def test_precision():
    """bfloat16 rounds the factors to eight bits, and adds up in float32."""
    matrix, x = matrix_of(LENGTHS["zipf"]), source()
    plan = block(ragged_plans([matrix]))
    full, coarse = (np.asarray(plan.sum(x, p), np.float64) for p in ("float32", "bfloat16"))
    assert np.array_equal(plan.sum(x, "tensorfloat32"), full)
    error = np.linalg.norm(coarse - full) / np.linalg.norm(full)
    # Each of two factors and their product is rounded by up to 2**-9.
    assert 2**-11 < error < 3 * 2**-9


def test_sums_use_no_scatter():
    """The program gathers only, where the dense matrix needs a scatter (XLA may rewrite one)."""
    plan = block(ragged_plans([matrix_of(LENGTHS["zipf"])]))
    summed = jax.jit(lambda plan, x: plan.sum(x, "float32")).lower(plan, source())
    dense = jax.jit(lambda plan: plan.dense(WIDE)).lower(plan)
    assert "stablehlo.scatter" in dense.as_text()
    assert "stablehlo.scatter" not in summed.as_text()
    assert " scatter(" not in summed.compile().as_text()


def test_plans_are_small():
    """A plan holds at most a few times the entries, however skewed the lists are."""
    for lengths in (LENGTHS["zipf"], LENGTHS["one long row"], [1] * 4096):
        plan = ragged_plans([matrix_of(lengths)])
        held = plan.value.size + sum(level.size for level in plan.levels)
        assert held <= 1.5 * 8 * (sum(lengths) / 8 + 2 * len(lengths) + 64)
