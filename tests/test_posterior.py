"""Posterior: tables against NumPy and ArviZ, probes, export."""

import pickle

import numpy as np
import pytest
from arviz_stats.base import array_stats

from skbayes_shard import Posterior
from skbayes_shard._posterior import diagnostics

CHAINS, DRAWS = 4, 300
LABELS = {"coef": [["ant", "cat"], ["age", "income", "tax"]], "intercept": [["ant", "cat"]]}


def autocorrelated(shape, rho, seed):
    """AR(1) chains with unit variance: something for diagnostics to find."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(CHAINS, DRAWS, *shape))
    out = np.empty_like(noise)
    out[:, 0] = noise[:, 0]
    for t in range(1, DRAWS):
        out[:, t] = rho * out[:, t - 1] + np.sqrt(1 - rho**2) * noise[:, t]
    return out


@pytest.fixture
def draws():
    """Two named arrays, one of them with a chain that went elsewhere."""
    intercept = autocorrelated((2,), 0.0, 1)
    intercept[0, :, 1] += 5
    return {"coef": autocorrelated((2, 3), 0.7, 0).astype(np.float32), "intercept": intercept}


# ---------------------------------------------------------------- summary


def test_rows_are_named(draws):
    """Names run over parameters, then over their axes, the last fastest."""
    table = Posterior(draws, LABELS).summary()
    assert table.index.name == "parameter"
    assert list(table.index) == [
        "coef[ant, age]",
        "coef[ant, income]",
        "coef[ant, tax]",
        "coef[cat, age]",
        "coef[cat, income]",
        "coef[cat, tax]",
        "intercept[ant]",
        "intercept[cat]",
    ]


def test_labels_may_be_numbers(draws):
    """Labels are shown as text; a parameter without axes goes by its name alone."""
    scalar = {"scale": draws["coef"][:, :, 0, 0], "year": draws["intercept"]}
    table = Posterior(scalar, {"scale": [], "year": [[2024, 2025]]}).summary()
    assert list(table.index) == ["scale", "year[2024]", "year[2025]"]


def test_moments_are_those_of_numpy(draws):
    """Mean, sd and the 5 % and 95 % quantiles are those of all draws joined."""
    table = Posterior(draws, LABELS).summary()
    joined = np.concatenate([draws[k].reshape(CHAINS * DRAWS, -1) for k in draws], axis=1)
    assert list(table.columns) == ["mean", "sd", "5%", "95%", "ess_bulk", "ess_tail", "r_hat"]
    np.testing.assert_allclose(table["mean"], joined.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(table["sd"], joined.std(axis=0, ddof=1), rtol=1e-5)
    np.testing.assert_allclose(table["5%"], np.quantile(joined, 0.05, axis=0), rtol=1e-5)
    np.testing.assert_allclose(table["95%"], np.quantile(joined, 0.95, axis=0), rtol=1e-5)


def test_diagnostics_are_those_of_arviz(draws):
    """Each scalar's ESS and R-hat equal ArviZ's for that scalar alone."""
    table = Posterior(draws, LABELS).summary()
    columns = [*np.moveaxis(draws["coef"].reshape(CHAINS, DRAWS, 6), -1, 0)]
    columns += [*np.moveaxis(draws["intercept"], -1, 0)]
    for (_, row), one in zip(table.iterrows(), columns, strict=True):
        one = one.astype(float)
        axes = {"chain_axis": 0, "draw_axis": 1}
        bulk = array_stats.ess(one, method="bulk", **axes)
        tail = array_stats.ess(one, method="tail", prob=(0.05, 0.95), **axes)
        assert row["ess_bulk"] == pytest.approx(float(bulk), rel=1e-6)
        assert row["ess_tail"] == pytest.approx(float(tail), rel=1e-6)
        assert row["r_hat"] == pytest.approx(float(array_stats.rhat(one, **axes)), rel=1e-6)


def test_diagnostics_see_what_is_there(draws):
    """AR(0.7) has 0.3 / 1.7 of its draws' worth; a lost chain shows in R-hat, a good one not."""
    table = Posterior(draws, LABELS).summary()
    expected = CHAINS * DRAWS * 0.3 / 1.7
    np.testing.assert_allclose(table["ess_bulk"].iloc[:6], expected, rtol=0.45)
    assert table.loc["intercept[ant]", "ess_bulk"] == pytest.approx(CHAINS * DRAWS, rel=0.25)
    assert table.loc["intercept[ant]", "r_hat"] < 1.01
    assert table.loc["intercept[cat]", "r_hat"] > 1.4


def test_r_hat_is_rank_normalised():
    """Heavy tails and unequal scales: a chain four times as wide has a large R-hat."""
    rng = np.random.default_rng(0)
    cauchy = rng.standard_cauchy(size=(CHAINS, DRAWS))
    wide = rng.normal(size=(CHAINS, DRAWS)) * np.array([[4.0], [1], [1], [1]])
    found = diagnostics(np.stack([cauchy, wide], axis=2))
    assert found["r_hat"][0] < 1.02
    assert found["r_hat"][1] > 1.05


@pytest.mark.parametrize("n_draws", [1, 2, 3])
def test_diagnostics_of_too_few_draws(n_draws):
    """Fewer than four draws cannot be judged: NaN, and no warning."""
    found = diagnostics(np.zeros((2, n_draws, 3)))
    assert all(np.isnan(value).all() and value.shape == (3,) for value in found.values())


