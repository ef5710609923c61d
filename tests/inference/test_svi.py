"""NumPyro's guides against the nearest Gaussians of their family, found by quadrature."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from skbayes_shard.inference.mode import find_mode
from skbayes_shard.inference.svi import Guide, Settings, approximation, fit_guide
from skbayes_shard.models.softmax import numpyro_model
from tests.inference.gaussian_kl import NearestGaussian, whole
from tests.softmax_problem import make_problem

KEY = jax.random.PRNGKey(0)
LONG = Settings(1, 3000, 0.02, 0.02)


def split(array):
    return {"coef": array[:, 1:], "intercept": array[:, 0]}


def join(sites):
    return np.concatenate([sites["intercept"][:, None], sites["coef"]], axis=1)


def climb(problem):
    """The data, centred at the mode."""
    start = np.zeros((1, *problem.data.centre.shape), np.float32)
    quick = problem.model.gaussian("dense", start, problem.data)
    return find_mode(problem.model, problem.data, quick, 500, 0.01).data


def fit(problem, guide, settings=LONG, key=KEY, tick=lambda steps: None):
    """Fit from the mode, in units of the curvature there, as the front door does."""
    model, data = problem.model, climb(problem)
    start = np.zeros((1, *data.centre.shape), np.float32)
    sd = np.sqrt(np.asarray(model.gaussian("diagonal", start, data).variance()))
    mean = np.asarray(data.centre)
    found = fit_guide(
        model, numpyro_model, guide, settings, data, split(mean), split(sd), key, tick
    )
    return found, approximation(guide, found.params, split(mean), join)


@pytest.fixture(scope="module", params=[1, 2], ids="{} columns".format)
def problem(request):
    return make_problem(40, n_columns=request.param, weighted=True, scales=(1.0, 2.0), seed=1)


@pytest.fixture(scope="module")
def nearest(problem):
    return NearestGaussian(problem)


def test_mean_field(problem, nearest):
    """Within Adam's noise of the best factorised Gaussian: 0.3 deviations, scales within 20 %."""
    found, (mean, gaussian) = fit(problem, Guide("mean_field"))
    mean, covariance = whole(mean, gaussian)
    shift, ratio, correlation = nearest.compare(mean, covariance, nearest.best(diagonal=True))
    assert found.converged
    assert shift < 0.3
    assert np.all(np.abs(ratio - 1) < 0.2)
    assert correlation < 1e-6
    padded = np.sqrt(np.diagonal(covariance))[nearest.n :]
    np.testing.assert_allclose(padded, 1, atol=0.2)
    np.testing.assert_allclose(mean[nearest.n :], 0, atol=0.3)


def test_low_rank(problem, nearest):
    """The best full Gaussian of two or three coordinates is within reach of a low rank."""
    found, approximate = fit(problem, Guide("low_rank"))
    shift, ratio, correlation = nearest.compare(*whole(*approximate), nearest.best())
    assert found.converged
    assert shift < 0.3
    assert np.all(np.abs(ratio - 1) < 0.2)
    assert correlation < 0.3


@pytest.mark.parametrize("kind", ["mean_field", "low_rank"])
def test_finer_settings_come_nearer(problem, nearest, kind):
    """A small tolerance and slow steps buy accuracy: 0.1 deviations, 6 %, correlations to 0.1."""
    fine = Settings(1, 9000, 1e-6, 0.005)
    _, approximate = fit(problem, Guide(kind), fine)
    best = nearest.best(diagonal=kind == "mean_field")
    shift, ratio, correlation = nearest.compare(*whole(*approximate), best)
    assert shift < 0.1
    assert np.all(np.abs(ratio - 1) < 0.06)
    assert correlation < 0.1


@pytest.mark.parametrize("kind", ["mean_field", "low_rank"])
def test_several_particles(problem, nearest, kind):
    """RenyiELBO with four particles is a tighter bound, of wider Gaussians about the same mean."""
    _, approximate = fit(problem, Guide(kind, num_particles=4))
    mean, covariance = whole(*approximate)
    shift, ratio, _ = nearest.compare(mean, covariance, nearest.best(diagonal=kind == "mean_field"))
    assert shift < 0.6
    assert np.all(ratio > 0.9)
    assert np.all(ratio < 1.6)


