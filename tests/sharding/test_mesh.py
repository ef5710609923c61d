"""Meshes over chosen devices; what several devices do is in ``tests/test_devices.py``."""

import jax
import numpy as np
import pytest

from skbayes_shard.sharding import (
    AXIS,
    block_layout,
    host,
    make_mesh,
    place_blocks,
    place_factor,
    replicate,
)

FIRST = jax.devices()[0]


@pytest.mark.parametrize(
    "devices",
    [1, np.int64(1), [0], (0,), range(1), np.array([0]), [np.int32(0)], [FIRST]],
    ids=lambda value: f"{type(value).__name__}-{value!r:.12}",
)
def test_ways_to_name_the_first_device(devices):
    """A number, positions and device objects all name the first device."""
    mesh = make_mesh(devices)
    assert mesh.devices.tolist() == [FIRST]
    assert mesh.axis_names == (AXIS,)


def test_default_is_every_device():
    """None takes all devices in JAX's order."""
    assert make_mesh(None).devices.tolist() == jax.devices()
    assert make_mesh().size == len(jax.devices())


def test_equal_choices_make_equal_meshes():
    """Meshes are static arguments of compiled programs, so they hash and compare by devices."""
    assert make_mesh(1) == make_mesh([0])
    assert hash(make_mesh(1)) == hash(make_mesh([0]))


@pytest.mark.parametrize("devices", [0, -1, 99, np.int64(0)], ids=repr)
def test_impossible_numbers(devices):
    """The error names the number asked for and the number there is."""
    with pytest.raises(ValueError, match=rf"devices.*{int(devices)}.*between 1 and \d") as error:
        make_mesh(devices)
    assert "XLA_FLAGS" in str(error.value)


@pytest.mark.parametrize(
    "devices",
    [True, False, "0", "cpu", b"0", 1.0, {0: 1}, {0}, np.array(1), object()],
    ids=lambda value: f"{type(value).__name__}-{value!r:.12}",
)
def test_what_is_no_choice_of_devices(devices):
    """Booleans, strings and other objects are refused, not interpreted."""
    with pytest.raises(ValueError, match="devices"):
        make_mesh(devices)


@pytest.mark.parametrize(
    "devices",
    [[99], [-1], [0.0], ["cpu"], [None], [True], [False], [[0]], np.array([[0]]), [0, 99]],
    ids=repr,
)
def test_lists_of_what_is_no_device(devices):
    """Each entry of a list must be a device or the position of one."""
    with pytest.raises(ValueError, match="is not a device"):
        make_mesh(devices)


@pytest.mark.parametrize("devices", [[], [0, 0], [FIRST, FIRST], [0, FIRST]], ids=repr)
def test_lists_name_each_device_once(devices):
    """An empty list or a device named twice is refused."""
    with pytest.raises(ValueError, match="at least one device, each once"):
        make_mesh(devices)


def test_several_processes_are_refused(monkeypatch):
    """Until it is supported, a fit over several processes says so at once."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(NotImplementedError, match="process_count"):
        make_mesh()


@pytest.mark.parametrize("place", [place_blocks, replicate, place_factor])
def test_placed_arrays_come_back(place):
    """A pytree goes to the mesh and back unchanged, as NumPy arrays on the host."""
    mesh = make_mesh()
    blocks = block_layout(37, mesh.size, 64).spread(np.arange(37.0, dtype=np.float32))
    tree = {"a": blocks, "b": (blocks + 1, np.ones_like(blocks, dtype=np.int32))}
    placed = place(mesh, tree)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(placed))
    back = host(placed)
    assert jax.tree.structure(back) == jax.tree.structure(tree)
    for leaf, original in zip(jax.tree.leaves(back), jax.tree.leaves(tree), strict=True):
        assert type(leaf) is np.ndarray
        assert leaf.dtype == original.dtype
        assert np.array_equal(leaf, original)
