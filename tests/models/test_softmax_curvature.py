"""Curvature of softmax regression against finite differences of the gradient in NumPy."""

import jax
import numpy as np
import pytest

from skbayes_shard.models import softmax_curvature
from skbayes_shard.models.softmax_cloud import Points
from skbayes_shard.models.softmax_curvature import choose_form, gaussian_at
from tests.softmax_problem import make_problem, precisions, problem_of, to_classes

FORMS = ["dense", "blocks", "kronecker", "diagonal"]


def hessian(problem, beta, step=1e-5):
    """Negative Hessian of the log density, by central differences of its gradient."""
    size = int(np.prod(problem.shape))
    rows = []
    for direction in step * np.eye(size).reshape(size, *problem.shape):
        change = problem.gradient(beta - direction) - problem.gradient(beta + direction)
        rows.append(change.ravel() / (2 * step))
    return np.array(rows)


def class_weights(problem, points):
    """``diag p - p p'`` in contrasts, weighted and averaged over points: (rows, free, free)."""
    to, total = to_classes(problem.n_classes), 0
    for beta in points:
        p = np.exp(problem.log_p(beta))
        by_row = np.einsum("bk,ak,ck->bac", p, to, to) - np.einsum("ba,bc->bac", p @ to.T, p @ to.T)
        total = total + by_row * problem.weight[:, None, None]
    return total / len(points)


def laid_out(problem):
    """The rows in laid out coordinates: the derivatives of their logits."""
    columns = []
    for j in range(problem.shape[1]):
        unit = np.zeros((1, problem.shape[1]))
        unit[0, j] = 1.0
        coef, intercept, _ = problem.as_given(unit)
        columns.append(problem.dense @ coef[0] + intercept[0])
    return np.array(columns).T


def expected(problem, form, precision, points):
    """Covariance of a form by its definition, from the exact mean Hessian."""
    free, width = problem.shape
    if form == "dense":
        return np.linalg.inv(precision)
    if form == "diagonal":
        return np.diag(1 / np.diagonal(precision))
    weights = class_weights(problem, points)
    _, rotation = np.linalg.eigh(weights.sum(axis=0))
    if form == "blocks":
        basis, keep = np.kron(rotation, np.eye(width)), np.kron(np.eye(free), np.ones([width] * 2))
        return basis @ np.linalg.inv((basis.T @ precision @ basis) * keep) @ basis.T
    x = laid_out(problem)
    mean = np.trace(weights, axis1=1, axis2=2) / free
    prior = hessian(problem_of(problem.X, problem.label, problem.n_classes, scales=problem.scales,
                               weight=np.zeros(len(x)), intercept=problem.intercept),
                    np.zeros(problem.shape))[:width, :width]  # fmt: skip
    _, columns = np.linalg.eigh((x.T * mean) @ x + prior)
    basis = np.kron(rotation, columns)
    return basis @ np.diag(1 / np.diagonal(basis.T @ precision @ basis)) @ basis.T


def covariance(gaussian, shape):
    """``A A'``, with ``A`` from colouring the identity."""
    size = int(np.prod(shape))
    a = np.asarray(gaussian.colour(np.eye(size, dtype=np.float32).reshape(size, *shape)))
    a = a.reshape(size, size).astype(np.float64)
    return a.T @ a


def assert_same_covariance(found, exact):
    """Compare in units of the standard deviations."""
    sd = np.sqrt(np.diagonal(exact))
    np.testing.assert_allclose(found / sd / sd[:, None], exact / sd / sd[:, None], atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n_classes", [2, 3, 4])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_forms(form, n_classes, sparse):
    """Dense is the inverse mean Hessian, the others keep the parts of it that they say."""
    problem = make_problem(100, n_classes, sparse=sparse, weighted=True, scales=(0.7, 2.5))
    step = np.full(problem.shape, 0.1, np.float32)
    data, _ = problem.model.recentred(step, problem.data)
    points = 0.5 * np.random.default_rng(1).normal(size=(3, *problem.shape)).astype(np.float32)
    gaussian = gaussian_at(problem.model, form, Points(points), data)
    there = points.astype(float) + step
    precision = np.mean([hessian(problem, beta) for beta in there], axis=0)
    exact = expected(problem, form, precision, there)
    assert_same_covariance(covariance(gaussian, problem.shape), exact)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("intercept", [True, False])
def test_all_rows_are_seen(form, intercept):
    """Blocks of rows are added up; without an intercept its place keeps the prior."""
    one, many = (make_problem(500, 3, most_rows=most, intercept=intercept) for most in (4096, 64))
    points = np.zeros((1, *one.shape), np.float32)
    found, exact = (
        covariance(gaussian_at(p.model, form, Points(points), p.data), p.shape) for p in (many, one)
    )
    assert_same_covariance(found, exact)
    if not intercept:
        np.testing.assert_allclose(exact[0, :], np.eye(len(exact))[0], atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n_classes", [3, 10])
def test_separated_classes_under_a_wide_prior(form, n_classes):
    """Probabilities near 0 and 1 leave a small curvature, never a negative one."""
    problem = make_problem(2000, n_classes, scales=(1000.0, 1000.0))
    beta = 5 * np.random.default_rng(2).normal(size=problem.shape).astype(np.float32)
    data, _ = problem.model.recentred(beta, problem.data)
    points = np.zeros((1, *problem.shape), np.float32)
    found = np.diagonal(
        covariance(gaussian_at(problem.model, form, Points(points), data), problem.shape)
    )
    assert np.all(np.isfinite(found))
    if form == "diagonal":
        exact = 1 / np.diagonal(hessian(problem, beta.astype(float)))
        np.testing.assert_allclose(found, exact, rtol=1e-3)


@pytest.mark.parametrize(
    ("n_free", "width", "form"),
    [(1, 8, "dense"), (9, 792, "dense"), (1, 8192, "dense"), (99, 784, "blocks"),
     (20, 8192, "kronecker"), (1, 20_000, "diagonal")],
)  # fmt: skip
def test_choice_of_form(n_free, width, form):
    """The most exact form that is worth its size."""
    assert choose_form(n_free, width) == form


def test_curvature_is_full_precision():
    """No product of the curvature is left to the device's default precision."""
    problem = make_problem(37, 3)
    points, turn = np.zeros((1, *problem.shape), np.float32), np.eye(2, dtype=np.float32)
    basis = np.eye(problem.shape[1], dtype=np.float32)
    programs = {
        "_pairs": (), "_mean_class_weight": (), "_blocks": (turn,), "_diagonal": (turn,),
        "_projected": (turn, basis),
    }  # fmt: skip
    found = {
        name: precisions(
            getattr(softmax_curvature, name)
            .lower(problem.model, Points(points), problem.data.rows, *rest)
            .as_text()
        )
        for name, rest in programs.items()
    }
    assert found == {name: {"HIGHEST"} for name in programs}


@pytest.mark.parametrize("form", FORMS)
def test_gaussian_is_placed(form):
    """The density's own method puts the same Gaussian on the mesh."""
    problem = make_problem(37, 3)
    points = np.zeros((1, *problem.shape), np.float32)
    placed = problem.model.gaussian(form, points, problem.data)
    there = gaussian_at(problem.model, form, Points(points), problem.data)
    for leaf, exact in zip(jax.tree.leaves(placed), jax.tree.leaves(there), strict=True):
        assert isinstance(leaf, jax.Array)
        assert leaf.sharding.device_set == set(problem.model.mesh.devices.flat)
        np.testing.assert_allclose(leaf, exact, rtol=1e-5, atol=1e-6)
