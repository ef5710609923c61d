"""The mode against SciPy's, found in float64 on columns as given."""

import numpy as np
import pytest
from scipy.optimize import minimize

from skbayes_shard.inference.mode import find_mode
from tests.inference.quartic import Quartic
from tests.softmax_problem import make_problem, problem_of


def reached(problem, form="dense", max_iter=500, tol=5e-4):
    """Climb from zero, preconditioned by the curvature there."""
    start = np.zeros((1, *problem.shape), np.float32)
    gaussian = problem.model.gaussian(form, start, problem.data)
    return find_mode(problem.model, problem.data, gaussian, max_iter, tol)


def objective(flat, problem):
    """Penalised negative log likelihood and gradient: the classical estimate, plain NumPy."""
    beta = flat.reshape(problem.shape)
    return -problem.log_density(beta), -problem.gradient(beta).ravel()


def best(problem):
    """SciPy's maximum in the same coordinates."""
    start = np.zeros(int(np.prod(problem.shape)))
    found = minimize(objective, start, (problem,), "BFGS", True, options={"gtol": 1e-7})
    return found.x.reshape(problem.shape)


def spread(problem, beta):
    """Posterior standard deviations at the mode, from finite differences."""
    size, step = beta.size, 1e-5
    units = step * np.eye(size).reshape(size, *beta.shape)
    rows = [(problem.gradient(beta - u) - problem.gradient(beta + u)).ravel() for u in units]
    covariance = np.linalg.inv(np.array(rows) / (2 * step))
    return np.sqrt(np.diagonal(covariance)).reshape(beta.shape)


def assert_mode(problem, top, within=0.02):
    """Within a fiftieth of a standard deviation, and the value there is the highest."""
    exact = best(problem)
    assert np.abs((np.asarray(top.data.centre) - exact) / spread(problem, exact)).max() < within


@pytest.mark.parametrize("n_classes", [2, 3, 5])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("scales", [(1.0, 1.0), (0.1, 10.0), (30.0, 30.0)], ids=str)
def test_mode(n_classes, sparse, scales):
    """The penalised maximum likelihood estimate, with the intercept penalised by its own prior."""
    problem = make_problem(60, n_classes, sparse=sparse, weighted=True, scales=scales)
    assert_mode(problem, reached(problem))


@pytest.mark.parametrize("tol", [0.1, 0.01, 1e-3])
@pytest.mark.parametrize("scales", [(1.0, 1.0), (30.0, 30.0)], ids=str)
def test_climb_ends_where_it_says(tol, scales):
    """No gradient in the coordinates of the climb exceeds the tolerance at the end."""
    problem = make_problem(60, 3, weighted=True, scales=scales)
    start = np.zeros((1, *problem.shape), np.float32)
    gaussian = problem.model.gaussian("diagonal", start, problem.data)
    top = find_mode(problem.model, problem.data, gaussian, 500, tol)
    slope = np.abs(problem.gradient(np.asarray(top.data.centre)) * np.asarray(gaussian.scale)).max()
    assert slope <= tol + 1e-4
    assert abs(slope - top.slope) < 1e-4


@pytest.mark.parametrize("intercept", [True, False])
def test_estimate_of_scikit_learn(intercept):
    """Two classes with a wide prior on the intercept: LogisticRegression with C = scale²."""
    from sklearn.linear_model import LogisticRegression

    problem = make_problem(200, 2, intercept=intercept, scales=(0.5, 1e4))
    top = reached(problem)
    coef, offset, _ = problem.as_given(np.asarray(top.data.centre, np.float64))
    classical = LogisticRegression(C=0.25, fit_intercept=intercept, tol=1e-8, max_iter=1000)
    classical.fit(problem.X, problem.label)
    np.testing.assert_allclose(coef, classical.coef_, rtol=5e-3, atol=5e-3)
    if intercept:
        np.testing.assert_allclose(offset, classical.intercept_, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("form", ["dense", "blocks", "kronecker", "diagonal"])
def test_any_preconditioner_leads_there(form):
    """The coordinates of the climb change its length, not its end."""
    problem = make_problem(100, 3)
    assert_mode(problem, reached(problem, form))


def test_columns_in_other_units():
    """A column a million times larger or smaller is climbed as easily."""
    base = make_problem(100, 2)
    for units in (1e6, 1e-6):
        problem = problem_of(base.X * [1, units, 1], base.label, 2)
        top = reached(problem)
        assert top.n_iter < 50
        assert_mode(problem, top)


def test_separated_classes():
    """Perfect separation has a finite mode, because the prior holds it."""
    X = np.repeat([[-1.0], [1.0]], 10, axis=0)
    problem = problem_of(X, np.repeat([0, 1], 10), 2, scales=(10.0, 10.0))
    assert_mode(problem, reached(problem))


def test_log_density_at_the_mode():
    """The value that comes along is the density at the centre, and counts iterations."""
    density = Quartic(3)
    data = density.data(centre=2.0)
    gaussian = density.gaussian("dense", np.zeros((1, 1, 3), np.float32), data)
    top = find_mode(density, data, gaussian, 100, 1e-4)
    found = minimize(lambda x: -density.value(x[None], np), np.zeros(3), tol=1e-10)
    np.testing.assert_allclose(top.data.centre[0], found.x, atol=1e-3)
    np.testing.assert_allclose(top.log_density, -found.fun, atol=1e-5)
    assert 1 <= top.n_iter <= 100


def test_too_few_iterations_are_told():
    """A climb that is cut short says so by its slope."""
    problem = make_problem(100, 3, scales=(100.0, 100.0))
    top = reached(problem, "diagonal", max_iter=1)
    assert top.slope > 0.01
    assert top.n_iter == 1


def test_densities_that_are_not_finite_raise():
    """NaN is an error that names what to turn, not a mode."""

    class Broken(Quartic):
        def value(self, x, xp=np):
            return super().value(x) * np.nan

    density = Broken(1)
    gaussian = Quartic(1).gaussian("dense", np.zeros((1, 1, 1), np.float32), Quartic(1).data())
    with pytest.raises(FloatingPointError, match="prior_scale"):
        find_mode(density, density.data(), gaussian, 10, 0.01)
