"""The device mesh, and moving arrays onto it and back."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "data"
_LARGE = 2**20


def make_mesh(devices: int | Sequence[Any] | None = None) -> Mesh:
    """Return a one-axis mesh over the given devices.

    Parameters
    ----------
    devices : None, int or sequence of int or jax.Device, default=None
        None takes every device of the default backend, an integer the first so many, a
        sequence exactly those, named by position in ``jax.devices()`` or as device objects.

    Returns
    -------
    jax.sharding.Mesh
        Axis ``"data"``, automatic sharding.

    Raises
    ------
    ValueError
        If a device does not exist or is given twice.
    NotImplementedError
        If several processes take part (``jax.distributed``).
    """
    if jax.process_count() > 1:
        raise NotImplementedError(
            f"fitting over several processes is not supported yet: jax.process_count() is "
            f"{jax.process_count()}. Run one process per machine."
        )
    return Mesh(np.array(_chosen(devices, jax.devices())), (AXIS,))


def _chosen(devices: Any, present: list[Any]) -> list[Any]:
    if devices is None:
        return present
    if isinstance(devices, Integral) and not isinstance(devices, bool):
        if not 1 <= devices <= len(present):
            raise ValueError(
                f"devices={devices!r}: the number of devices must lie between 1 and "
                f"{len(present)}, the number that JAX sees. On CPU, more virtual devices can be "
                "had by setting XLA_FLAGS=--xla_force_host_platform_device_count before the "
                "first use of JAX."
            )
        return present[: int(devices)]
    listed = isinstance(devices, Sequence) or np.ndim(devices) > 0
    if isinstance(devices, str | bytes | bool) or not listed:
        raise ValueError(f"devices must be None, an integer or a list of devices; got {devices!r}.")
    return _listed(list(devices), present)


def _listed(devices: list[Any], present: list[Any]) -> list[Any]:
    found = []
    for device in devices:
        named = isinstance(device, Integral) and not isinstance(device, bool)
        if named and 0 <= device < len(present):
            device = present[int(device)]
        if not isinstance(device, jax.Device):
            raise ValueError(
                f"devices: {device!r} is not a device; JAX sees {len(present)} "
                f"({', '.join(map(str, present))})."
            )
        found.append(device)
    if not found or len(set(found)) < len(found):
        raise ValueError(f"devices must name at least one device, each once; got {devices!r}.")
    return found


def place_blocks(mesh: Mesh, blocks: Any) -> Any:
    """Put a pytree of arrays on the mesh, split along the first axis (blocks)."""
    return jax.device_put(blocks, NamedSharding(mesh, PartitionSpec(AXIS)))


def replicate(mesh: Mesh, tree: Any) -> Any:
    """Put a pytree of arrays on every device of the mesh."""
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))


def place_factor(mesh: Mesh, tree: Any) -> Any:
    """Put the arrays of a Gaussian on the mesh; large matrices are split by rows where they can be.

    A product with a split matrix is shared out; with a replicated one every device does it all.
    """

    def place(leaf: Any) -> Any:
        split = leaf.size >= _LARGE and leaf.ndim == 2 and leaf.shape[0] % mesh.size == 0
        return jax.device_put(leaf, NamedSharding(mesh, PartitionSpec(AXIS if split else None)))

    return jax.tree.map(place, tree)


def host(tree: Any) -> Any:
    """Bring a pytree of arrays to NumPy, waiting for the devices to finish."""
    return jax.tree.map(np.asarray, jax.device_get(tree))
