"""A progress bar, when asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(verbose: int, total: int, title: str) -> Iterator[Callable[[int], None]]:
    """Give a function that is told finished steps; with ``verbose`` it drives a tqdm bar."""
    if not verbose:
        yield lambda steps: None
        return
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise ImportError(
            "verbose=1 shows a progress bar with tqdm: pip install 'skbayes_shard[progress]'"
        ) from error
    with tqdm(total=total, desc=title) as bar:
        yield bar.update
