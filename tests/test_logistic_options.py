"""BayesianLogisticRegression: what its options do, and when a fit says that it is not done."""

import re
import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from skbayes_shard import BayesianLogisticRegression
from tests import field_cases as cases
from tests.field_cases import LOG37_AT, exact_logistic

# Column of X by column of X: x, P(wolf), P(ant), P(cat). The prior is one N(0, 1) weight and
# intercept for each class; importance sampling, good to 0.002.
K3_TABLE = np.array([[-1, 0.706, 0.201, 0.093], [0, 0.280, 0.388, 0.332], [1, 0.062, 0.360, 0.578]])
ENGINES = [
    pytest.param({"method": "hmc"}, id="hmc"),
    pytest.param(
        {"method": "hmc", "sampler": "leapfrog", "n_leapfrog": 4},
        id="leapfrog",
        # Plain HMC with a fixed trajectory may mix too slowly for R-hat, and may say so.
        marks=pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    ),
    pytest.param({"method": "svi"}, id="structured"),
    pytest.param({"method": "svi", "guide": "mean_field"}, id="mean_field"),
    pytest.param({"method": "svi", "guide": "low_rank"}, id="low_rank"),
]


def fit(options, X, y, **fit_params):
    return BayesianLogisticRegression(**{"random_state": 0, **options}).fit(X, y, **fit_params)


def within(options):
    """Allowed error of a class probability."""
    exact = options["method"] == "hmc" or "guide" not in options
    return 0.02 if exact else 0.04


# ---------------------------------------------------------------- three classes


@pytest.mark.parametrize("options", ENGINES)
def test_three_classes_follow_the_table(options):
    """F43: P(wolf, ant, cat) at -1, 0, 1, in the sorted order of the labels' text."""
    X, y = cases.g_k3()
    labels = np.array(["wolf", "ant", "cat"])[y]
    model = fit(options, X, labels)
    assert model.classes_.tolist() == ["ant", "cat", "wolf"]
    proba = model.predict_proba(K3_TABLE[:, :1])
    np.testing.assert_allclose(proba, K3_TABLE[:, [2, 3, 1]], atol=within(options))
    assert model.predict(K3_TABLE[:, :1]).tolist() == ["wolf", "ant", "cat"]


@pytest.mark.parametrize("options", ENGINES[:3])
def test_common_shift_of_classes_keeps_its_prior(options):
    """Nothing is learned of the mean over classes: sd of prior_scale / sqrt(3), mean 0."""
    X, y = cases.g_k3()
    model = fit({**options, "n_draws": 2000, "prior_scale": 2.0}, X, y)
    coef, intercept = (model.posterior_.flat(name) for name in ("coef", "intercept"))
    shift = coef.mean(axis=1)[:, 0]
    assert shift.std() == pytest.approx(2 / np.sqrt(3), rel=0.06)
    assert abs(shift.mean()) < 0.1
    assert intercept.mean(axis=1).std() == pytest.approx(1 / np.sqrt(3), rel=0.06)
    # ... and it is independent of what is learned.
    learned = coef[:, 2, 0] - coef[:, 0, 0]
    assert abs(np.corrcoef(shift, learned)[0, 1]) < 0.1


@pytest.mark.parametrize("options", ENGINES[:3])
def test_columns_of_zeros_keep_their_prior(options):
    """A column of zeros: each class's coefficient is a draw from N(0, prior_scale)."""
    X, y = cases.g_k3()
    X = np.c_[np.zeros(len(X)), X, np.zeros(len(X))]
    model = fit({**options, "n_draws": 2000, "prior_scale": 0.5}, X, y)
    empty = model.posterior_.flat("coef")[:, :, [0, 2]].reshape(-1, 6)
    np.testing.assert_allclose(empty.std(axis=0), 0.5, rtol=0.08)
    np.testing.assert_allclose(empty.mean(axis=0), 0, atol=0.05)
    correlation = np.corrcoef(empty.T) - np.eye(6)
    assert np.abs(correlation).max() < 0.1


# ---------------------------------------------------------------- engines


