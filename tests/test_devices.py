"""One device or many, padded or not: the same density, the same posterior, the same predictions.

Virtual CPU devices exist from the start of a process, so each number of devices has one of its own
(``tests/device_worker.py``), one after another: programs with collectives side by side starve.
"""

import json
import os
import pickle
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from skbayes_shard import BayesianLogisticRegression
from tests.device_worker import AT, CASES, displacements, predictions, problem_of_case
from tests.field_cases import exact_logistic, g_log37, g_n3

ROOT = Path(__file__).resolve().parents[1]
DEVICES = [1, 2, 3, 8]
STEPS = {
    1: ["density", "mesh", "hmc", "svi", "predict"],
    2: ["density", "hmc", "predict"],
    3: ["density", "hmc", "svi", "predict"],
    8: ["density", "mesh", "hmc", "svi", "guide", "predict"],
}
# On three devices NaN anywhere in a program is an error.
ENVIRONMENT = {3: {"JAX_DEBUG_NANS": "1"}}


class Result(NamedTuple):
    """What a worker left."""

    arrays: dict
    report: dict
    folder: Path


def work(folder, n_devices, steps, **environment):
    """Run a worker and read what it leaves."""
    flags = f"--xla_force_host_platform_device_count={n_devices}"
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.device_worker", str(folder), *steps],
        cwd=ROOT,
        env={**inherited, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with np.load(folder / "result.npz") as found:
        arrays = dict(found)
    return Result(arrays, json.loads(str(arrays.pop("report"))), folder)


@pytest.fixture(scope="session")
def pickled(tmp_path_factory):
    """A fit of three classes, pickled where every worker finds it; and the object itself."""
    X, _ = g_log37()
    y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)
    model = BayesianLogisticRegression(method="svi", random_state=0).fit(X, y)
    folder = tmp_path_factory.mktemp("devices")
    (folder / "three.pkl").write_bytes(pickle.dumps(model))
    return folder, model


@pytest.fixture(scope="session")
def on(pickled):
    """Results by number of devices, each worked out when it is first asked for."""
    folder, _ = pickled

    @cache
    def results(n):
        return work(folder / str(n), n, STEPS[n], **ENVIRONMENT.get(n, {}))

    return results


@pytest.fixture(scope="session")
def in_float64(pickled):
    """Two devices with 64 bits switched on."""
    folder, _ = pickled
    return work(folder / "x64", 2, ["hmc", "svi", "typed", "predict"], JAX_ENABLE_X64="1")


@pytest.fixture(params=DEVICES, ids="{} devices".format)
def found(request, on):
    return on(request.param)


def assert_close(found, exact, rtol=1e-5):
    """Compare relative to the largest number."""
    assert np.shape(found) == np.shape(exact)
    assert np.abs(np.asarray(found) - exact).max() <= rtol * np.abs(exact).max()


# ---------------------------------------------------------------- the density


@pytest.mark.parametrize("case", CASES, ids=str)
def test_density(found, case):
    """Values and gradients are NumPy's: nothing padded counts, the prior counts once (F02, F06)."""
    problem = problem_of_case(case)
    delta = displacements(problem).astype(np.float64)
    there = problem.log_density(np.zeros(problem.shape))
    value = [problem.log_density(d) - there for d in delta]
    assert_close(found.arrays[f"density {case} value"], value)
    assert_close(found.arrays[f"density {case} grad"], [problem.gradient(d) for d in delta])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_program(on, case):
    """One all-reduce for a value and its gradient, no other collective, and no scatter."""
    for n in DEVICES[1:]:
        program = on(n).report[f"density {case}"]
        assert program == {"all-reduce": 1, "other": [], "scatter": False}


def test_recentred_density(found):
    """Moving the centre works on every device's own rows."""
    problem = problem_of_case((37, 3, False))
    there, delta = displacements(problem).astype(np.float64)
    change = problem.log_density(there + delta) - problem.log_density(there)
    assert_close(found.arrays["recentred value"], [change])
    assert_close(found.arrays["recentred grad"], [problem.gradient(there + delta)])


def test_log_density_at_the_centre(on):
    """The absolute value at a centre does not depend on the devices."""
    values = [float(on(n).arrays["recentred constant"]) for n in DEVICES]
    np.testing.assert_allclose(values, values[0], rtol=1e-6)


def test_mini_batches(found):
    """Every device takes its share of each batch: together they are all rows."""
    problem = problem_of_case((37, 3, False))
    there = problem.log_likelihood(np.zeros(problem.shape))
    exact = [problem.log_likelihood(d) - there for d in displacements(problem).astype(np.float64)]
    assert_close(found.arrays["batches"].mean(axis=0), exact)


def test_curvature(on):
    """The Gaussian reference is the same on every number of devices."""
    for n in DEVICES[1:]:
        assert_close(on(n).arrays["variance"], on(1).arrays["variance"], rtol=1e-4)


# ---------------------------------------------------------------- the mesh


def test_chosen_devices(on):
    """A number takes the first devices, a list those named, in their order."""
    report = on(8).report
    assert report["devices"] == 8
    assert report["chosen"] == [7, 0]
    assert report["first"] == list(range(7))


