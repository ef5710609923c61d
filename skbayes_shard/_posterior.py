"""Named draws on the host: diagnostics, tables and export."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from arviz_stats.base import array_stats

_PROBES = 100


class Posterior:
    """Posterior draws by parameter, with labels for their axes.

    Parameters
    ----------
    draws : dict of str to ndarray
        Arrays of shape (n_chains, n_draws, ...).
    labels : dict of str to list of sequences
        For each parameter, the labels along each axis after chains and draws.
    log_density : ndarray of shape (n_chains, n_draws) or None
        Log posterior density of each draw, where the engine has it.
    independent : bool
        Whether draws are independent, as those of a variational posterior are. Diagnostics of
        chains are then left out.

    Attributes
    ----------
    draws, labels, log_density, independent
        As given.

    Examples
    --------
    >>> import numpy as np
    >>> from skbayes_shard import Posterior
    >>> draws = np.random.default_rng(0).normal(size=(4, 200, 2))
    >>> posterior = Posterior({"coef": draws}, {"coef": [["age", "income"]]})
    >>> list(posterior.summary().index)
    ['coef[age]', 'coef[income]']
    """

    def __init__(
        self,
        draws: dict[str, np.ndarray],
        labels: dict[str, list[Any]],
        log_density: np.ndarray | None = None,
        independent: bool = False,
    ):
        self.draws = draws
        self.labels = labels
        self.log_density = log_density
        self.independent = independent

    def __repr__(self) -> str:
        """Sizes by parameter."""
        sizes = ", ".join(f"{name}{value.shape[2:]}" for name, value in self.draws.items())
        chains, draws = self.shape
        return f"Posterior({chains} chains x {draws} draws: {sizes})"

    @property
    def shape(self) -> tuple[int, int]:
        """Number of chains and of draws in each."""
        return next(iter(self.draws.values())).shape[:2]

    def flat(self, name: str) -> np.ndarray:
        """Return draws of one parameter with chains joined.

        Parameters
        ----------
        name : str
            The parameter.

        Returns
        -------
        ndarray of shape (n_chains * n_draws, ...)
            Its draws, chain after chain.
        """
        value = self.draws[name]
        return value.reshape(-1, *value.shape[2:])

    def summary(self, diagnose: bool = True) -> pd.DataFrame:
        """Tabulate every scalar.

        Parameters
        ----------
        diagnose : bool, default=True
            Whether to add the diagnostics of chains, which take longest.

        Returns
        -------
        DataFrame
            One row for each scalar, named ``parameter[label, ...]``, with columns ``mean``,
            ``sd``, ``5%``, ``95%``, ``ess_bulk``, ``ess_tail`` and ``r_hat`` (bulk and tail
            effective sample size and rank-normalised split R-hat of Vehtari et al., 2021).
            The last three are NaN where draws are independent by construction.
        """
        names, columns = [], []
        for name, draws in self._scalars():
            names.extend(name)
            columns.append(draws)
        draws = np.concatenate(columns, axis=2)
        joined = draws.reshape(-1, draws.shape[2])
        low, high = np.quantile(joined, [0.05, 0.95], axis=0)
        table = {"mean": joined.mean(axis=0), "sd": deviation(joined, 0)}
        table |= {"5%": low, "95%": high}
        if diagnose:
            table |= self._diagnosed(draws)
        return pd.DataFrame(table, index=pd.Index(names, name="parameter"))

    def _diagnosed(self, draws: np.ndarray) -> dict[str, np.ndarray]:
        if self.independent:
            return {name: np.full(draws.shape[2], np.nan) for name in _DIAGNOSTICS}
        return diagnostics(draws)

    def probes(self, most: int = _PROBES) -> np.ndarray:
        """Return scalars spread evenly over all parameters.

        Parameters
        ----------
        most : int, default=100
            Largest number of scalars.

        Returns
        -------
        ndarray of shape (n_chains, n_draws, k)
            Their draws.
        """
        return spread_evenly(np.concatenate([d for _, d in self._scalars()], axis=2), most)

    def to_datatree(self) -> Any:
        """Convert to ArviZ's DataTree (extra ``arviz``).

        Returns
        -------
        xarray.DataTree
            Groups ``posterior`` and, where the log density is known, ``sample_stats``.
        """
        try:
            from arviz_base import from_dict
        except ImportError as error:
            raise ImportError(
                "to_datatree needs arviz-base: pip install 'skbayes_shard[arviz]'"
            ) from error
        dims = {k: [f"{k}_dim_{i}" for i in range(len(v))] for k, v in self.labels.items()}
        coords = {
            dim: list(values)
            for name, axes in self.labels.items()
            for dim, values in zip(dims[name], axes, strict=True)
        }
        groups = {"posterior": self.draws}
        if self.log_density is not None:
            groups["sample_stats"] = {"lp": self.log_density}
        return from_dict(groups, coords=coords, dims=dims)

    def _scalars(self) -> Iterator[tuple[list[str], np.ndarray]]:
        for name, value in self.draws.items():
            grid = np.ndindex(*value.shape[2:])
            axes = self.labels[name]
            labels = [", ".join(str(a[i]) for a, i in zip(axes, at, strict=True)) for at in grid]
            titles = [f"{name}[{label}]" if label else name for label in labels]
            yield titles, value.reshape(*value.shape[:2], -1)


_DIAGNOSTICS = ("ess_bulk", "ess_tail", "r_hat")


def spread_evenly(draws: np.ndarray, most: int = _PROBES) -> np.ndarray:
    """Return at most so many scalars of (n_chains, n_draws, n_scalars), evenly spread."""
    total = draws.shape[2]
    return draws[:, :, np.unique(np.linspace(0, total - 1, min(most, total)).astype(int))]


def deviation(draws: np.ndarray, axis: int | tuple[int, ...]) -> np.ndarray:
    """Return sample standard deviations over ``axis``; NaN for a single draw."""
    n = np.prod([draws.shape[i] for i in np.atleast_1d(axis)])
    squares = np.var(draws, axis=axis, dtype=np.float64)
    return np.sqrt(squares * n / (n - 1)) if n > 1 else np.full(squares.shape, np.nan)


def diagnostics(draws: np.ndarray) -> dict[str, np.ndarray]:
    """Bulk and tail effective sample sizes and rank-normalised R-hat, one for each scalar.

    Parameters
    ----------
    draws : ndarray of shape (n_chains, n_draws, n_scalars)
        NaN stands for what cannot be judged: fewer than 4 draws, or 8 of a single chain.
    """
    draws = np.asarray(draws, np.float64)
    n_chains, n_draws, n_scalars = draws.shape
    if n_chains == 1 and n_draws >= 8:
        # ArviZ compares chains; the halves of one chain serve as two.
        half = n_draws // 2
        draws = draws[:, -2 * half :].reshape(2, half, n_scalars)
    elif n_chains == 1 or n_draws < 4:
        return {name: np.full(draws.shape[2], np.nan) for name in _DIAGNOSTICS}
    axes = {"chain_axis": 0, "draw_axis": 1}
    # Scalars that never move have no R-hat: NaN, which counts as not converged.
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            "ess_bulk": np.asarray(array_stats.ess(draws, method="bulk", **axes)),
            "ess_tail": np.asarray(
                array_stats.ess(draws, method="tail", prob=(0.05, 0.95), **axes)
            ),
            "r_hat": np.asarray(array_stats.rhat(draws, method="rank", **axes)),
        }
