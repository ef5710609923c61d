"""Log density and gradient of softmax regression against plain NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from skbayes_shard._logistic import BayesianLogisticRegression
from skbayes_shard.models import softmax
from skbayes_shard.models.columns import measure
from skbayes_shard.sharding import make_mesh
from tests.softmax_problem import make_problem, precisions, problem_of

RNG = np.random.default_rng(0)


def displacements(problem, m=3, size=0.5):
    return (size * RNG.normal(size=(m, *problem.shape))).astype(np.float32)


def evaluate(problem, delta, data=None):
    found = jax.jit(problem.model.value_and_grad)(delta, problem.data if data is None else data)
    return tuple(np.asarray(part, np.float64) for part in found)


def assert_close(found, exact, rtol=1e-5):
    """Compare relative to the largest number, since sums cancel in the others."""
    assert np.shape(found) == np.shape(exact)
    assert np.abs(np.asarray(found) - exact).max() <= rtol * np.abs(exact).max()


def assert_right(problem, delta, data=None, centre=0.0):
    """Value and gradient equal the differences that NumPy finds."""
    value, grad = evaluate(problem, delta, data)
    there = problem.log_density(np.zeros(problem.shape) + centre)
    assert_close(value, [problem.log_density(d + centre) - there for d in delta.astype(float)])
    assert_close(grad, [problem.gradient(d + centre) for d in delta.astype(float)])


@pytest.mark.parametrize("n_rows", [1, 3, 37, 1000])
@pytest.mark.parametrize("n_classes", [2, 3, 10])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_log_density_and_gradient(n_rows, n_classes, sparse):
    """Differences from the centre at zero, for weighted rows and priors of other scales."""
    problem = make_problem(n_rows, n_classes, sparse=sparse, weighted=True, scales=(0.7, 2.5))
    assert_right(problem, displacements(problem))


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_without_intercept(n_classes, sparse):
    """Columns keep their origin; the intercept's place is left to a standard normal."""
    problem = make_problem(37, n_classes, sparse=sparse, intercept=False, scales=(2.0, 0.1))
    assert_right(problem, displacements(problem))


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_rows_in_several_blocks(n_classes, sparse):
    """Blocks are added up, the last one padded."""
    problem = make_problem(1000, n_classes, sparse=sparse, most_rows=64)
    assert problem.layout.shape[0] > 10
    assert_right(problem, displacements(problem))


@pytest.mark.parametrize("column", [0.0, 1.0, 1e-6, 1e6], ids="{:g}".format)
def test_constant_column(column):
    """A constant column acts as a second intercept with its own prior, or not at all if zero."""
    base = make_problem(37, 3)
    X = np.column_stack([base.X, np.full(37, column)])
    problem = problem_of(X, base.label, 3)
    assert_right(problem, displacements(problem))


@pytest.mark.parametrize("n_classes", [2, 3, 10])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_recentred(n_classes, sparse):
    """Moving the centre moves what differences refer to, twice as well as once."""
    problem = make_problem(100, n_classes, sparse=sparse, weighted=True, scales=(0.7, 2.5))
    data, centre = problem.data, np.zeros(problem.shape)
    for step in displacements(problem, m=2):
        data, log_density = problem.model.recentred(step, data)
        centre = centre + step
        np.testing.assert_allclose(data.centre, centre, rtol=1e-5, atol=1e-6)
        scales = np.ones(problem.shape[1])
        used, _, scale = problem.affine()
        scales[: 1 + len(used)] = np.r_[2.5, 0.7 * scale]
        constant = -problem.shape[0] * np.sum(np.log(scales * np.sqrt(2 * np.pi)))
        np.testing.assert_allclose(log_density, problem.log_density(centre) + constant, rtol=1e-5)
        assert_right(problem, displacements(problem), data, centre)


def test_prior_is_counted_once():
    """With weights of zero the log density is the prior's alone."""
    base = make_problem(37, 3)
    problem = problem_of(base.X, base.label, 3, weight=np.zeros(37), scales=(0.5, 2.0))
    assert_right(problem, displacements(problem))


def test_extreme_logits_stay_finite():
    """Logits of a few thousand give finite values and gradients, without a clip."""
    problem = make_problem(37, 3)
    assert_right(problem, displacements(problem, size=3e3))


@pytest.mark.parametrize("n_classes", [2, 3])
def test_autodiff_gets_the_fused_gradient(n_classes):
    """Gradients through ``log_density`` equal those of ``value_and_grad``, scaled or not."""
    problem = make_problem(37, n_classes, weighted=True)
    delta = displacements(problem)
    value, grad = evaluate(problem, delta)
    weights = jnp.asarray([1.0, -2.0, 0.5])

    def total(delta):
        found = problem.model.log_density(delta, problem.data)
        return weights @ found, found

    (_, found), by_autodiff = jax.jit(jax.value_and_grad(total, has_aux=True))(delta)
    assert_close(found, value, rtol=1e-6)
    assert_close(by_autodiff, grad * np.asarray(weights)[:, None, None], rtol=1e-6)


