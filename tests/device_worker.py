"""What ``tests/test_devices.py`` runs in a process of its own, on so many virtual devices.

``python -m tests.device_worker FOLDER STEP ...`` writes ``FOLDER/result.npz``: arrays by name, and
a report (JSON) of what is no array. The number of devices comes from ``XLA_FLAGS``.
"""

import json
import pickle
import re
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.exceptions import ConvergenceWarning

from skbayes_shard import BayesianLogisticRegression
from skbayes_shard.sharding import make_mesh, place_factor
from tests.field_cases import g_log37, g_n3
from tests.softmax_problem import make_problem

# (rows, classes, sparse): every number of rows divides badly by some number of devices.
CASES = [(n, k, False) for n in (1, 3, 37, 1000) for k in (2, 3, 10)]
CASES += [(3, 3, True), (37, 2, True), (1000, 3, True)]
# X for predictions: more rows than a block holds on one device, fewer than devices.
AT = {name: np.random.RandomState(5).normal(size=(n, 2)) for name, n in [("few", 2), ("many", 700)]}


def problem_of_case(case, **options):
    """Rows sorted by x, so that devices see different data; weighted; priors of other scales."""
    n_rows, n_classes, sparse = case
    return make_problem(
        n_rows, n_classes, sparse=sparse, by_x=True, weighted=True, scales=(0.7, 2.5), **options
    )


def displacements(problem):
    rng = np.random.default_rng(1)
    return (0.5 * rng.normal(size=(2, *problem.shape))).astype(np.float32)


def density(arrays, report, folder):
    """Values, gradients and programs of the log density, before and after recentring."""
    for case in CASES:
        problem, name = problem_of_case(case), f"density {case}"
        delta = displacements(problem)
        lowered = jax.jit(problem.model.value_and_grad).lower(delta, problem.data)
        program = lowered.compile()
        arrays[f"{name} value"], arrays[f"{name} grad"] = program(delta, problem.data)
        text = program.as_text()
        report[name] = {
            "all-reduce": len(re.findall(r" all-reduce(?:-start)?\(", text)),
            "other": sorted(set(re.findall(r" (all-gather|all-to-all|collective-permute)", text))),
            "scatter": "stablehlo.scatter" in lowered.as_text() or " scatter(" in text,
        }
    problem = problem_of_case((37, 3, False))
    data, value = problem.model.recentred(displacements(problem)[0], problem.data)
    delta = displacements(problem)[1:]
    arrays["recentred value"], arrays["recentred grad"] = jax.jit(problem.model.value_and_grad)(
        delta, data
    )
    arrays["recentred constant"] = value
    problem = problem_of_case((37, 3, False), batch_size=10)
    likelihood = jax.jit(problem.model.log_likelihood)
    delta = displacements(problem)
    arrays["batches"] = [likelihood(delta, problem.data, jnp.int32(b)) for b in range(4)]
    gaussian = problem.model.gaussian("dense", 0 * delta, problem_of_case((37, 3, False)).data)
    arrays["variance"] = gaussian.variance()


def mesh(arrays, report, folder):
    """Chosen devices, in the order given; large factors are split over them by rows."""
    present, last = jax.devices(), len(jax.devices()) - 1
    report["devices"] = len(present)
    report["chosen"] = [present.index(d) for d in make_mesh([last, 0][: last + 1]).devices]
    report["first"] = [present.index(d) for d in make_mesh(max(last, 1)).devices]
    rows = 24 * 48
    placed = place_factor(make_mesh(), {"large": np.ones((rows, 1024)), "small": np.ones((8, 8))})
    report["shards"] = {k: a.addressable_shards[0].data.shape[0] for k, a in placed.items()}


def fitted(model, X, y, name, arrays, report):
    """Fit, and note what the fitted object holds and says."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y)
    complaints = [str(w.message) for w in caught if issubclass(w.category, ConvergenceWarning)]
    held = {n: v for n, v in vars(model).items() if n.endswith("_") or n.startswith("_")}
    report[name] = {
        "complaints": complaints,
        "on devices": [n for n in held if any(isinstance(a, jax.Array) for a in leaves(held[n]))],
        "shape": list(model.posterior_.draws["coef"].shape),
        "sampled": {k: type(v).__name__ for k, v in model.sample_posterior(5, 0).items()},
    }
    draws = [model.posterior_.flat("coef")[:, 0], model.posterior_.flat("intercept")]
    arrays[f"{name} draws"] = np.concatenate(draws, axis=1)
    arrays[f"{name} mean"] = np.r_[model.coef_[0], model.intercept_]
    arrays[f"{name} sd"] = np.r_[model.coef_std_[0], model.intercept_std_]
    if "accept_prob" in model.sampler_stats_:
        arrays[f"{name} accepted"] = model.sampler_stats_["accept_prob"]
    return model


def leaves(value):
    """Everything inside a fitted attribute."""
    if hasattr(value, "__dict__") and not isinstance(value, type):
        value = vars(value)
    return jax.tree.leaves(value)


def hmc(arrays, report, folder):
    """A fit of rows sorted by x, and one of fewer rows than devices; three chains each."""
    X, y = g_log37()
    order = np.argsort(X[:, 0])
    model = BayesianLogisticRegression(n_chains=3, random_state=0)
    fitted(model, X[order], y[order], "hmc", arrays, report)
    (folder / "hmc.pkl").write_bytes(pickle.dumps(model))
    predictions(model, "own", arrays)
    model = BayesianLogisticRegression(n_chains=3, random_state=0)
    fitted(model, *g_n3(), "three rows", arrays, report)
    arrays["three rows proba"] = model.predict_proba([[1.0]])


def svi(arrays, report, folder):
    """The structured Gaussian of rows sorted by x."""
    X, y = g_log37()
    order = np.argsort(X[:, 0])
    model = BayesianLogisticRegression(method="svi", random_state=0)
    fitted(model, X[order], y[order], "svi", arrays, report)


def guide(arrays, report, folder):
    """A Monte Carlo guide on mini-batches of a size that no number of devices divides."""
    model = BayesianLogisticRegression(
        method="svi", guide="mean_field", batch_size=13, max_iter=600, random_state=0
    )
    fitted(model, *g_log37(), "guide", arrays, report)


def typed(arrays, report, folder):
    """Fits of X of other types."""
    X, y = g_log37()
    for name, made in {
        "float32": X.astype(np.float32), "int": np.rint(X * 1e4).astype(int), "bool": X > 0,
    }.items():  # fmt: skip
        model = BayesianLogisticRegression(method="svi", random_state=0)
        fitted(model, made, y, f"svi {name}", arrays, report)


def predictions(model, name, arrays):
    for rows, X in AT.items():
        arrays[f"{name} {rows}"] = np.concatenate(model.predict_proba(X, return_std=True), axis=1)


def predict(arrays, report, folder):
    """Predictions of objects that were fitted elsewhere."""
    for path in sorted(folder.parent.glob("*.pkl")):
        predictions(pickle.loads(path.read_bytes()), path.stem, arrays)


def main(folder, *steps):
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    arrays, report = {}, {}
    for step in steps:
        globals()[step](arrays, report, folder)
    arrays = {name: np.asarray(value) for name, value in arrays.items()}
    np.savez(folder / "result.npz", report=json.dumps(report), **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
