"""Devices, and how data are laid out over them: the only place that knows devices exist."""

from skbayes_shard.sharding.layout import BlockLayout, batch_layout, block_layout, bucket
from skbayes_shard.sharding.mesh import AXIS, host, make_mesh, place_blocks, place_factor, replicate

__all__ = [
    "AXIS",
    "BlockLayout",
    "batch_layout",
    "block_layout",
    "bucket",
    "host",
    "make_mesh",
    "place_blocks",
    "place_factor",
    "replicate",
]