# ---------------------------------------------------------------- mini-batches


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_mini_batches(n_classes, sparse):
    """A batch's log likelihood is that of its rows, multiplied by its scale."""
    problem = make_problem(37, n_classes, sparse=sparse, weighted=True, batch_size=10)
    delta = displacements(problem)
    likelihood = jax.jit(problem.model.log_likelihood)
    for batch, block in enumerate(problem.layout.order):
        rows = block[block >= 0]
        there = problem.log_likelihood(np.zeros(problem.shape), rows)
        exact = [problem.log_likelihood(d, rows) - there for d in delta.astype(float)]
        found = likelihood(delta, problem.data, jnp.int32(batch))
        assert_close(found, 4 * np.array(exact))


@pytest.mark.parametrize("n_rows", [5, 37, 40, 41])
def test_mini_batches_average_to_all_rows(n_rows):
    """Visited equally often, as they are, batches give every row the same weight."""
    base = make_problem(n_rows, 3)
    estimator = BayesianLogisticRegression(method="svi", guide="mean_field", batch_size=10)
    estimator.classes_ = np.arange(3)
    columns, weight = measure(base.X, centre=True), np.ones(n_rows, np.float32)
    model, data = estimator._lay_out(
        make_mesh(), base.X, base.label, weight, columns, None, np.random.RandomState(0)
    )
    delta = displacements(base)
    found = [
        jax.jit(base.model.log_likelihood)(delta, data, jnp.int32(b))
        for b in range(model.n_batches)
    ]
    there = base.log_likelihood(np.zeros(base.shape))
    exact = [base.log_likelihood(d) - there for d in delta.astype(float)]
    assert_close(np.mean(found, axis=0), exact)


# ---------------------------------------------------------------- precision


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_bfloat16_is_coarser(sparse):
    """Rounded to eight bits, value and gradient change, but not by much."""
    full, coarse = (
        make_problem(1000, 3, sparse=sparse, precision=p) for p in ("float32", "bfloat16")
    )
    delta = displacements(full)
    for exact, found in zip(evaluate(full, delta), evaluate(coarse, delta), strict=True):
        assert 1e-4 < np.linalg.norm(found - exact) / np.linalg.norm(exact) < 1e-1


@pytest.mark.parametrize(("precision", "word"), [("float32", "HIGHEST"), ("tensorfloat32", "HIGH")])
def test_products_ask_for_their_precision(precision, word):
    """Products with the design carry the precision asked for, all others the full one."""
    problem = make_problem(37, 3, precision=precision)
    lowered = jax.jit(problem.model.value_and_grad).lower(displacements(problem), problem.data)
    found = precisions(lowered.as_text())
    assert word in found
    # "DEFAULT" is TF32 or bfloat16 on accelerators.
    assert found <= {word, "HIGHEST"}


@pytest.mark.parametrize("n_classes", [2, 3])
def test_recentring_is_full_precision(n_classes):
    """The logits at a new centre are exact, whatever the precision of the density."""
    problem = make_problem(37, n_classes, precision="bfloat16")
    delta = displacements(problem, m=1)[0]
    lowered = softmax._recentred.lower(problem.model, delta, problem.data)
    assert precisions(lowered.as_text()) == {"HIGHEST"}


# ---------------------------------------------------------------- float32 at scale


def test_energy_differences_of_many_rows():
    """With 300,000 rows, differences between posterior draws are right to 0.01."""
    problem = make_problem(300_000, 2, n_columns=4)
    model, data = problem.model, problem.data
    gaussian = model.gaussian("dense", np.zeros((1, *problem.shape), np.float32), data)
    # Three Newton steps, to stand where the posterior is.
    for _ in range(3):
        _, grad = jax.jit(model.value_and_grad)(np.zeros((1, *problem.shape), np.float32), data)
        data, _ = model.recentred(gaussian.colour(gaussian.colour_transposed(grad))[0], data)
        gaussian = model.gaussian("dense", np.zeros((1, *problem.shape), np.float32), data)
    delta = np.asarray(gaussian.colour(RNG.normal(size=(6, *problem.shape)).astype(np.float32)))
    value, _ = evaluate(problem, delta, data)
    centre = np.asarray(data.centre, np.float64)
    exact = np.array([problem.log_density(centre + d) for d in delta.astype(float)])
    error = (value[:, None] - value) - (exact[:, None] - exact)
    assert np.ptp(exact) > 1
    assert np.abs(error).max() < 0.01
