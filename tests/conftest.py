"""What every test module shares."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def _compiled_programs_go_with_their_module() -> Iterator[None]:
    """Drop compiled programs after each module.

    Each holds several memory mappings. The whole suite compiles more than a process may map by
    default on Linux (65,530), and XLA crashes at the limit.
    """
    yield
    jax.clear_caches()
