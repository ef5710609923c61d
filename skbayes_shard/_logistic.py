"""BayesianLogisticRegression: the front door of softmax and logistic regression."""

from __future__ import annotations

from functools import partial
from numbers import Real
from typing import Any, ClassVar

import jax
import numpy as np
import scipy.sparse as sp
from sklearn.base import ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from skbayes_shard._base import BayesEstimator, Inference, Model, draw
from skbayes_shard._labels import encode_labels, encode_weights
from skbayes_shard._posterior import Posterior, deviation
from skbayes_shard._sklearn_compat import Interval, StrOptions
from skbayes_shard.models import softmax_predictive
from skbayes_shard.models.columns import Columns, measure, require_float32
from skbayes_shard.models.design import lay_out
from skbayes_shard.models.pivot import Pivot, choose_pivot
from skbayes_shard.models.prior import Prior, log_normal
from skbayes_shard.models.softmax import Softmax, SoftmaxData, make_prior, numpyro_model
from skbayes_shard.models.softmax_coordinates import as_given, join, laid_out, split, spread
from skbayes_shard.models.softmax_curvature import choose_form, choose_quick_form
from skbayes_shard.models.softmax_kernel import Rows, contrasts
from skbayes_shard.sharding import batch_layout, block_layout, make_mesh

# Numbers in a block of rows: about what a core's cache holds.
_BLOCK_ENTRIES = 2**19
# Sparse blocks are densified one at a time for the curvature, so they may be larger.
_SPARSE_BLOCK_ENTRIES = 2**24
# Nodes that integrate over a row's logit, and logits at all nodes of all rows for more classes.
_LINE_NODES = 64
_NODE_WORK = 2**24
# Draws behind the standard deviations of a variational fit: at most so many, and numbers.
_MOST_DRAWN = 4096
_DRAWN_ENTRIES = 2**22
# Squares of scales, and their inverses, must fit in float32.
_POSITIVE = Interval(Real, 1e-15, 1e15, closed="both")