def test_a_single_chain_is_judged_by_its_halves():
    """One chain that wanders off has a large R-hat, one that stays a small one; 7 draws, NaN."""
    rng = np.random.default_rng(0)
    still = rng.normal(size=(1, 401))
    found = diagnostics(np.stack([still, still + np.linspace(0, 5, 401)], axis=2))
    assert found["r_hat"][0] < 1.02
    assert found["r_hat"][1] > 1.3
    assert found["ess_bulk"][0] == pytest.approx(401, rel=0.25)
    assert np.isnan(diagnostics(np.zeros((1, 7, 1)))["r_hat"]).all()


def test_constant_draws_are_no_error():
    """A frozen chain gives a table; its R-hat is not one that looks good by accident."""
    frozen = np.ones((CHAINS, DRAWS, 1)) * np.arange(CHAINS)[:, None, None]
    table = Posterior({"coef": frozen}, {"coef": [["age"]]}).summary()
    assert not table["r_hat"].iloc[0] < 1.01
    assert table["sd"].iloc[0] == pytest.approx(np.std(np.repeat(np.arange(4), 300), ddof=1))


def test_independent_draws_have_no_chain_diagnostics(draws):
    """Draws of a variational posterior: moments as ever, chain diagnostics NaN."""
    table = Posterior(draws, LABELS, independent=True).summary()
    plain = Posterior(draws, LABELS).summary()
    assert table[["ess_bulk", "ess_tail", "r_hat"]].isna().all(axis=None)
    np.testing.assert_array_equal(table["mean"], plain["mean"])
    np.testing.assert_array_equal(table["95%"], plain["95%"])


def test_diagnostics_may_be_left_out(draws):
    """diagnose=False gives the moments alone, the same as in the whole table."""
    posterior = Posterior(draws, LABELS)
    table = posterior.summary(diagnose=False)
    assert list(table.columns) == ["mean", "sd", "5%", "95%"]
    np.testing.assert_array_equal(table, posterior.summary()[table.columns])


# ---------------------------------------------------------------- access


def test_flat_joins_chains(draws):
    """flat puts one chain after the other."""
    flat = Posterior(draws, LABELS).flat("coef")
    assert flat.shape == (CHAINS * DRAWS, 2, 3)
    np.testing.assert_array_equal(flat[DRAWS : 2 * DRAWS], draws["coef"][1])


def test_shape_and_repr(draws):
    """The repr says chains, draws and the size of each parameter."""
    posterior = Posterior(draws, LABELS)
    assert posterior.shape == (CHAINS, DRAWS)
    assert repr(posterior) == "Posterior(4 chains x 300 draws: coef(2, 3), intercept(2,))"


@pytest.mark.parametrize("most", [1, 3, 8, 100])
def test_probes(draws, most):
    """Up to so many scalars, spread over all, each a column of the draws, none twice."""
    probes = Posterior(draws, LABELS).probes(most)
    assert probes.shape == (CHAINS, DRAWS, min(most, 8))
    scalars = np.concatenate([draws["coef"].reshape(CHAINS, DRAWS, 6), draws["intercept"]], axis=2)
    same = [
        [np.array_equal(probes[:, :, i], scalars[:, :, j]) for j in range(8)]
        for i in range(probes.shape[2])
    ]
    where = np.argmax(same, axis=1)
    assert np.all(np.any(same, axis=1))
    assert np.all(np.diff(where) > 0)
    if most > 1:
        assert where[0] == 0 and where[-1] == 7


def test_pickles(draws):
    """A posterior is plain arrays and survives pickling."""
    posterior = Posterior(draws, LABELS, np.zeros((CHAINS, DRAWS)))
    back = pickle.loads(pickle.dumps(posterior))
    np.testing.assert_array_equal(back.draws["coef"], draws["coef"])
    assert back.labels == LABELS
    assert repr(back) == repr(posterior)


# ---------------------------------------------------------------- export


def test_to_datatree(draws):
    """ArviZ's tree holds the draws with named coordinates, and the log density as lp."""
    pytest.importorskip("arviz_base")
    lp = np.arange(CHAINS * DRAWS, dtype=float).reshape(CHAINS, DRAWS)
    tree = Posterior(draws, LABELS, lp).to_datatree()
    coef = tree["posterior"]["coef"]
    assert coef.shape == (CHAINS, DRAWS, 2, 3)
    assert coef.dims[:2] == ("chain", "draw")
    np.testing.assert_array_equal(coef.values, draws["coef"])
    assert coef.coords[coef.dims[2]].values.tolist() == ["ant", "cat"]
    assert coef.coords[coef.dims[3]].values.tolist() == ["age", "income", "tax"]
    np.testing.assert_array_equal(tree["sample_stats"]["lp"].values, lp)


def test_to_datatree_without_log_density(draws):
    """Without a log density there are draws alone."""
    pytest.importorskip("arviz_base")
    tree = Posterior(draws, LABELS).to_datatree()
    assert "posterior" in tree.children
    assert "sample_stats" not in tree.children


def test_to_datatree_says_what_to_install(draws, monkeypatch):
    """Without arviz-base: ImportError naming the extra."""
    monkeypatch.setitem(__import__("sys").modules, "arviz_base", None)
    with pytest.raises(ImportError, match=r"skbayes_shard\[arviz\]"):
        Posterior(draws, LABELS).to_datatree()