def test_elbo_is_that_of_quadrature():
    """The last ELBOs: expected log joint plus entropy, less the likelihood at the centre."""
    problem = make_problem(40, n_columns=1, scales=(1.0, 2.0), seed=1)
    nearest = NearestGaussian(problem)
    found, (mean, gaussian) = fit(problem, Guide("mean_field"))
    mean, covariance = whole(mean, gaussian)
    n = nearest.n
    right = nearest.elbo(mean[:n], np.sqrt(covariance[:n, :n]))
    centre = np.asarray(climb(problem).centre, np.float64)
    last = found.elbo[-400:] + problem.log_likelihood(centre)
    error = last.std() / np.sqrt(len(last))
    assert len(found.elbo) == found.n_iter
    assert abs(last.mean() - right) < 5 * error + 0.05


@pytest.mark.parametrize("kind", ["mean_field", "low_rank"])
def test_mini_batches(kind):
    """Batches of a quarter of the rows lead to the same Gaussian as all rows do."""
    options = {"n_columns": 1, "scales": (1.0, 2.0), "seed": 1}
    problem = make_problem(400, batch_size=100, **options)
    nearest = NearestGaussian(problem)
    guide, settings = Guide(kind, batched=True), LONG._replace(n_batches=4, tol=1e-5)
    _, approximate = fit(problem, guide, settings)
    best = nearest.best(diagonal=kind == "mean_field")
    shift, ratio, _ = nearest.compare(*whole(*approximate), best)
    assert shift < 0.3
    assert np.all(np.abs(ratio - 1) < 0.2)


def test_three_classes():
    """Every class has its row, centred on the mode's, and a common shift that keeps the prior."""
    problem = make_problem(100, 3, n_columns=2)
    to = np.array([[-np.sqrt(2 / 3), 0], [6**-0.5, -(2**-0.5)], [6**-0.5, 2**-0.5]])
    model = problem.model
    start = np.zeros((1, *problem.shape), np.float32)
    data = find_mode(model, problem.data, model.gaussian("dense", start, problem.data), 500, 0.01)
    mean = (to @ np.asarray(data.data.centre)).astype(np.float32)
    sd = np.full(mean.shape, 0.3, np.float32)
    guide = Guide("mean_field")
    found = fit_guide(
        model, numpyro_model, guide, LONG, data.data, split(mean), split(sd), KEY, lambda n: None
    )
    centre, gaussian = approximation(guide, found.params, split(mean), join)
    assert centre.shape == (3, problem.shape[1])
    assert np.abs((centre - mean) / np.asarray(gaussian.scale)).max() < 0.6
    np.testing.assert_allclose(centre.mean(axis=0), 0, atol=0.1)


# ---------------------------------------------------------------- convergence and control


def test_search_that_is_cut_short():
    """Fewer steps than it takes to judge the ELBO are no convergence."""
    ticks = []
    problem = make_problem(40, n_columns=1)
    found, _ = fit(problem, Guide("mean_field"), LONG._replace(max_iter=150), tick=ticks.append)
    assert not found.converged
    assert found.n_iter == len(found.elbo) == sum(ticks) == 150


def test_elbo_that_still_rises():
    """Steps so small that the ELBO keeps rising all the way do not converge."""
    problem = make_problem(2000, n_columns=2)
    data, model = problem.data, problem.model
    far = np.full(data.centre.shape, 3.0, np.float32)
    sd = np.full(data.centre.shape, 0.01, np.float32)
    found = fit_guide(
        model, numpyro_model, Guide("mean_field"), LONG._replace(max_iter=800, learning_rate=0.005),
        data, split(far), split(sd), KEY, lambda steps: None,
    )  # fmt: skip
    assert found.elbo[-100:].mean() > found.elbo[:100].mean()
    assert not found.converged
    assert found.n_iter == 800


def test_seed_decides_the_fit():
    """The same key gives the same guide to the bit, another key another one."""
    problem = make_problem(40, n_columns=1)
    short = LONG._replace(max_iter=200)
    first, again, other = (
        fit(problem, Guide("mean_field"), short, jax.random.PRNGKey(seed))[0] for seed in (0, 0, 1)
    )
    assert np.array_equal(first.elbo, again.elbo)
    assert all(np.array_equal(first.params[name], again.params[name]) for name in first.params)
    assert not np.array_equal(first.elbo, other.elbo)


def test_elbo_that_is_not_finite_raises():
    """NaN is an error that names what to turn."""

    def broken(model, data, batch=None):
        numpyro_model(model, data._replace(centre=data.centre * jnp.nan), batch)

    problem = make_problem(40, n_columns=1)
    sd = np.ones(problem.shape, np.float32)
    with pytest.raises(FloatingPointError, match="learning_rate"):
        fit_guide(
            problem.model, broken, Guide("mean_field"), LONG, problem.data, split(0 * sd),
            split(sd), KEY, lambda steps: None,
        )  # fmt: skip
