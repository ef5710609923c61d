"""BayesianLogisticRegression: extreme scales, wide and long data, many batch sizes, silence."""

import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from skbayes_shard import BayesianLogisticRegression
from tests import field_cases as cases
from tests.field_cases import compilations, expit

ROOT = Path(__file__).resolve().parents[1]
METHODS = ["hmc", "svi"]


def in_a_fresh_process(code, given="", **environment):
    """Run a script; warnings are left out of what it prints."""
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONWARNINGS"}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        input=given,
        cwd=ROOT,
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


# ---------------------------------------------------------------- scales and sizes


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("factor", [1e-18, 1e-40, 1e-300], ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_columns_that_cannot_be_felt_keep_their_prior(method, factor):
    """A column so small that the logits do not feel it: sd 1 to 5 % of 2,000 draws or more."""
    X, y = cases.g_log37()
    model = BayesianLogisticRegression(method=method, n_draws=2000, random_state=0)
    model.fit(np.column_stack([X[:, 0], factor * X[:, 1]]), y)
    np.testing.assert_allclose(model.coef_std_[0, 1], 1, atol=0.05)
    np.testing.assert_allclose(model.coef_[0, 1], 0, atol=0.1)
    alone = BayesianLogisticRegression(method=method, n_draws=2000, random_state=0)
    alone.fit(X[:, :1], y)
    np.testing.assert_allclose(model.coef_[0, 0], alone.coef_[0, 0], atol=0.1)


@pytest.mark.parametrize("factor", [1e3, 1e-6, 1e30, 1e-30], ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_extreme_scales_terminate(method, factor):
    """F22: X times anything ends within 60 s, finite, with half of the draws distinct."""
    X, y = cases.g_log37()
    model = BayesianLogisticRegression(method=method, random_state=0)
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X * factor, y)
    assert time.perf_counter() - start < 60
    coef = model.posterior_.flat("coef")[:, 0]
    assert np.isfinite(coef).all()
    assert np.isfinite(model.predict_proba(X * factor)).all()
    assert not [w for w in caught if issubclass(w.category, RuntimeWarning)]
    distinct = min(len(np.unique(column)) for column in coef.T)
    warned = any(issubclass(w.category, ConvergenceWarning) for w in caught)
    assert distinct >= 0.5 * len(coef) or warned


@pytest.mark.parametrize("method", METHODS)
def test_wide_data_start(method):
    """F23: 300 columns of scale 5, separable: it fits, all finite, accuracy at least 0.97."""
    rs = np.random.RandomState(4)
    X = rs.normal(size=(2000, 300)) * 5
    y = (X[:, 0] > 0).astype(int)
    model = BayesianLogisticRegression(method=method, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    assert np.isfinite(model.coef_).all() and np.isfinite(model.coef_std_).all()
    assert model.score(X, y) >= 0.97


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("method", METHODS)
def test_more_columns_than_rows(method):
    """20 rows and 100 columns: directions without data keep the prior's spread."""
    rs = np.random.RandomState(0)
    X = rs.normal(size=(20, 100))
    y = (X[:, 0] > 0).astype(int)
    model = BayesianLogisticRegression(method=method, random_state=0).fit(X, y)
    assert model.score(X, y) == 1
    # 20 rows can tell 21 of 101 directions at most.
    _, _, rows = np.linalg.svd(np.c_[X, np.ones(20)])
    draws = model.sample_posterior()
    theta = np.c_[draws["coef"][:, 0], draws["intercept"]]
    unseen = theta @ rows[20:].T
    np.testing.assert_allclose(unseen.std(axis=0), 1, rtol=0.15)
    assert np.abs(unseen.mean(axis=0)).max() < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_two_million_rows(method):
    """F33: slope 0.50025 (0.00155), intercept -0.19906 (0.00146), in float32."""
    rs = np.random.RandomState(0)
    x = rs.normal(size=2_000_000)
    y = (rs.uniform(size=len(x)) < expit(0.5 * x - 0.2)).astype(int)
    model = BayesianLogisticRegression(method=method, random_state=0).fit(x[:, None], y)
    mean, sd = np.r_[model.coef_[0], model.intercept_], np.r_[0.00155, 0.00146]
    got = np.r_[model.coef_std_[0], model.intercept_std_]
    allowed, narrow, wide = (3, 0.7, 1.3) if method == "hmc" else (4, 0.5, 1.5)
    np.testing.assert_array_less(np.abs(mean - [0.50025, -0.19906]) / sd, allowed)
    np.testing.assert_array_less(narrow, got / sd)
    np.testing.assert_array_less(got / sd, wide)
    if method == "hmc":
        assert 0.5 < model.sampler_stats_["accept_prob"].mean() < 1


# ---------------------------------------------------------------- predict


@pytest.mark.parametrize("method", METHODS)
def test_predict_on_any_number_of_rows(method):
    """F35: 1, 36, 38 and 370 rows give as many rows, each as if alone; no rows, ValueError."""
    X, y = cases.g_log37()
    model = BayesianLogisticRegression(method=method, random_state=0).fit(X, y)
    whole = model.predict_proba(X)
    for n in (1, 36, 38, 370):
        at = np.resize(X, (n, 2))
        assert model.predict(at).shape == (n,)
        np.testing.assert_allclose(model.predict_proba(at), np.resize(whole, (n, 2)), atol=1e-5)
    with pytest.raises(ValueError, match="minimum of 1"):
        model.predict(X[:0])


@pytest.mark.parametrize("method", METHODS)
def test_growing_batches_reuse_programs(method):
    """F39: lengths 1 to 200 in turn take under 60 s and few programs, equal to 1e-5."""
    X, y = cases.g_log37()
    model = BayesianLogisticRegression(method=method, random_state=0).fit(X, y)
    at = np.random.RandomState(1).normal(size=(200, 2))
    whole = model.predict_proba(at)
    start = time.perf_counter()
    with compilations() as compiled:
        for n in range(1, 201):
            np.testing.assert_allclose(model.predict_proba(at[:n]), whole[:n], atol=1e-5)
    assert time.perf_counter() - start < 60
    # Buckets of rows up to 200: 32, 48, 64, 96, 128, 192, 256.
    assert len(compiled) <= 7


# ---------------------------------------------------------------- memory and silence

MEMORY_PROBE = """
import resource
import time
import numpy as np
from skbayes_shard import BayesianLogisticRegression
rs = np.random.RandomState(0)
small = np.r_[-np.ones((20, 20)), np.ones((20, 20))]
options = dict(method="svi", guide="mean_field", max_iter=50, random_state=0)
BayesianLogisticRegression(**options).fit(small, small[:, 0])
X = rs.normal(size=(500_000, 20))
y = (rs.uniform(size=500_000) < 1 / (1 + np.exp(-X[:, 0]))).astype(int)
before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.time()
model = BayesianLogisticRegression(**options).fit(X, y)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((peak - before) * 1024 / X.nbytes, time.time() - start, model.n_iter_)
"""


@pytest.mark.slow
def test_data_are_not_constants_of_the_program():
    """F40: 500,000 x 20, 50 steps: under 90 s and 8x the data, no alarm about constants."""
    done = in_a_fresh_process(MEMORY_PROBE)
    assert done.returncode == 0, done.stderr
    times, seconds, n_iter = map(float, done.stdout.split())
    assert n_iter == 50
    assert times < 8
    assert seconds < 90
    assert "constant" not in done.stderr.lower()


X64_ENGINES = {
    "hmc": {"method": "hmc"},
    "leapfrog": {"method": "hmc", "sampler": "leapfrog", "n_leapfrog": 4},
    "structured": {"method": "svi"},
    "mean_field": {"method": "svi", "guide": "mean_field"},
    "low_rank": {"method": "svi", "guide": "low_rank"},
    "batches": {"method": "svi", "guide": "mean_field", "batch_size": 16},
}
X64_PROBE = """
import json
import sys
import numpy as np
from scipy import sparse
from skbayes_shard import BayesianLogisticRegression
from tests.field_cases import LOG37_AT, g_log37
X, y = g_log37()
forms = {
    "float64": X, "float32": X.astype(np.float32), "sparse": sparse.csr_matrix(X),
    "int": (10 * X).astype(int), "bool": X > 0,
}
found = {}
for engine, options in json.loads(sys.stdin.read()).items():
    model = BayesianLogisticRegression(**options, random_state=0)
    found[engine] = {}
    for name, rows in forms.items():
        try:
            proba = model.fit(rows, y).predict_proba(LOG37_AT.astype(rows.dtype))
            found[engine][name] = proba[:, 1].tolist()
        except Exception as error:
            found[engine][name] = f"{type(error).__name__}: {str(error)[:200]}"
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def in_double_precision():
    """P(1) by engine and type of X, or what was raised, with JAX_ENABLE_X64=1."""
    done = in_a_fresh_process(X64_PROBE, json.dumps(X64_ENGINES), JAX_ENABLE_X64="1")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("engine", X64_ENGINES)
def test_double_precision_switched_on(in_double_precision, engine):
    """F32: JAX_ENABLE_X64=1 fits every type of X, with the exact probabilities to 0.04."""
    found = in_double_precision[engine]
    X, y = cases.g_log37()
    exact = cases.exact_logistic(X, y, cases.LOG37_AT).proba
    errors = {name: value for name, value in found.items() if isinstance(value, str)}
    assert errors == {}
    for name in ("float64", "float32", "sparse"):
        np.testing.assert_allclose(found[name], exact, atol=0.04)


SILENCE_PROBE = """
from sklearn.model_selection import GridSearchCV
from skbayes_shard import BayesianLogisticRegression
from tests.field_cases import g_log37
X, y = g_log37()
for options in (dict(), dict(method="svi"), dict(method="svi", guide="mean_field")):
    model = BayesianLogisticRegression(n_draws=100, **options).fit(X, y)
    model.predict(X)
grid = {"prior_scale": [0.5, 1.0, 2.0]}
GridSearchCV(BayesianLogisticRegression(method="svi"), grid, cv=2).fit(X, y)
"""


def test_nothing_is_printed():
    """F41: fit, predict and a grid of six fits print nothing, on stdout or stderr."""
    done = in_a_fresh_process(SILENCE_PROBE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "options", [{}, {"method": "svi"}, {"method": "svi", "guide": "mean_field"}], ids=str
)
def test_verbose_shows_a_bar(options, capfd):
    """verbose=1 shows a progress bar on stderr and leaves the fit as it is."""
    pytest.importorskip("tqdm")
    X, y = cases.g_log37()
    quiet = BayesianLogisticRegression(random_state=0, **options).fit(X, y)
    capfd.readouterr()
    loud = BayesianLogisticRegression(random_state=0, verbose=1, **options).fit(X, y)
    out, err = capfd.readouterr()
    assert out == ""
    assert options.get("method", "hmc") in err
    np.testing.assert_array_equal(quiet.coef_, loud.coef_)
