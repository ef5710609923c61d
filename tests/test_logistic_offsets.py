"""BayesianLogisticRegression: columns far from zero, and intercepts held at zero."""

import numpy as np
import pytest
from scipy import sparse
from scipy.special import expit

from skbayes_shard import BayesianLogisticRegression

RNG = np.random.default_rng(0)
Z = RNG.normal(size=(60, 3))
Y = (Z[:, 0] + RNG.normal(size=60) > 0).astype(int)
METHODS = ["hmc", "svi"]


def exact(rows, precision):
    """Mean and sd of weights with a Normal prior, by importance sampling from Laplace.

    Good to about 0.5 % of a standard deviation with 200,000 draws.
    """
    w = np.zeros(rows.shape[1])
    for _ in range(50):
        p = expit(rows @ w)
        hessian = (rows * (p * (1 - p))[:, None]).T @ rows + precision
        w = w + np.linalg.solve(hessian, rows.T @ (Y - p) - precision @ w)
    root = np.linalg.cholesky(np.linalg.inv(hessian))
    rng = np.random.default_rng(1)
    t = rng.standard_t(8, size=(200_000, len(w)))
    draws = w + t @ root.T
    logits = draws @ rows.T
    log_p = logits @ Y - np.logaddexp(0, logits).sum(axis=1)
    log_p -= 0.5 * np.einsum("ni,ij,nj->n", draws, precision, draws)
    log_p += 4.5 * np.log1p(t**2 / 8).sum(axis=1)
    weight = np.exp(log_p - log_p.max())
    mean = weight @ draws / weight.sum()
    return mean, np.sqrt(weight @ (draws - mean) ** 2 / weight.sum())


def check(found, truth):
    """Means within 0.15 sd and sds within 10 %: the noise of 2,000 draws is half of that."""
    mean, sd = truth
    np.testing.assert_allclose((found[0] - mean) / sd, 0, atol=0.15)
    np.testing.assert_allclose(found[1] / sd, 1, atol=0.1)


def moments(model):
    return model.coef_[0], model.coef_std_[0]


def fit(X, method, **options):
    return BayesianLogisticRegression(method=method, random_state=0, **options).fit(X, Y)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("offset", [1e6, 1e9, 1e12])
def test_two_columns_far_from_zero(method, offset):
    """Only ``x1 - x2`` is free: ``w2 = -w1`` under N(0, 1/2), and a level as it likes."""
    X = Z[:, :2] + offset
    model = fit(X, method)
    difference = np.column_stack([X[:, 0] - X[:, 1], np.ones(60)])
    # The mean logit is b + offset * (w1 + w2), so wide that it is flat.
    mean, sd = exact(difference, np.diag([2.0, 0.0]))
    check((model.coef_[0, :1], model.coef_std_[0, :1]), (mean[:1], sd[:1]))
    np.testing.assert_allclose(model.coef_[0].sum(), 0, atol=3 / offset)
    draws = model.sample_posterior()
    level = draws["coef"][:, 0].astype(float) @ X.mean(axis=0) + draws["intercept"][:, 0]
    centred = difference - [difference[:, 0].mean(), 0]
    check(([level.mean()], [level.std()]), tuple(a[1:] for a in exact(centred, np.diag([2, 0.0]))))
    # The intercept keeps its prior: sd 1 with an error of 2 % or 5 %.
    np.testing.assert_allclose([model.intercept_[0], model.intercept_std_[0]], [0, 1], atol=0.15)
    p = expit(level[:, None] + draws["coef"][:, 0].astype(float) @ (X - X.mean(axis=0)).T)
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], p.mean(axis=0), atol=2e-3)


@pytest.mark.parametrize("method", METHODS)
def test_seconds_since_1970(method):
    """Two columns of unix time, 10 s wide: finite, converged, and they order the rows."""
    X = 1.7e9 + 10 * Z[:, :2]
    model = fit(X, method, prior_scale=0.1)
    mean, sd = exact(np.column_stack([X[:, 0] - X[:, 1], np.ones(60)]), np.diag([200.0, 0.0]))
    check((model.coef_[0, :1], model.coef_std_[0, :1]), (mean[:1], sd[:1]))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scale", [1e-6, 1e-9, 1e-12, 1e-15])
def test_intercepts_held_at_zero(method, scale):
    """An intercept that the prior pins at zero is as good as none."""
    model = fit(Z, method, intercept_prior_scale=scale)
    check(moments(model), exact(Z, np.eye(3)))
    assert 0.9 < model.intercept_std_[0] / scale < 1.1


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix], ids=["dense", "sparse"])
@pytest.mark.parametrize("offset", [50.0, 1e4, 1e7])
def test_full_columns_with_an_intercept(method, form, offset):
    """A column far from zero has the same posterior stored as it may be."""
    X = Z[:, :1] + offset
    model = fit(form(X), method, intercept_prior_scale=1e3)
    rows = np.column_stack([Z[:, 0], np.ones(60)])
    # Of the weight and the logit at offset: a - offset * w ~ N(0, 1e6).
    lean = np.array([[-offset, 1.0]])
    truth = exact(rows, np.diag([1.0, 0.0]) + lean.T @ lean / 1e6)
    check(moments(model), tuple(a[:1] for a in truth))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix], ids=["dense", "sparse"])
@pytest.mark.parametrize("offset", [50.0, 1e5, 1e9])
def test_no_intercept(method, form, offset):
    """Two columns far from zero stand in for the intercept with their sum."""
    X = Z[:, :2] + offset
    model = fit(form(X), method, fit_intercept=False)
    # In u = w1 - w2 and a = offset * (w1 + w2): w = ((a / offset) +- u) / 2.
    to_w = np.array([[0.5, 0.5 / offset], [-0.5, 0.5 / offset]])
    rows = Z[:, :2] @ to_w + [0, 1]
    mean, sd = exact(rows, to_w.T @ to_w)
    draws = model.sample_posterior()["coef"][:, 0].astype(float)
    given = np.column_stack([draws[:, 0] - draws[:, 1], offset * draws.sum(axis=1)])
    check((given.mean(axis=0), given.std(axis=0)), (mean, sd))
    p = expit(draws @ X.T).mean(axis=0)
    np.testing.assert_allclose(model.predict_proba(form(X))[:, 1], p, atol=2e-3)
    assert not np.any(model.intercept_)


@pytest.mark.parametrize("method", METHODS)
def test_three_classes(method):
    """Softmax too: a column and its own image at 1e8 share one posterior mean difference."""
    label = np.digitize(Z[:, 0] + 0.5 * Z[:, 1], [-0.5, 0.5])
    far = BayesianLogisticRegression(method=method, random_state=0, prior_scale=0.5)
    far.fit(Z[:, :2] + 1e8, label)
    # sd 0.5 / sqrt(2) for each sign: the same model in the difference alone, with a wide level.
    near = BayesianLogisticRegression(
        method=method, random_state=0, prior_scale=0.5 / np.sqrt(2), intercept_prior_scale=1e6
    ).fit(Z[:, :1] - Z[:, 1:2], label)
    # Contrasts only: the shift common to all classes has no data.
    contrast = [c[:, 0] - c[:, 0].mean() for c in (far.coef_, near.coef_)]
    np.testing.assert_allclose(*contrast, atol=0.06)
    np.testing.assert_allclose(
        far.predict_proba(Z[:, :2] + 1e8), near.predict_proba(Z[:, :1] - Z[:, 1:2]), atol=0.03
    )
