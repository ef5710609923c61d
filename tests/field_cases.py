"""Small inputs on which users of neighbouring tools met faults, and exact posteriors for them.

The generators draw from legacy ``RandomState`` streams, which NumPy has frozen. The references
know nothing of the package: they sum the posterior over a grid in float64.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np
from scipy.optimize import minimize

# Quick settings by engine. Every new shape is compiled anew, so the number of different programs
# counts: two warm-up windows of 50 steps and 50 draws are one.
FAST = {
    "hmc": {"method": "hmc", "n_chains": 2, "n_warmup": 100, "n_draws": 50},
    "svi": {"method": "svi", "n_draws": 50},
    "mean_field": {"method": "svi", "guide": "mean_field", "max_iter": 3000, "n_draws": 50},
}
LOG37_AT = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [2.0, -2.0]])


def expit(z):
    return 1.0 / (1.0 + np.exp(-z))


# ---------------------------------------------------------------- generators


def g_log37():
    """37 x 2, 17 positives."""
    rs = np.random.RandomState(0)
    X = rs.normal(size=(37, 2))
    y = (rs.uniform(size=37) < expit(X @ np.array([1.5, -1.0]) + 0.3)).astype(int)
    return X, y


def g_n3():
    """Three rows."""
    return np.array([[-1.0], [0.0], [1.0]]), np.array([0, 1, 1])


def g_k3():
    """31 x 1, three classes with 14, 9 and 8 rows."""
    rs = np.random.RandomState(2)
    n = 31
    x = rs.normal(size=n)
    Z = np.c_[x, np.ones(n)] @ np.array([[-1.5, 0.0, 1.5], [0.2, 0.5, -0.3]])
    P = np.exp(Z - Z.max(1, keepdims=True))
    P /= P.sum(1, keepdims=True)
    u = rs.uniform(size=n)
    y = np.array([np.searchsorted(np.cumsum(p), v) for p, v in zip(P, u, strict=True)])
    return x[:, None], y


def g_sep():
    """Perfect separation: ten rows on either side."""
    X = np.r_[-np.ones((10, 1)), np.ones((10, 1))]
    return X, np.r_[np.zeros(10, int), np.ones(10, int)]


def g_wt():
    """24 rows with weights 0, 1 and 2."""
    rs = np.random.RandomState(3)
    X = rs.normal(size=(24, 1))
    y = (rs.uniform(size=24) < expit(2 * X[:, 0])).astype(int)
    return X, y, np.r_[np.zeros(8), np.ones(8), 2 * np.ones(8)]


def g_col():
    """The same feature twice."""
    rs = np.random.RandomState(5)
    x = rs.normal(size=(41, 1))
    y = (rs.uniform(size=41) < expit(1.2 * x[:, 0] - 0.4)).astype(int)
    return np.hstack([x, x]), y


def g_imb():
    """2 positives in 200 rows."""
    x = np.random.RandomState(17).normal(size=(200, 1))
    y = np.zeros(200, int)
    y[np.argsort(-x[:, 0])[:2]] = 1
    return x, y


def g_mb():
    """1000 rows, for mini-batches."""
    rs = np.random.RandomState(9)
    x = rs.normal(size=(1000, 1))
    y = (rs.uniform(size=1000) < expit(x[:, 0] + 0.5)).astype(int)
    return x, y


# ---------------------------------------------------------------- exact posteriors


class Exact(NamedTuple):
    """Moments of (slopes, intercept), and mean and sd of P(1) at each row of ``at``."""

    mean: np.ndarray
    sd: np.ndarray
    proba: np.ndarray
    proba_sd: np.ndarray


def exact_logistic(X, y, at=None, *, weight=None, prior=1.0, intercept_prior=1.0, reach=9.0):
    """Two-class posterior by grid quadrature: class 0 pinned, Normal prior on X as given.

    The grid is a box of ``reach`` Laplace standard deviations around the mode, in whitened
    coordinates. ``intercept_prior=None`` leaves the intercept out.
    """
    X, y = np.asarray(X, float), np.asarray(y, float)
    at = X if at is None else np.asarray(at, float)
    weight = np.ones(len(y)) if weight is None else np.asarray(weight, float)
    precision = np.full(X.shape[1], 1 / prior**2)
    if intercept_prior is not None:
        X, at = np.c_[X, np.ones(len(X))], np.c_[at, np.ones(len(at))]
        precision = np.r_[precision, 1 / intercept_prior**2]
    mode, half = _mode_and_scale(X, y, weight, precision)
    n_points = {1: 2001, 2: 161, 3: 61}[X.shape[1]]
    axis = np.linspace(-reach, reach, n_points)
    z = np.stack(np.meshgrid(*[axis] * X.shape[1], indexing="ij"), -1).reshape(-1, X.shape[1])
    theta = mode + z @ half.T
    log_p = np.concatenate([_log_posterior(t, X, y, weight, precision) for t in _parts(theta)])
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    mean = p @ theta
    moments = np.zeros((2, len(at)))
    for part, share in zip(_parts(theta), _parts(p), strict=True):
        proba = expit(part @ at.T)
        moments += share @ proba, share @ proba**2
    sd = np.sqrt(p @ (theta - mean) ** 2)
    return Exact(mean, sd, moments[0], np.sqrt(moments[1] - moments[0] ** 2))


def _parts(array):
    return np.array_split(array, -(-len(array) // 50_000))


def _log_posterior(theta, X, y, weight, precision):
    eta = theta @ X.T
    return (y * eta - np.logaddexp(0, eta)) @ weight - 0.5 * theta**2 @ precision


def _mode_and_scale(X, y, weight, precision):
    theta = np.zeros(X.shape[1])
    for _ in range(200):
        p = expit(X @ theta)
        grad = X.T @ (weight * (y - p)) - precision * theta
        hessian = (X.T * (weight * p * (1 - p))) @ X + np.diag(precision)
        theta = theta + np.linalg.solve(hessian, grad) * 0.7
    return theta, np.linalg.inv(np.linalg.cholesky(hessian)).T


def best_gaussian(X, y, *, prior=1.0, intercept_prior=1.0):
    """Mean and sd of the full Gaussian nearest to the two-class posterior in KL(q || p).

    Each row sees the Gaussian through one number, its logit, so that the ELBO is a sum of
    one-dimensional integrals, done here with 80 Gauss-Hermite nodes.
    """
    X, y = np.c_[X, np.ones(len(X))], np.asarray(y, float)[:, None]
    d = X.shape[1]
    prior_precision = np.r_[np.full(d - 1, 1 / prior**2), 1 / intercept_prior**2]
    nodes, share = np.polynomial.hermite_e.hermegauss(80)
    share = share / share.sum()
    mode, half = _mode_and_scale(X, y[:, 0], np.ones(len(y)), prior_precision)
    lower = np.tril_indices(d)

    def unpack(t):
        root = np.zeros((d, d))
        root[lower] = t[d:]
        np.fill_diagonal(root, np.exp(np.diagonal(root)))
        return mode + half @ t[:d], half @ root

    def negative_elbo(t):
        mean, root = unpack(t)
        eta = (X @ mean)[:, None] + np.linalg.norm(X @ root, axis=1)[:, None] * nodes
        likelihood = np.sum((y * eta - np.logaddexp(0, eta)) @ share)
        square = mean**2 + np.sum(root**2, axis=1)
        return 0.5 * prior_precision @ square - likelihood - np.linalg.slogdet(root)[1]

    found = minimize(negative_elbo, np.zeros(d + len(lower[0])), method="BFGS").x
    mean, root = unpack(found)
    return mean, np.linalg.norm(root, axis=1)


# ---------------------------------------------------------------- compilations


@contextlib.contextmanager
def compilations() -> Iterator[list[str]]:
    """Collect the names of programs that XLA compiles meanwhile."""
    names: list[str] = []

    def listen(event, duration, **details):
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(details.get("fun_name", "?"))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield names
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