class BayesianLogisticRegression(ClassifierMixin, BayesEstimator):
    """Bayesian logistic and softmax regression, sharded over every device.

    Two classes have one weight vector: the logit of the second class is ``b + x'w``. Three or
    more have one each, through a softmax, treated symmetrically. All weights are
    ``Normal(0, prior_scale**2)`` and intercepts ``Normal(0, intercept_prior_scale**2)``, on the
    columns of X *as given*. The log posterior density is, up to a constant, ::

        sum_i sample_weight_i * log p(y_i | x_i, w, b)
            - |w|**2 / (2 * prior_scale**2) - |b|**2 / (2 * intercept_prior_scale**2)

    Parameters
    ----------
    method : {"hmc", "svi"}, default="hmc"
        ``"hmc"`` draws from the exact posterior by Hamiltonian Monte Carlo; ``"svi"`` fits a
        Gaussian to it.
    prior_scale : float, default=1.0
        Prior standard deviation of the weights, in units of 1 / column. Smaller shrinks more.
    intercept_prior_scale : float, default=1.0
        Prior standard deviation of the intercepts, in logits.
    fit_intercept : bool, default=True
        Whether there are intercepts.
    n_chains : int, default=4
        Chains of ``"hmc"``, run side by side in one program whatever the number of devices.
    n_warmup : int, default=200
        Steps of each chain that adapt the sampler and are dropped.
    n_draws : int, default=500
        Draws kept of each chain, or of the Gaussian for ``"svi"``. Predictions average over
        them.
    sampler : {"split", "leapfrog"}, default="split"
        ``"split"`` integrates a Gaussian reference of the posterior exactly and needs a few
        gradients a draw. ``"leapfrog"`` is plain HMC with a unit metric (in units of the
        prior) and a fixed number of steps, for comparison.
    n_leapfrog : int, default=None
        Gradients of a trajectory. None adapts it (``"split"``) or takes 100 (``"leapfrog"``).
    guide : {"structured", "mean_field", "low_rank"}, default="structured"
        Family of ``"svi"``. ``"structured"`` has a full covariance, or one structured as the
        posterior is where that would be too large; the others are NumPyro's ``AutoNormal`` and
        ``AutoLowRankMultivariateNormal``.
    max_iter : int, default=None
        Largest number of iterations: of the climb to the mode (``"hmc"``, 500), of natural
        gradient steps (``"structured"``, 200) or of optimiser steps (other guides, 5000).
    tol : float, default=None
        Tolerance: largest gradient at the mode in posterior standard deviations (``"hmc"``,
        0.01), largest move of a mean in the same or of a standard deviation in itself
        (``"structured"``, 0.01), rise of the ELBO over a quarter of the steps in nats for each
        coefficient (other guides, 0.01; None also takes a rise that is lost in the noise of
        the ELBO, after 2,000 steps).
    learning_rate : float, default=None
        Length of a natural gradient step (``"structured"``, 1) or Adam's rate in posterior
        standard deviations (other guides, 0.02). Not used by ``"hmc"``.
    num_particles : int, default=None
        Nodes at which ``"structured"`` averages each row: 64 for two classes, from 32 to 512
        (fewer where there are many rows) for more. Draws in each estimate of the ELBO for other
        guides: 1, and more turn it into ``RenyiELBO``. Not used by ``"hmc"``.
    batch_size : int, default=None
        Rows of a mini-batch, for the guides ``"mean_field"`` and ``"low_rank"``. None uses all.
    class_weight : dict or "balanced", default=None
        Weights of classes, multiplied with ``sample_weight``.
    devices : int or list of int, default=None
        Devices to use: the first so many, or those at these positions in ``jax.devices()``.
        None uses all.
    precision : {"float32", "tensorfloat32", "bfloat16"}, default="float32"
        Of the two matrix products with X in the density and its gradient. Sums are float32.
        The middle one differs from the first on GPUs and TPUs only.
    random_state : int, RandomState instance or None, default=None
        Seed. The same seed on the same number of devices gives the same draws.
    verbose : int, default=0
        1 shows a progress bar (needs tqdm).

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels, sorted.
    coef_ : ndarray of shape (n_classes, n_features) or (1, n_features)
        Posterior means of the weights.
    coef_std_ : ndarray of the same shape
        Posterior standard deviations of the weights.
    intercept_ : ndarray of shape (n_classes,) or (1,)
        Posterior means of the intercepts.
    intercept_std_ : ndarray of the same shape
        Posterior standard deviations of the intercepts.
    n_features_in_ : int
        Number of features seen by ``fit``.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of features, where X has string names.
    n_iter_ : int
        Iterations used of ``max_iter``.
    posterior_ : Posterior
        The draws.
    sampler_stats_ : dict
        For ``"hmc"``: ``step_size``, ``accept_prob`` and ``diverging`` (of each chain),
        ``n_gradients`` (of each draw), ``gradients_per_draw``, and ``log_density`` of shape
        (n_chains, n_draws). For ``"svi"``: ``elbo`` of each iteration, and for ``"structured"``
        ``mean_error``, the Monte Carlo error of the mean in posterior standard deviations (root
        mean square).

    See Also
    --------
    sklearn.linear_model.LogisticRegression : Point estimates.

    Notes
    -----
    With ``method="svi"`` ``coef_`` is the exact mean of the Gaussian and ``coef_std_`` comes from
    up to 4,096 of its draws; ``summary()`` tabulates the ``n_draws`` that are kept, so that it
    differs by their Monte Carlo error. Intercepts are float64, and take up what the rounding of
    the weights would change.

    The likelihood is evaluated on centred and scaled columns in float32, as differences from
    a centre near the posterior, so that columns may differ in scale by many orders and totals
    may be large. Columns that are zero in every row keep their prior. X may be sparse; it is
    then never made dense as a whole.

    Warns with scikit-learn's ``ConvergenceWarning`` where chains disagree (rank-normalised R-hat
    above 1.01), effective samples are few, trajectories diverge, or the ELBO still moves.

    References
    ----------
    .. [1] Shahbaba, Lan, Johnson and Neal (2014). Split Hamiltonian Monte Carlo. Statistics
       and Computing 24.
    .. [2] Opper and Archambeau (2009). The variational Gaussian approximation revisited. Neural
       Computation 21.
    .. [3] Kingma, Salimans and Welling (2015). Variational dropout and the local
       reparameterization trick. NeurIPS 28.
    .. [4] Vehtari, Gelman, Simpson, Carpenter and Buerkner (2021). Rank-normalization, folding,
       and localization. Bayesian Analysis 16.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skbayes_shard import BayesianLogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> model = BayesianLogisticRegression(method="svi", random_state=0).fit(X, y)
    >>> model.predict(X[:2])
    array([0, 0])
    >>> model.sample_posterior(n_draws=10, random_state=0)["coef"].shape
    (10, 3, 4)
    """

    _parameter_constraints: ClassVar[dict] = {
        **BayesEstimator._parameter_constraints,
        "prior_scale": [_POSITIVE],
        "intercept_prior_scale": [_POSITIVE],
        "fit_intercept": ["boolean"],
        "class_weight": [dict, StrOptions({"balanced"}), None],
    }

    def __init__(
        self,
        *,
        method="hmc",
        prior_scale=1.0,
        intercept_prior_scale=1.0,
        fit_intercept=True,
        n_chains=4,
        n_warmup=200,
        n_draws=500,
        sampler="split",
        n_leapfrog=None,
        guide="structured",
        max_iter=None,
        tol=None,
        learning_rate=None,
        num_particles=None,
        batch_size=None,
        class_weight=None,
        devices=None,
        precision="float32",
        random_state=None,
        verbose=0,
    ):
        self.method = method
        self.prior_scale = prior_scale
        self.intercept_prior_scale = intercept_prior_scale
        self.fit_intercept = fit_intercept
        self.n_chains = n_chains
        self.n_warmup = n_warmup
        self.n_draws = n_draws
        self.sampler = sampler
        self.n_leapfrog = n_leapfrog
        self.guide = guide
        self.max_iter = max_iter
        self.tol = tol
        self.learning_rate = learning_rate
        self.num_particles = num_particles
        self.batch_size = batch_size
        self.class_weight = class_weight
        self.devices = devices
        self.precision = precision
        self.random_state = random_state
        self.verbose = verbose

    # ------------------------------------------------------------ fit

    def fit(self, X, y, sample_weight=None):
        """Infer the posterior of the coefficients.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Features.
        y : array-like of shape (n_samples,)
            Class labels of any type, two classes or more.
        sample_weight : array-like of shape (n_samples,), default=None
            Factors of each row's log likelihood; 2 is the same as giving the row twice, 0 as
            leaving it out.

        Returns
        -------
        self : BayesianLogisticRegression
            The fitted estimator.

        Raises
        ------
        ValueError
            If a parameter or the data are invalid; says which and where.
        FloatingPointError
            If the computation leaves the finite numbers. The object is then unfitted.
        ImportError
            If ``method="hmc"`` and TensorFlow Probability cannot be imported.
        """
        with self._all_or_nothing():
            self._validate_params()
            self._check_engine()
            mesh = make_mesh(self.devices)
            X, label, weight = self._encode(X, y, sample_weight)
            rng = check_random_state(self.random_state)
            columns = measure(X, centre=self.fit_intercept and not sp.issparse(X))
            self._columns_ = columns = columns.felt(self.prior_scale)
            self._pivot_ = choose_pivot(columns, *self._scales(), self.fit_intercept)
            model, data = self._lay_out(mesh, X, label, weight, columns, self._pivot_, rng)
            inference = self._infer(model, data, rng)
            self._publish(inference, model.real, data.prior, rng)
        return self

    def _encode(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, np.ndarray, np.ndarray]:
        X, y = validate_data(
            self, X, y, dtype=[np.float64, np.float32], accept_sparse="csr", multi_output=True
        )
        require_float32(X)
        self.classes_, label = encode_labels(y)
        return X, label, encode_weights(sample_weight, self.class_weight, X, y)

    def _lay_out(
        self,
        mesh: Any,
        X: Any,
        label: np.ndarray,
        weight: np.ndarray,
        columns: Columns,
        pivot: Pivot | None,
        rng: np.random.RandomState,
    ) -> tuple[Model, SoftmaxData]:
        n_rows, n_classes = X.shape[0], len(self.classes_)
        if self.batch_size is None or self.batch_size >= n_rows:
            entries = _SPARSE_BLOCK_ENTRIES if sp.issparse(X) else _BLOCK_ENTRIES
            most = 2 ** int(np.log2(max(entries // columns.width, 64)))
            layout, n_batches = block_layout(n_rows, mesh.size, min(most, 4096)), 1
        else:
            layout = batch_layout(n_rows, mesh.size, self.batch_size, rng)
            n_batches = layout.shape[0] // mesh.size
        uniform = np.full(
            (layout.shape[0], n_classes, layout.shape[1]), -np.log(n_classes), np.float32
        )
        rows = Rows(
            lay_out(X, columns, layout.order, self.fit_intercept, pivot),
            layout.spread(label),
            layout.spread(weight),
            uniform,
        )
        prior = make_prior(columns, *self._scales(), self.fit_intercept, pivot)
        real = columns.real(self.fit_intercept)
        centre = np.zeros((n_classes - 1, columns.width), np.float32)
        density = Softmax(mesh, n_classes, self.precision)
        data = density.place(SoftmaxData(rows, prior, centre, np.float32(n_batches)))
        model = Model(
            density=density,
            spec=numpyro_model,
            form=choose_form(*centre.shape),
            quick_form=choose_quick_form(*centre.shape),
            n_batches=n_batches,
            n_particles=_nodes(n_rows, n_classes),
            split=split,
            join=join,
            real=real if pivot is None else pivot.real(real),
            spread=partial(spread, n_classes),
        )
        return model, data

    def _publish(
        self,
        inference: Inference,
        real: np.ndarray,
        prior: Prior,
        rng: np.random.RandomState,
    ) -> None:
        columns, draws = self._columns_, inference.draws
        # What later draws need stays as fitted, whatever set_params does.
        self._prior_scales_ = self._scales()
        self._has_intercept_ = self.fit_intercept
        self._approximation_ = inference.approximation
        coef, intercept = self._coefficients(draws, rng)
        log_density = inference.log_density
        if log_density is not None:
            # Of all that is published: what was not sampled adds its prior.
            padding = log_normal(draws[..., ~real], 1.0)
            sampled = prior.log_density(draws) - padding
            log_density = log_density - sampled + self._log_prior(coef, intercept)
        names = getattr(self, "feature_names_in_", None)
        names = [f"x{j}" for j in range(columns.n_columns)] if names is None else list(names)
        rows = list(self.classes_[1:] if len(self.classes_) == 2 else self.classes_)
        named, labels = {"coef": coef}, {"coef": [rows, names]}
        if self._has_intercept_:
            named["intercept"], labels["intercept"] = intercept, [rows]
        independent = inference.approximation is not None
        self.posterior_ = Posterior(named, labels, log_density, independent)
        self.sampler_stats_ = inference.stats
        self.n_iter_ = inference.n_iter
        if independent:
            mean = self._coefficients(inference.approximation[0][None, None], None)
            coef, intercept = self._many_draws(rng)
        else:
            mean = coef, intercept
        self.coef_ = mean[0].mean(axis=(0, 1), dtype=np.float64).astype(coef.dtype)
        self.intercept_ = mean[1].mean(axis=(0, 1))
        self.coef_std_ = deviation(coef, (0, 1)).astype(coef.dtype)
        self.intercept_std_ = deviation(intercept, (0, 1))

    def _scales(self) -> tuple[float, float]:
        return self.prior_scale, self.intercept_prior_scale

    def _log_prior(self, coef: np.ndarray, intercept: np.ndarray) -> np.ndarray:
        value = log_normal(coef, self._prior_scales_[0])
        if self._has_intercept_:
            value += log_normal(intercept[..., None], self._prior_scales_[1])
        return value

    def _many_draws(self, rng: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients from as many fresh draws of a Gaussian as make precise deviations."""
        n = int(np.clip(_DRAWN_ENTRIES // self._approximation_[0].size, self.n_draws, _MOST_DRAWN))
        key = jax.random.PRNGKey(rng.randint(2**31 - 1))
        return self._coefficients(draw(self._approximation_, key, n)[None], rng)

    def _coefficients(
        self, beta: np.ndarray, rng: np.random.RandomState | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients and intercepts of columns as given, from laid out coordinates.

        Adds what the likelihood does not see, drawn from the prior (or zero without ``rng``):
        the shift common to all classes, and the columns that are zero in every row.
        """
        columns, n_classes = self._columns_, len(self.classes_)
        if n_classes > 2 and beta.shape[-2] == n_classes - 1:
            beta = np.einsum("kc,...cp->...kp", contrasts(n_classes).astype(np.float32), beta)
            common = rng is not None
        else:
            common = False
        lead, n_used = beta.shape[:-1], len(columns.used)
        known, intercept = as_given(columns, self._pivot_, beta)
        coef = np.zeros((*lead, columns.n_columns), known.dtype)
        if rng is not None and n_used < columns.n_columns:
            unused = np.setdiff1d(np.arange(columns.n_columns), columns.used)
            coef[..., unused] = self._prior_scales_[0] * rng.standard_normal((*lead, len(unused)))
        coef[..., columns.used] = known
        if common:
            shape = (*lead[:-1], 1, n_used)
            scale = 1 / np.sqrt(n_classes)
            shift = self._prior_scales_[0] * scale * rng.standard_normal(shape)
            coef[..., columns.used] += shift
            intercept += self._prior_scales_[1] * scale * rng.standard_normal(shape[:-1])
        return coef, intercept if self._has_intercept_ else np.zeros_like(intercept)

    def _fresh_draws(self, n_draws: int, rng: np.random.RandomState) -> dict[str, np.ndarray]:
        key = jax.random.PRNGKey(rng.randint(2**31 - 1))
        beta = draw(self._approximation_, key, n_draws)
        drawn = dict(zip(("coef", "intercept"), self._coefficients(beta, rng), strict=True))
        return {name: drawn[name] for name in self.posterior_.draws}

    # ------------------------------------------------------------ predict

    def predict_proba(self, X, return_std=False):
        """Return posterior mean class probabilities.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Features.
        return_std : bool, default=False
            Whether to return posterior standard deviations as well.

        Returns
        -------
        proba : ndarray of shape (n_samples, n_classes), float32
            Probabilities averaged over the posterior draws, never exactly 0 or 1.
        std : ndarray of the same shape
            Posterior standard deviation of each probability, NaN where the fit kept a single
            draw; only with ``return_std``.
        """
        log_mean, std = self._probabilities(X)
        proba = np.exp(log_mean - _log_sum(log_mean))
        # Rounding to 0 or 1 would claim a certainty that no finite posterior has.
        proba = np.clip(proba, _TINY, 1 - np.finfo(np.float32).epsneg)
        return (proba, std) if return_std else proba

    def predict_log_proba(self, X):
        """Return logarithms of the posterior mean class probabilities.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Features.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Log probabilities, averaged in log space: precise in the tails.
        """
        log_mean, _ = self._probabilities(X)
        return log_mean - _log_sum(log_mean)

    def decision_function(self, X):
        """Return scores that order classes as :meth:`predict_proba` does.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Features.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_classes)
            Log odds of the posterior mean probability for two classes, else its logarithm by
            class.
        """
        log_mean, _ = self._probabilities(X)
        if len(self.classes_) == 2:
            return log_mean[:, 1] - log_mean[:, 0]
        return log_mean - _log_sum(log_mean)

    def predict(self, X):
        """Return the most probable class.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Features.

        Returns
        -------
        ndarray of shape (n_samples,)
            Class labels.
        """
        log_mean, _ = self._probabilities(X)
        return self.classes_[np.argmax(log_mean, axis=1)]

    def sample_predictive(self, X, n_draws=None, random_state=None):
        """Draw labels from the posterior predictive distribution.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Features.
        n_draws : int, default=None
            Number of posterior draws, one label of each row for each. None uses all kept.
        random_state : int, RandomState instance or None, default=None
            Seed.

        Returns
        -------
        ndarray of shape (n_draws, n_samples)
            Class labels.
        """
        X = self._checked(X)
        rng = check_random_state(random_state)
        columns = self._predict_columns(X)
        weights = laid_out(columns, self._chosen_draws(n_draws, rng))
        key = jax.random.PRNGKey(rng.randint(2**31 - 1))
        found = softmax_predictive.labels(self._predict_mesh(), X, columns, weights, key)
        return self.classes_[found]

    def _probabilities(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        X = self._checked(X)
        columns = self._predict_columns(X)
        weights = laid_out(columns, self._chosen_draws(None, None))
        return softmax_predictive.probabilities(self._predict_mesh(), X, columns, weights)

    def _checked(self, X: Any) -> Any:
        check_is_fitted(self, "posterior_")
        X = validate_data(self, X, dtype=[np.float64, np.float32], accept_sparse="csr", reset=False)
        require_float32(X)
        return X

    def _predict_mesh(self) -> Any:
        try:
            return make_mesh(self.devices)
        except ValueError:
            # Fitted elsewhere, on devices that this machine does not have.
            return make_mesh(None)

    def _predict_columns(self, X: Any) -> Columns:
        """Columns of the fit; sparse rows stay where they are unless they are far from zero."""
        return self._columns_.near_zero() if sp.issparse(X) else self._columns_

    def __sklearn_tags__(self):
        """Declare that sparse X is taken."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _nodes(n_rows: int, n_classes: int) -> int:
    """Nodes of the structured fit: fewer where many rows average their errors out.

    Powers of two, so that folds share programs.
    """
    if n_classes == 2:
        return _LINE_NODES
    return int(2 ** np.clip(np.floor(np.log2(_NODE_WORK / (n_rows * n_classes))), 5, 9))


_TINY = np.finfo(np.float32).tiny


def _log_sum(log_p: np.ndarray) -> np.ndarray:
    return np.logaddexp.reduce(log_p, axis=1, keepdims=True)
