"""What the scripts share: options, data, timing, effective sample sizes, tables, results."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from arviz_stats.base import array_stats
from sklearn.exceptions import ConvergenceWarning

from skbayes_shard import _base

_HERE = Path(__file__).resolve().parent
_RESULTS = _HERE / "results"
_SCALARS_AT_ONCE = 500
_COMPILE = "/jax/core/compile/backend_compile_duration"


# ---------------------------------------------------------------- options


def parser(doc: str) -> argparse.ArgumentParser:
    """Return a parser with the options of every script."""
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--quick", action="store_true", help="tiny settings: a smoke run")
    made.add_argument(
        "--cpu-devices", type=int, metavar="N", help="split the CPU into N devices for JAX"
    )
    return made


def parse(made: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line and set the number of CPU devices, before JAX starts."""
    args = made.parse_args()
    if args.cpu_devices:
        jax.config.update("jax_num_cpu_devices", args.cpu_devices)
    jax.monitoring.register_event_duration_secs_listener(_Compiled.listen)
    return args


# ---------------------------------------------------------------- data


class MissingDataError(Exception):
    """A data set is absent."""


def data_file(name: str) -> Path:
    """Path of a file in the data folder, or :class:`MissingDataError`."""
    folder = os.environ.get("SKBAYES_SHARD_DATA")
    path = (Path(folder) if folder else _HERE.parents[1] / "shared" / "data") / name
    if not path.is_file():
        raise MissingDataError(f"{name} is absent; SKBAYES_SHARD_DATA names the data folder")
    return path


def load_or_skip(load: Callable[[], Any]) -> Any:
    """Call a loader; where its data are absent say so and return None."""
    try:
        return load()
    except MissingDataError as error:
        print(f"SKIPPED: {error}", flush=True)
        return None


def read_idx(path: Path) -> np.ndarray:
    """Read a gzipped IDX file of bytes."""
    with gzip.open(path) as file:
        content = file.read()
    n_dims = content[3]
    shape = np.frombuffer(content, ">u4", n_dims, 4).astype(int)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * n_dims).reshape(shape)


def mnist(part: str) -> tuple[np.ndarray, np.ndarray]:
    """Pixels over 255, (n, 784) in float32, and labels of ``"train"`` or ``"t10k"``."""
    images = read_idx(data_file(f"mnist/{part}-images-idx3-ubyte.gz"))
    labels = read_idx(data_file(f"mnist/{part}-labels-idx1-ubyte.gz"))
    return images.reshape(len(images), -1) / np.float32(255), labels.astype(np.int64)


def german_credit() -> tuple[np.ndarray, np.ndarray]:
    """Statlog German credit: 24 columns standardised, and whether credit was bad."""
    with gzip.open(data_file("classification/german_credit_numeric.csv.gz"), "rt") as file:
        table = np.loadtxt(file, delimiter=",", skiprows=1)
    X = table[:, :-1]
    return (X - X.mean(axis=0)) / X.std(axis=0), table[:, -1].astype(np.int64)


def wells() -> tuple[np.ndarray, np.ndarray]:
    """Wells in Bangladesh: distance in 100 m, arsenic, association, education in 4 years."""
    with data_file("reference_problems/wells_data.json").open() as file:
        raw = {name: np.asarray(value, float) for name, value in json.load(file).items()}
    X = np.stack([raw["dist"] / 100, raw["arsenic"], raw["assoc"], raw["educ"] / 4], axis=1)
    return X, raw["switched"].astype(np.int64)


# ---------------------------------------------------------------- timing


class _Compiled:
    """Programs that XLA has compiled in this process."""

    count, seconds = 0, 0.0

    @classmethod
    def listen(cls, event: str, seconds: float, **_: Any) -> None:
        if event == _COMPILE:
            cls.count += 1
            cls.seconds += seconds


class Timed(NamedTuple):
    """A result, and what it took; ``compile_seconds`` (XLA's alone) are part of ``seconds``."""

    value: Any
    seconds: float
    compile_seconds: float
    n_programs: int
    complaints: list[str]

    def record(self) -> dict[str, Any]:
        """Return everything but the result."""
        return {name: value for name, value in self._asdict().items() if name != "value"}


