"""Class probabilities averaged over draws, and labels drawn from them."""

import jax
import numpy as np
import pytest
import scipy.sparse as sp

from skbayes_shard.models import softmax_predictive
from skbayes_shard.models.columns import measure
from skbayes_shard.models.softmax_predictive import labels, probabilities
from skbayes_shard.sharding import make_mesh

KEY = jax.random.PRNGKey(0)


def case(n_rows, n_classes, n_draws, *, sparse=False, size=1.0, spread=1.0, seed=0):
    """Rows, columns, laid out weights, and exact log probabilities (draws, rows, classes)."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, 4)) * [1, 10, 1, 1] + [0, 5, 0, 0]
    X[:, 2] = 0
    if sparse:
        X = np.where(rng.uniform(size=X.shape) < 0.5, X, 0)
        X[0] = [1, 1, 0, 1]
    columns = measure(sp.csr_matrix(X) if sparse else X, centre=not sparse)
    vectors = 1 if n_classes == 2 else n_classes
    weights = np.zeros((n_draws, vectors, columns.width), np.float32)
    weights[..., :4] = rng.normal(size=(vectors, 4))
    weights[..., :4] += spread * rng.normal(size=(n_draws, vectors, 4))
    weights *= size
    used = X[:, [0, 1, 3]]
    rows = np.column_stack([np.ones(n_rows), (used - columns.shift) / columns.scale])
    logits = np.einsum("bp,skp->sbk", rows, weights[..., :4].astype(np.float64))
    if n_classes == 2:
        logits = np.concatenate([np.zeros_like(logits), logits], axis=2)
    log_p = logits - np.logaddexp.reduce(logits, axis=2, keepdims=True)
    return sp.csr_matrix(X) if sparse else X, columns, weights, log_p


def log_mean(log_p):
    return np.logaddexp.reduce(log_p, axis=0) - np.log(len(log_p))


@pytest.mark.parametrize("n_rows", [1, 37, 600])
@pytest.mark.parametrize("n_classes", [2, 3, 10])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_mean_and_spread(n_rows, n_classes, sparse):
    """Means of the softmax over draws (not the softmax of means), and standard deviations."""
    X, columns, weights, log_p = case(n_rows, n_classes, 30, sparse=sparse)
    found, std = probabilities(make_mesh(), X, columns, weights)
    assert found.shape == std.shape == (n_rows, n_classes)
    p = np.exp(log_p)
    np.testing.assert_allclose(np.exp(found), p.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(std, p.std(axis=0), atol=1e-5)


@pytest.mark.parametrize("n_draws", [1, 2, 3, 64, 1000, 1025])
def test_any_number_of_draws(n_draws):
    """Draws that fill a group only in part count for themselves alone; one has no spread."""
    X, columns, weights, log_p = case(5, 3, n_draws)
    found, std = probabilities(make_mesh(), X, columns, weights)
    spread = np.exp(log_p).std(axis=0) if n_draws > 1 else np.full(found.shape, np.nan)
    np.testing.assert_allclose(np.exp(found), np.exp(log_p).mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(std, spread, atol=1e-5)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_tails_are_right_in_log_space(n_classes):
    """Probabilities far below the smallest float32 keep their logarithms."""
    X, columns, weights, log_p = case(37, n_classes, 20, size=300.0, spread=0.1)
    found, _ = probabilities(make_mesh(), X, columns, weights)
    exact = log_mean(log_p)
    assert exact.min() < -200
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)


def test_certain_rows_have_no_spread():
    """The spread of draws that agree is zero to rounding, not the root of rounding errors."""
    X, columns, weights, _ = case(37, 3, 1)
    _, std = probabilities(make_mesh(), X, columns, np.repeat(weights, 100, axis=0))
    assert std.max() < 1e-6


def test_portions_of_rows_and_groups_of_draws_join(monkeypatch):
    """However many rows are on devices and draws in a group at a time, the answer is one."""
    X, columns, weights, log_p = case(100, 3, 50)
    monkeypatch.setattr(softmax_predictive, "_ROWS", 16)
    monkeypatch.setattr(softmax_predictive, "_AT_ONCE", 16 * 4 * 4)
    monkeypatch.setattr(softmax_predictive, "_ENTRIES_ON_DEVICE", 40 * columns.width)
    found, std = probabilities(make_mesh(), X, columns, weights)
    np.testing.assert_allclose(np.exp(found), np.exp(log_p).mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(std, np.exp(log_p).std(axis=0), atol=1e-5)
    drawn = labels(make_mesh(), X, columns, 1e6 * weights, KEY)
    assert np.array_equal(drawn, log_p.argmax(axis=2))


# ---------------------------------------------------------------- labels


@pytest.mark.parametrize("n_classes", [2, 3, 10])
def test_label_frequencies(n_classes):
    """Each class turns up as often as its mean probability, within 5 standard errors."""
    n_draws = 4000
    X, columns, weights, log_p = case(6, n_classes, n_draws)
    drawn = labels(make_mesh(), X, columns, weights, KEY)
    assert drawn.shape == (n_draws, 6)
    found = (drawn[..., None] == np.arange(n_classes)).mean(axis=0)
    p = np.exp(log_p)
    # The variance of the mean of independent draws, each with its own probabilities.
    error = np.sqrt(np.mean(p * (1 - p), axis=0) / n_draws)
    assert np.all(np.abs(found - p.mean(axis=0)) < 5 * error + 1e-6)


@pytest.mark.parametrize("n_draws", [1, 7, 300])
def test_labels_belong_to_their_draw(n_draws):
    """Draw s of the labels comes from draw s of the weights: certain ones show their argmax."""
    X, columns, weights, log_p = case(40, 3, n_draws)
    drawn = labels(make_mesh(), X, columns, 1e6 * weights, KEY)
    assert np.array_equal(drawn, log_p.argmax(axis=2))


def test_rows_are_drawn_independently():
    """Equal rows of equal probability get different labels, in one draw as across draws."""
    X, columns, weights, _ = case(500, 2, 200)
    drawn = labels(make_mesh(), np.repeat(X[:1], 600, axis=0), columns, 0 * weights, KEY)
    # Standard errors of a frequency of one half among 600 rows and among 200 draws.
    assert np.all(np.abs(drawn.mean(axis=1) - 0.5) < 5 * 0.5 / np.sqrt(600))
    assert np.all(np.abs(drawn.mean(axis=0) - 0.5) < 5 * 0.5 / np.sqrt(200))


def test_key_decides_the_labels():
    """The same key gives the same labels, another key other ones."""
    X, columns, weights, _ = case(40, 3, 10)
    first, again, other = (
        labels(make_mesh(), X, columns, weights, jax.random.PRNGKey(seed)) for seed in (0, 0, 1)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
