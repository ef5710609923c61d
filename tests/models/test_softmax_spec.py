"""The NumPyro model against an independent transcription of the model's definition.

Two classes: one weight vector, logit = b0 + x'w. Three or more: one vector for each class,
softmax. Weights N(0, prior_scale²), intercepts N(0, intercept_prior_scale²), on X as given; a
row's log likelihood is multiplied by its weight.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density

from skbayes_shard.models.softmax import numpyro_model
from tests.softmax_problem import make_problem, problem_of, to_classes


def transcription(X, label, weight, n_classes, scales):
    """The definition, line by line, on columns as given."""
    vectors = 1 if n_classes == 2 else n_classes
    w = numpyro.sample("w", dist.Normal(0, scales[0]).expand([vectors, X.shape[1]]).to_event(2))
    b0 = numpyro.sample("b0", dist.Normal(0, scales[1]).expand([vectors]).to_event(1))
    logits = X @ w.T + b0
    if n_classes == 2:
        row = dist.Bernoulli(logits=logits[:, 0])
    else:
        row = dist.Categorical(logits=logits)
    numpyro.factor("y", jnp.sum(weight * row.log_prob(label)))


def spec_of(problem):
    """The package's model, as a compiled function of its sites and a batch."""

    @jax.jit
    def value(sites, data, batch=None):
        return log_density(numpyro_model, (problem.model, data, batch), {}, sites)[0]

    return lambda beta, batch=None: float(
        value(
            {"coef": jnp.asarray(beta[:, 1:]), "intercept": jnp.asarray(beta[:, 0])},
            problem.data,
            batch,
        )
    )


def definition_of(problem):
    """The transcription, as a function of coefficients and intercepts as given."""
    args = (problem.dense, problem.label, problem.weight, problem.n_classes, problem.scales)

    def value(coef, intercept):
        with jax.enable_x64(True):
            return float(log_density(transcription, args, {}, {"w": coef, "b0": intercept})[0])

    return value


def laid_out(problem, coef, intercept):
    """The same point in scaled columns, and the constant between the two densities."""
    used, shift, scale = problem.affine()
    beta = np.zeros((len(coef), problem.shape[1]))
    beta[:, 0] = intercept + coef[:, used] @ shift
    beta[:, 1 : 1 + len(used)] = coef[:, used] * scale
    # The change of coordinates, padded standard normals at zero, and the likelihood at the centre.
    padding = problem.shape[1] - 1 - len(used)
    constant = -len(coef) * (np.sum(np.log(scale)) + padding * 0.5 * np.log(2 * np.pi))
    constant += np.sum(problem.weight) * np.log(problem.n_classes)
    return beta.astype(np.float32), constant


def vectors_of(n_classes):
    """Two classes have one weight vector, more have one each."""
    return 1 if n_classes == 2 else n_classes


@pytest.mark.parametrize("n_classes", [2, 3, 5])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_spec_is_the_definition(n_classes, sparse):
    """Log densities agree, constants included, at several points."""
    problem = make_problem(37, n_classes, sparse=sparse, weighted=True, scales=(0.3, 4.0))
    spec, definition = spec_of(problem), definition_of(problem)
    rng, vectors = np.random.default_rng(1), vectors_of(n_classes)
    for _ in range(3):
        coef, intercept = rng.normal(size=(vectors, 3)), rng.normal(size=vectors)
        beta, constant = laid_out(problem, coef, intercept)
        np.testing.assert_allclose(spec(beta), definition(coef, intercept) + constant, rtol=1e-5)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_spec_in_awkward_columns(n_classes):
    """Years and constant columns keep the prior on X as given."""
    base, rng = make_problem(37, n_classes), np.random.default_rng(2)
    years = rng.integers(1990, 2020, size=37)
    X = np.column_stack([base.X[:, 0], years, np.full(37, 2.0), base.X[:, 1]])
    problem, vectors = problem_of(X, base.label, n_classes), vectors_of(n_classes)
    coef, intercept = rng.normal(size=(vectors, 4)) * [1, 1e-3, 1, 1], rng.normal(size=vectors)
    beta, constant = laid_out(problem, coef, intercept)
    exact = definition_of(problem)(coef, intercept) + constant
    np.testing.assert_allclose(spec_of(problem)(beta), exact, rtol=1e-4)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_spec_and_density_agree(n_classes):
    """Where all classes shift by nothing in common, spec and density differ by a constant."""
    problem = make_problem(37, n_classes, weighted=True, scales=(0.7, 2.5))
    delta = np.random.default_rng(3).normal(size=(4, *problem.shape)).astype(np.float32)
    lift = np.ones((1, 1)) if n_classes == 2 else to_classes(n_classes)
    spec = list(map(spec_of(problem), np.einsum("ck,scp->skp", lift, delta)))
    value = np.asarray(jax.jit(problem.model.log_density)(delta, problem.data))
    np.testing.assert_allclose(np.diff(spec), np.diff(value), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_spec_takes_mini_batches(n_classes):
    """With a batch, its scaled likelihood takes the place of the full one."""
    problem = make_problem(40, n_classes, batch_size=10)
    spec, shape = spec_of(problem), (vectors_of(n_classes), problem.shape[1])
    beta = np.random.default_rng(4).normal(size=shape).astype(np.float32)
    batches = [spec(beta, jnp.int32(batch)) for batch in range(4)]
    np.testing.assert_allclose(np.mean(batches), spec(beta), rtol=1e-5)
    assert np.ptp(batches) > 0.1