def timed(call: Callable[[], Any]) -> Timed:
    """Run a function to its end; keep its convergence warnings, show its others."""
    count, spent = _Compiled.count, _Compiled.seconds
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        value = jax.block_until_ready(call())
    seconds = time.perf_counter() - start
    complaints = []
    for warning in caught:
        if issubclass(warning.category, ConvergenceWarning):
            complaints.append(str(warning.message))
        else:
            print(f"{warning.category.__name__}: {warning.message}", file=sys.stderr)
    spent, count = _Compiled.seconds - spent, _Compiled.count - count
    return Timed(value, seconds, spent, count, complaints)


@contextmanager
def watched_steps() -> Iterator[list[tuple[int, float]]]:
    """Record (steps done, time) whenever an engine reports progress, in the order it does."""
    seen: list[tuple[int, float]] = []

    @contextmanager
    def progress(*_: Any) -> Iterator[Callable[[int], None]]:
        done = 0
        seen.append((done, time.perf_counter()))

        def tick(steps: int) -> None:
            nonlocal done
            done += steps
            seen.append((done, time.perf_counter()))

        yield tick

    original, _base.progress = _base.progress, progress
    try:
        yield seen
    finally:
        _base.progress = original


# ---------------------------------------------------------------- effective sample sizes


def bulk_ess(draws: np.ndarray) -> np.ndarray:
    """Bulk effective sample sizes of scalars, from draws of shape (chains, draws, ...)."""
    return _by_scalar(array_stats.ess, draws, "bulk")


def rank_r_hat(draws: np.ndarray) -> np.ndarray:
    """Rank-normalised split R-hat of scalars, from draws of shape (chains, draws, ...)."""
    return _by_scalar(array_stats.rhat, draws, "rank")


def _by_scalar(measure: Callable[..., Any], draws: np.ndarray, method: str) -> np.ndarray:
    flat = draws.reshape(*draws.shape[:2], -1)
    parts = [
        measure(
            flat[:, :, start : start + _SCALARS_AT_ONCE].astype(np.float64),
            chain_axis=0,
            draw_axis=1,
            method=method,
        )
        for start in range(0, flat.shape[2], _SCALARS_AT_ONCE)
    ]
    return np.concatenate([np.atleast_1d(part) for part in parts])


# ---------------------------------------------------------------- tables and results


def moments(model: Any, n_draws: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations of all coefficients, then of the intercepts.

    With ``n_draws`` the standard deviations are those of so many draws made anew.
    """
    sd = [model.coef_std_, model.intercept_std_]
    if n_draws is not None:
        drawn = model.sample_posterior(n_draws, random_state=0)
        sd = [drawn[name].std(axis=0, ddof=1) for name in ("coef", "intercept")]
    mean = [model.coef_, model.intercept_]
    return tuple(np.concatenate([np.ravel(part) for part in parts]) for parts in (mean, sd))


def table(title: str, rows: list[dict[str, Any]]) -> None:
    """Print rows of equal keys as a table."""
    lines = [list(rows[0]), *([_shown(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    print(f"\n{title}")
    for line in lines:
        cells = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
        print("  ".join([line[0].ljust(widths[0]), *cells]))
    print(flush=True)


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)


def save(name: str, args: argparse.Namespace, result: dict[str, Any]) -> None:
    """Write a result; a smoke run never replaces a real one."""
    path = _RESULTS / f"{name}.json"
    if args.quick and path.is_file() and not json.loads(path.read_text())["options"]["quick"]:
        print(f"{path.name} holds a full run, which this smoke run does not replace")
        return
    machine = {"jax": jax.__version__, "devices": [d.device_kind for d in jax.devices()]}
    machine["cores"] = os.cpu_count()
    _RESULTS.mkdir(exist_ok=True)
    content = {"options": vars(args), "machine": machine, **result}
    path.write_text(json.dumps(content, indent=1, default=float) + "\n")
