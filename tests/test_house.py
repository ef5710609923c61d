"""The rules of the house: who may import what, how long a file may be, what an import may change.

The source is read, not run, so a rule holds for every branch of the code.
"""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "skbayes_shard"
SOURCES = sorted((ROOT / PACKAGE).rglob("*.py"))
MAX_LINES = 600

# The rooms from the ground up. A module may import rooms below its own, and its own.
FRONT_DOORS = ("_logistic", "_elasticity", "_factorization")
FLOORS = (
    ("sharding",),
    ("gaussians",),
    ("models",),
    ("inference",),
    ("_posterior",),
    ("_progress", "_sklearn_compat"),
    ("_labels",),
    ("_base",),
    FRONT_DOORS,
)
FLOOR = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
# Above or beside the floors: they may import any room, and no room imports them.
OUTSIDE = ("__init__", "demo", "plots", "datasets")


def _room(module):
    """The first name below the package: ``skbayes_shard.models.panel`` lives in ``models``."""
    return module.split(".")[1] if "." in module else "__init__"


def _module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(tree, module, is_package):
    """Every module that a file imports, absolute, with the line.

    ``from a import b`` counts as ``a.b``, since ``b`` may be a module. Imports inside functions
    and by name (``importlib.import_module("a")``) count too.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                # Level 1 is the package that holds the module, which may be the module itself.
                drop = node.level - is_package
                parts = module.split(".")
                base = ".".join([*parts[: len(parts) - drop], *([base] if base else [])])
            for alias in node.names:
                yield base if alias.name == "*" else f"{base}.{alias.name}", node.lineno
        elif isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            argument = node.args[0]
            if name in ("import_module", "__import__") and isinstance(argument, ast.Constant):
                yield argument.value, node.lineno


def _house_imports():
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        module = _module_name(path)
        for target, line in _imports(tree, module, path.name == "__init__.py"):
            yield module, target, f"{path.relative_to(ROOT)}:{line} imports {target}"


IMPORTS = list(_house_imports())


def _importers(library):
    """The package's imports of an outside library."""
    return [(m, where) for m, target, where in IMPORTS if target.split(".")[0] == library]


def test_sources_were_found():
    assert len(SOURCES) > 5
    assert IMPORTS


def test_tfp_is_imported_in_one_file():
    allowed = f"{PACKAGE}.inference.hmc"
    assert [w for m, w in _importers("tensorflow_probability") if m != allowed] == []


def test_numpyro_is_imported_by_models_and_svi():
    bad = [
        where
        for module, where in _importers("numpyro")
        if _room(module) != "models" and module != f"{PACKAGE}.inference.svi"
    ]
    assert bad == []


@pytest.mark.parametrize("room", ["sharding", "gaussians", "models", "inference"])
def test_sklearn_stays_out_of_the_lower_rooms(room):
    assert [where for module, where in _importers("sklearn") if _room(module) == room] == []


def test_every_module_has_a_place():
    # A new top-level module gets its place in FLOORS or OUTSIDE on purpose, not by accident.
    rooms = {_room(_module_name(path)) for path in SOURCES}
    assert rooms - set(FLOOR) - set(OUTSIDE) == set()


def test_imports_point_down():
    bad = []
    for module, target, where in IMPORTS:
        source = _room(module)
        if target.split(".")[0] != PACKAGE or source not in FLOOR:
            continue
        below = FLOOR.get(_room(target), len(FLOORS))
        if _room(target) != source and below >= FLOOR[source]:
            bad.append(where)
    assert bad == []


def test_engines_know_no_model():
    # Models reach an engine as functions, so that a new model needs no change there.
    bad = [
        where
        for module, target, where in IMPORTS
        if _room(module) == "inference" and target.startswith(f"{PACKAGE}.models")
    ]
    assert bad == []


@pytest.mark.parametrize("folder", [PACKAGE, "tests", "benchmarks", "docs"])
def test_files_are_short(folder):
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in (ROOT / folder).rglob("*.py")
    }
    assert {name: n for name, n in lengths.items() if n > MAX_LINES} == {}


# The libraries come first: what they change themselves is not the package's doing. TFP is not
# among them, since nothing may load it before method="hmc" asks for it.
IMPORT_PROBE = """
import json, os, random, sys
import arviz_stats, jax, numpy, numpyro, optax, pandas, sklearn
from jax._src import xla_bridge

def state():
    return {
        "environment": dict(os.environ),
        "jax config": {k: repr(v) for k, v in jax.config.values.items()},
        "numpy seed": numpy.random.get_state()[1].tolist(),
        "python seed": hash(random.getstate()),
        "numpy errors": numpy.geterr(),
    }

before, loaded = state(), set(sys.modules)
import skbayes_shard
for name in skbayes_shard.__all__:
    getattr(skbayes_shard, name)
after = state()
print(json.dumps({
    "changed": [key for key in before if before[key] != after[key]],
    "x64": jax.config.jax_enable_x64,
    "loaded": sorted({"tensorflow_probability", "matplotlib"} & (set(sys.modules) - loaded)),
    "backend": xla_bridge.backends_are_initialized(),
}))
"""


def test_import_changes_nothing():
    # A fresh interpreter, and any warning on the way is an error.
    environment = {k: v for k, v in os.environ.items() if k != "JAX_ENABLE_X64"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORT_PROBE],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "changed": [],
        "x64": False,
        "loaded": [],
        "backend": False,
    }