@pytest.mark.parametrize("precision", ["float32", "tensorfloat32", "bfloat16"])
@pytest.mark.parametrize("options", ENGINES[::2])
def test_precisions(options, precision):
    """Every accepted precision fits; probabilities stay within 0.02 (0.04 for bfloat16)."""
    X, y = cases.g_log37()
    exact = exact_logistic(X, y, LOG37_AT)
    model = fit({**options, "precision": precision}, X, y)
    proba = model.predict_proba(LOG37_AT)[:, 1]
    np.testing.assert_allclose(proba, exact.proba, atol=0.04 if precision == "bfloat16" else 0.02)


@pytest.mark.parametrize("batch_size", [100, 130, 1000, 5000])
@pytest.mark.parametrize("guide", ["mean_field", "low_rank"])
def test_mini_batches_see_all_rows(guide, batch_size):
    """Batches that divide 1000 rows or not, or hold them all, give the posterior of all rows."""
    X, y = cases.g_mb()
    exact = exact_logistic(X, y)
    options = {"method": "svi", "guide": guide, "batch_size": batch_size, "max_iter": 10_000}
    model = fit(options, X, y)
    mean = np.r_[model.coef_[0], model.intercept_]
    sd = np.r_[model.coef_std_[0], model.intercept_std_]
    np.testing.assert_array_less(np.abs(mean - exact.mean) / exact.sd, 0.5)
    np.testing.assert_array_less(0.5, sd / exact.sd)
    np.testing.assert_array_less(sd / exact.sd, 1.6)


@pytest.mark.parametrize("guide", ["structured", "mean_field", "low_rank"])
def test_more_particles(guide):
    """num_particles keeps the answer."""
    X, y = cases.g_log37()
    exact = exact_logistic(X, y, LOG37_AT)
    model = fit({"method": "svi", "guide": guide, "num_particles": 8}, X, y)
    proba = model.predict_proba(LOG37_AT)[:, 1]
    np.testing.assert_allclose(proba, exact.proba, atol=0.04)


@pytest.mark.parametrize("options", ENGINES[:3])
@pytest.mark.parametrize("n_chains", [1, 3])
def test_number_of_chains_and_draws(options, n_chains):
    """F11: HMC keeps n_chains x n_draws draws, SVI n_draws, exactly."""
    X, y = cases.g_log37()
    sizes = {"n_chains": n_chains, "n_draws": 137}
    with warnings.catch_warnings():
        # So few draws may well be too few.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = fit({**options, **sizes}, X, y)
    chains = n_chains if options["method"] == "hmc" else 1
    assert model.posterior_.shape == (chains, 137)
    assert model.sample_posterior()["coef"].shape == (chains * 137, 1, 2)


# ---------------------------------------------------------------- warnings


@pytest.mark.parametrize("options", [ENGINES[0], *ENGINES[2:]])
@pytest.mark.parametrize("seed", range(5))
def test_defaults_do_not_warn(options, seed):
    """F24: with the default settings 37 ordinary rows give no warning (here: an error)."""
    fit({**options, "random_state": seed}, *cases.g_log37())


@pytest.mark.parametrize("seed", range(3))
def test_a_single_chain_does_not_warn(seed):
    """One chain is judged by its halves, not found wanting because there is no other."""
    fit({"n_chains": 1, "random_state": seed}, *cases.g_log37())


