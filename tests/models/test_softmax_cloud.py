"""Expectations under Gaussians, row by row, against quadrature and Monte Carlo in NumPy."""

import re

import jax
import numpy as np
import pytest

from skbayes_shard.models import softmax_cloud
from skbayes_shard.models.softmax_curvature import gaussian_of
from tests.inference.gaussian_kl import NearestGaussian, whole
from tests.softmax_problem import make_problem

FORMS = ["dense", "blocks", "kronecker", "diagonal"]
SEED = 0


def posterior(problem, form):
    """A Gaussian with the curvature at the centre, and a mean besides it."""
    zero = np.zeros((1, *problem.shape), np.float32)
    gaussian = problem.model.gaussian(form, zero, problem.data)
    mean = 0.3 * np.random.default_rng(1).normal(size=problem.shape).astype(np.float32)
    return gaussian, mean


def draws(gaussian, mean, n):
    """Antithetic draws of the Gaussian, in float64."""
    z = np.random.default_rng(2).normal(size=(n // 2, *mean.shape)).astype(np.float32)
    away = np.asarray(gaussian.colour(z), np.float64)
    return mean + np.concatenate([away, -away])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("wide", [1.0, 10.0])
def test_two_classes_equal_quadrature(form, wide):
    """Value to 1e-4 of a nat and gradient to 1e-3 of a posterior slope, without any noise."""
    problem = make_problem(37, weighted=True, scales=(wide, 2.0))
    gaussian, mean = posterior(problem, form)
    q = problem.model.marginals(gaussian, problem.data, 64, SEED)
    value, grad = problem.model.expected(mean, q, problem.data)
    nearest = NearestGaussian(problem)
    n = nearest.n
    _, covariance = whole(mean, gaussian)
    factor = np.linalg.cholesky(covariance[:n, :n])
    entropy = np.sum(np.log(np.diagonal(factor))) + 0.5 * n * np.log(2 * np.pi * np.e)

    def right(m):
        return nearest.elbo(m, factor) - entropy - nearest.log_joint(np.zeros((1, n)))[0]

    padded = 0.5 * (np.sum(mean[0, n:] ** 2) + np.trace(covariance[n:, n:]))
    np.testing.assert_allclose(value, right(mean[0, :n]) - padded, rtol=1e-4, atol=1e-3)
    step = 1e-4
    by_hand = [
        (right(mean[0, :n] + step * unit) - right(mean[0, :n] - step * unit)) / (2 * step)
        for unit in np.eye(n)
    ]
    sd = np.sqrt(np.diagonal(covariance)[:n])
    np.testing.assert_allclose(grad[0, :n] * sd, by_hand * sd, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("n_classes", [3, 5])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_more_classes_equal_draws(form, sparse, n_classes):
    """Value, gradient and curvature are those of 40,000 draws, within 5 of their errors.

    The errors themselves are below 0.03 nats and 0.02 of a posterior slope.
    """
    problem = make_problem(60, n_classes, sparse=sparse, weighted=True, most_rows=32)
    gaussian, mean = posterior(problem, form)
    model, data = problem.model, problem.data
    q = model.marginals(gaussian, data, 256, SEED)
    value, grad = model.expected(mean, q, data)
    delta = draws(gaussian, mean, 40_000).astype(np.float32)
    values, grads = (np.asarray(a, np.float64) for a in model.value_and_grad(delta, data))
    half = len(delta) // 2
    values, grads = (0.5 * (a[:half] + a[half:]) for a in (values, grads))
    error = values.std() / np.sqrt(half)
    assert error < 0.03
    assert abs(value - values.mean()) < 5 * error + 1e-3
    sd = np.sqrt(np.asarray(gaussian.variance())).reshape(mean.shape)
    error = sd * grads.std(axis=0) / np.sqrt(half)
    assert error.max() < 0.02
    assert np.all(np.abs(grad - grads.mean(axis=0)) * sd < 5 * error + 0.01)
    found = gaussian_of(form, model.expected_curvature(form, mean, q, data, None))
    points = model.gaussian(form, delta[:: len(delta) // 2000], data)
    np.testing.assert_allclose(found.variance(), points.variance(), rtol=0.02)


@pytest.mark.parametrize("n_classes", [2, 3, 4])
@pytest.mark.parametrize("n_nodes", [1, 2, 3, 64, 100_000])
def test_any_number_of_nodes(n_classes, n_nodes):
    """Weights add up to one, nodes have mean zero and unit covariance, in groups."""
    problem = make_problem(5000, n_classes)
    found = softmax_cloud._nodes(
        problem.model, problem.data.rows, n_nodes, np.random.default_rng(0)
    )
    weights = np.asarray(found.weights, np.float64)
    points = np.asarray(found.points, np.float64)
    assert points.shape == (*weights.shape, n_classes - 1)
    assert weights.size >= n_nodes
    np.testing.assert_allclose(weights.sum(), 1, rtol=1e-5)
    np.testing.assert_allclose(np.einsum("gs,gsc->c", weights, points), 0, atol=1e-5)
    square = np.einsum("gs,gsc,gsd->cd", weights, points, points)
    if n_nodes > 1 or n_classes > 3:
        np.testing.assert_allclose(np.diagonal(square), 1, rtol=1e-4)
    if n_nodes > 3:
        np.testing.assert_allclose(square, np.eye(n_classes - 1), atol=1e-4)


def test_padded_rows_count_never():
    """What a padded row expects is nothing, and stays finite."""
    one, many = (make_problem(33, 3, most_rows=most) for most in (4096, 32))
    found = []
    for problem in (one, many):
        gaussian, mean = posterior(problem, "dense")
        q = problem.model.marginals(gaussian, problem.data, 512, SEED)
        value, grad = problem.model.expected(mean, q, problem.data)
        found.append(np.append(grad, value))
    assert np.all(np.isfinite(found))
    # Signs fall on other rows, so the two are equal but for the error of the nodes.
    np.testing.assert_allclose(*found, atol=0.02)


def test_like_keeps_the_basis():
    """Curvatures in one basis can be averaged: their mean is that of both clouds together."""
    problem = make_problem(60, 3)
    model, data = problem.model, problem.data
    gaussian, mean = posterior(problem, "kronecker")
    q = model.marginals(gaussian, data, 64, SEED)
    first = model.expected_curvature("kronecker", mean, q, data, None)
    second = model.expected_curvature("kronecker", -mean, q, data, first)
    assert np.array_equal(first.basis, second.basis)
    assert np.array_equal(first.rotation, second.rotation)
    assert not np.allclose(first.precision, second.precision)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_one_all_reduce(sparse):
    """Value and gradient are reduced together, without a scatter."""
    problem = make_problem(100, 3, sparse=sparse)
    gaussian, mean = posterior(problem, "diagonal")
    q = problem.model.marginals(gaussian, problem.data, 64, SEED)
    lowered = softmax_cloud.expected.lower(problem.model, mean, q, problem.data.rows)
    text = lowered.compile().as_text()
    assert len(re.findall(r"stablehlo\.all_reduce", lowered.as_text())) == 1
    assert "scatter(" not in text


def test_wide_rows_never_need_a_square_matrix():
    """The prior of a diagonal Gaussian is averaged column by column, at any width."""
    problem = make_problem(37, n_columns=3)
    gaussian, mean = posterior(problem, "diagonal")
    prior = problem.data.prior
    program = jax.jit(lambda g: prior.expected_square(g)).lower(gaussian).as_text()
    width = problem.shape[1]
    assert f"tensor<{width}x{width}xf32>" not in program
    _, covariance = whole(mean, gaussian)
    right = np.trace(prior.precision() @ covariance)
    np.testing.assert_allclose(prior.expected_square(gaussian), right, rtol=1e-5)
    np.testing.assert_allclose(prior.precision_diagonal(), np.diagonal(prior.precision()))
