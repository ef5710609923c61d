"""The Gaussian nearest to a two-class posterior, by quadrature and SciPy in float64.

A row sees the coefficients through one number, so its expected log likelihood under a Gaussian
is a one-dimensional integral, which 40 Gauss-Hermite nodes give to many digits.
"""

import numpy as np
from scipy.optimize import minimize

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(40)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


class NearestGaussian:
    """ELBO of Gaussians over the coordinates of a problem that are not padding.

    Parameters
    ----------
    problem : tests.softmax_problem.Problem
        With two classes and an intercept.
    """

    def __init__(self, problem):
        assert problem.n_classes == 2
        assert problem.intercept
        self.problem, self.n = problem, 1 + len(problem.affine()[0])
        to_given = []
        for unit in np.eye(problem.shape[1])[: self.n]:
            coef, intercept, _ = problem.as_given(unit[None])
            to_given.append(np.r_[intercept, coef[0, problem.affine()[0]]])
        self.to_given = np.array(to_given).T
        self.x = np.column_stack([np.ones(len(problem.dense)), problem.dense]) @ self.to_given
        self.sign = 2.0 * problem.label - 1
        scales = np.r_[problem.scales[1], np.full(self.n - 1, problem.scales[0])]
        self.root = self.to_given / scales[:, None]

    def log_joint(self, beta):
        """Log likelihood plus normalised log prior at points (m, n)."""
        eta = self.sign * (beta @ self.x.T)
        prior = -0.5 * np.sum((beta @ self.root.T) ** 2, axis=1) + self._constant()
        return -np.logaddexp(0, -eta) @ self.problem.weight + prior

    def elbo(self, mean, factor):
        """Expected log joint plus entropy, for covariance ``factor factor'``."""
        eta = (self.x @ mean)[:, None] + np.linalg.norm(self.x @ factor, axis=1)[:, None] * _NODES
        rows = -np.logaddexp(0, -self.sign[:, None] * eta) @ _WEIGHTS
        square = np.sum((self.root @ mean) ** 2) + np.sum((self.root @ factor) ** 2)
        entropy = np.sum(np.log(np.abs(np.diagonal(factor)))) + 0.5 * self.n * np.log(
            2 * np.pi * np.e
        )
        return rows @ self.problem.weight - 0.5 * square + self._constant() + entropy

    def best(self, diagonal=False):
        """Mean and factor of the highest ELBO among full or factorised Gaussians."""
        lower = np.diag_indices(self.n) if diagonal else np.tril_indices(self.n)

        def unpack(flat):
            factor = np.zeros((self.n, self.n))
            factor[lower] = flat[self.n :]
            on = np.diag_indices(self.n)
            factor[on] = np.exp(factor[on])
            return flat[: self.n], factor

        start = np.zeros(self.n + len(lower[0]))
        found = minimize(lambda flat: -self.elbo(*unpack(flat)), start, method="BFGS")
        return unpack(found.x)

    def log_evidence(self, mean, factor, n=40):
        """Log normaliser by Gauss-Hermite quadrature around a Gaussian, made wider."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(n)
        z = np.stack(np.meshgrid(*[nodes] * self.n, indexing="ij"), -1).reshape(-1, self.n)
        log_w = np.log(np.prod(np.stack(np.meshgrid(*[weights] * self.n), -1), -1)).ravel()
        wide = 1.3 * factor
        beta = mean + z @ wide.T
        log_q = -0.5 * np.sum(z**2, axis=1) - np.sum(np.log(np.diagonal(wide)))
        return np.logaddexp.reduce(log_w + self.log_joint(beta) - log_q)

    def compare(self, mean, covariance, exact):
        """Shift of the mean in standard deviations, ratio of deviations, correlations."""
        m, factor = exact
        right, found = factor @ factor.T, covariance[: self.n, : self.n]
        sd, found_sd = np.sqrt(np.diagonal(right)), np.sqrt(np.diagonal(found))
        shift = np.abs(mean[: self.n] - m) / sd
        correlation = found / found_sd / found_sd[:, None] - right / sd / sd[:, None]
        return shift.max(), found_sd / sd, np.abs(correlation).max()

    def _constant(self):
        log_det = np.linalg.slogdet(self.root)[1]
        return log_det - 0.5 * self.n * np.log(2 * np.pi)


def whole(mean, gaussian):
    """Mean and dense covariance of the package's Gaussian, flat, in float64."""
    shape = np.shape(mean)
    size = int(np.prod(shape))
    a = np.asarray(gaussian.colour(np.eye(size, dtype=np.float32).reshape(size, *shape)))
    a = a.reshape(size, size).astype(np.float64)
    return np.asarray(mean, np.float64).ravel(), a.T @ a