@pytest.mark.parametrize("guide", ["mean_field", "low_rank"])
def test_redundant_columns_do_not_warn(guide):
    """An ELBO noisier than its tolerance, but not rising, is not "still moving"."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 1)) + 0.01 * rng.normal(size=(300, 10))
    model = fit({"method": "svi", "guide": guide}, X, rng.integers(0, 2, 300))
    assert model.n_iter_ < 5000
    assert np.std(model.sampler_stats_["elbo"][-500:]) > 3.0


@pytest.mark.parametrize("prior_scale", [1e3, 1e5])
def test_frozen_chains_are_reported(prior_scale):
    """F24: a step far too long is never accepted; the warning names acceptance or R-hat."""
    scales = {"prior_scale": prior_scale, "intercept_prior_scale": prior_scale}
    options = {"sampler": "leapfrog", "n_leapfrog": 5, "n_warmup": 1, "n_draws": 100}
    with pytest.warns(ConvergenceWarning, match=r"acceptance|R-hat"):
        # TFP's own warning, which pytest.warns would let through without its filter.
        warnings.simplefilter("ignore", DeprecationWarning)
        model = fit({**options, **scales}, *cases.g_log37())
    assert np.isfinite(model.coef_).all()


@pytest.mark.parametrize("seed", range(4))
def test_warnings_speak_of_the_users_parameters(seed):
    """R-hat and ESS of a warning are those of coefficients in the table, not of padding."""
    model = BayesianLogisticRegression(sampler="leapfrog", random_state=seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(*cases.g_log37())
    said = " ".join(str(w.message) for w in caught if w.category is ConvergenceWarning)
    table = model.summary()
    judged = re.findall(r"one of (\d+) coefficients", said)
    assert all(int(n) == len(table) for n in judged)
    r_hat = re.search(r"R-hat up to ([\d.]+)", said)
    ess = re.search(r"ESS down to (\d+)", said)
    # The intercept of centred columns and the log density are looked at too: some slack.
    if r_hat:
        assert float(r_hat[1]) < table["r_hat"].max() + 0.03
    if ess:
        assert float(ess[1]) > 0.4 * table["ess_bulk"].min()


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"guide": "structured", "max_iter": 1}, id="structured"),
        pytest.param({"guide": "mean_field", "max_iter": 30}, id="mean_field"),
        pytest.param({"guide": "low_rank", "max_iter": 30}, id="low_rank"),
    ],
)
def test_too_few_iterations_are_reported(options):
    """A variational fit stopped by max_iter says so, names max_iter, and is usable."""
    X, y = cases.g_log37()
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        model = fit({"method": "svi", **options}, X, y)
    assert model.n_iter_ == options["max_iter"]
    assert np.isfinite(model.predict_proba(X)).all()


def test_too_few_draws_are_reported():
    """HMC with a handful of draws says that R-hat or ESS is short, and names n_draws."""
    with pytest.warns(ConvergenceWarning, match=r"(R-hat|ESS).*n_draws"):
        fit({"n_warmup": 20, "n_draws": 10}, *cases.g_log37())


@pytest.mark.parametrize("n_draws", [1, 2, 3])
@pytest.mark.parametrize("options", ENGINES[::2])
def test_a_handful_of_draws(options, n_draws):
    """One chain of 1, 2 or 3 draws: HMC says that these are too few, not that R-hat is nan."""
    model = BayesianLogisticRegression(random_state=0, n_chains=1, n_draws=n_draws, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(*cases.g_log37())
    assert {w.category for w in caught} == (
        {ConvergenceWarning} if options["method"] == "hmc" else set()
    )
    assert not any("nan" in str(w.message) for w in caught)
    assert model.posterior_.shape == (1, n_draws)
    # The spread of a single draw is not known, rather than nothing.
    _, std = model.predict_proba(LOG37_AT, return_std=True)
    assert np.isnan(std).all() if n_draws == 1 else np.all(std > 0)


@pytest.mark.parametrize("options", ENGINES[:3])
def test_tight_tolerances_are_met(options):
    """A smaller tol still converges and gives the same answer."""
    X, y = cases.g_log37()
    exact = exact_logistic(X, y, LOG37_AT)
    model = fit({**options, "tol": 0.005}, X, y)
    np.testing.assert_allclose(model.predict_proba(LOG37_AT)[:, 1], exact.proba, atol=0.02)


def test_sampler_statistics():
    """Acceptance lies in (0.5, 1], nothing diverges, gradients per draw are 2 to 6."""
    stats = fit({"method": "hmc"}, *cases.g_log37()).sampler_stats_
    assert np.all((stats["accept_prob"] > 0.5) & (stats["accept_prob"] <= 1))
    assert np.sum(stats["diverging"]) == 0
    assert 2 <= stats["gradients_per_draw"] <= 6
    assert stats["log_density"].shape == (4, 500)