def test_large_factors_are_split(on):
    """Each device holds its rows of a large matrix, and all of a small one."""
    assert on(8).report["shards"] == {"large": 24 * 48 // 8, "small": 8}
    assert on(1).report["shards"] == {"large": 24 * 48, "small": 8}


# ---------------------------------------------------------------- fits


def assert_posterior(result, name, exact, mean_within=0.3, sd_within=0.2):
    """Means in exact standard deviations, deviations as ratios (the field cases' tolerances)."""
    shift = np.abs(result.arrays[f"{name} mean"] - exact.mean) / exact.sd
    ratio = result.arrays[f"{name} sd"] / exact.sd
    assert shift.max() < mean_within
    assert np.abs(ratio - 1).max() < sd_within


@pytest.fixture(scope="module")
def exact37():
    return exact_logistic(*g_log37())


def test_hmc(found, exact37):
    """Three chains of 500 draws of the right posterior, without a complaint (F02, F11, F15)."""
    assert_posterior(found, "hmc", exact37)
    assert found.report["hmc"]["shape"] == [3, 500, 1, 2]
    assert found.report["hmc"]["complaints"] == []


def test_hmc_accepts_as_often(on):
    """Acceptance does not depend on the devices beyond 0.1, so gradients are right (F06)."""
    accepted = [on(n).arrays["hmc accepted"].mean() for n in DEVICES]
    assert np.ptp(accepted) < 0.1


def test_posteriors_agree_across_devices(on):
    """Means of 1 and 8 devices differ by no more than 5 Monte Carlo errors, by batches of draws."""
    one, eight = (on(n).arrays["hmc draws"].reshape(30, 50, 3).mean(axis=1) for n in (1, 8))
    error = np.sqrt((one.var(axis=0, ddof=1) + eight.var(axis=0, ddof=1)) / 30)
    assert np.all(np.abs(one.mean(axis=0) - eight.mean(axis=0)) < 5 * error)
    assert error.max() < 0.1


def test_fewer_rows_than_devices(found):
    """Three rows: the prior is counted once, whatever the number of devices (F07)."""
    exact = exact_logistic(*g_n3(), at=[[1.0]])
    assert_posterior(found, "three rows", exact)
    np.testing.assert_allclose(found.arrays["three rows proba"][0, 1], exact.proba[0], atol=0.02)


@pytest.mark.parametrize("n", [1, 3, 8])
def test_svi(on, exact37, n):
    """The structured Gaussian of the right posterior."""
    assert_posterior(on(n), "svi", exact37)


def test_guide_on_mini_batches(on, exact37):
    """Mini-batches on eight devices lead to the right posterior, within a guide's tolerance."""
    assert_posterior(on(8), "guide", exact37, mean_within=0.5, sd_within=0.5)


@pytest.mark.parametrize("name", ["hmc", "svi", "three rows", "guide"])
def test_fitted_state_is_on_the_host(on, name):
    """Nothing that a fitted object holds, or hands out, lives on a device (F17)."""
    report = on(8).report[name]
    assert report["on devices"] == []
    assert set(report["sampled"].values()) == {"ndarray"}


# ---------------------------------------------------------------- predictions


@pytest.mark.parametrize("rows", AT)
def test_one_object_predicts_the_same_everywhere(found, pickled, rows):
    """Probabilities and their spreads equal those of this process to 1e-5."""
    arrays = {}
    predictions(pickled[1], "here", arrays)
    np.testing.assert_allclose(found.arrays[f"three {rows}"], arrays[f"here {rows}"], atol=1e-5)


@pytest.mark.parametrize("rows", AT)
def test_objects_travel_to_fewer_devices(found, rows):
    """What was fitted on many devices predicts the same where there is another number."""
    arrays = {}
    model = pickle.loads((found.folder / "hmc.pkl").read_bytes())
    predictions(model, "here", arrays)
    np.testing.assert_allclose(found.arrays[f"own {rows}"], arrays[f"here {rows}"], atol=1e-5)


# ---------------------------------------------------------------- 64 bits


def test_fits_in_float64(in_float64, exact37):
    """With 64 bits switched on by the user, both methods give the same posterior (F32)."""
    assert_posterior(in_float64, "hmc", exact37)
    assert_posterior(in_float64, "svi", exact37)
    assert in_float64.report["hmc"]["complaints"] == []


@pytest.mark.parametrize("name", ["float32", "int", "bool"])
def test_types_of_X_in_float64(in_float64, name):
    """X of other types is taken as it is in the default mode."""
    X, y = g_log37()
    made = {"float32": X, "int": np.rint(X * 1e4), "bool": X > 0}[name].astype(float)
    assert_posterior(in_float64, f"svi {name}", exact_logistic(made, y))


def test_predictions_in_float64(in_float64, pickled):
    """One object predicts the same with 64 bits as without."""
    arrays = {}
    predictions(pickled[1], "here", arrays)
    np.testing.assert_allclose(in_float64.arrays["three many"], arrays["here many"], atol=1e-5)
