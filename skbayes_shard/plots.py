"""Pictures of a fitted estimator (matplotlib, extra ``plot``), in scikit-learn's Display style."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted


def _axes(ax: Any, **size: Any) -> Any:
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'skbayes_shard[plot]'") from error
    return plt.subplots(**size)[1]


class TraceDisplay:
    """Log posterior density of each chain, draw by draw.

    Parameters
    ----------
    log_density : ndarray of shape (n_chains, n_draws)
        Log posterior density.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Where it was drawn; set by ``plot``.
    """

    def __init__(self, log_density: np.ndarray):
        self.log_density = log_density

    @classmethod
    def from_estimator(cls, estimator: Any, ax: Any = None) -> TraceDisplay:
        """Draw the trace of an HMC fit.

        Parameters
        ----------
        estimator : estimator fitted with ``method="hmc"``
            What to draw.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        TraceDisplay
            The display.
        """
        check_is_fitted(estimator, "posterior_")
        if estimator.posterior_.log_density is None:
            raise ValueError("there are no chains to draw: the estimator was fitted by 'svi'.")
        return cls(estimator.posterior_.log_density).plot(ax)

    def plot(self, ax: Any = None) -> TraceDisplay:
        """Draw.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        TraceDisplay
            The display.
        """
        self.ax_ = _axes(ax, figsize=(7, 3), layout="constrained")
        for number, chain in enumerate(self.log_density):
            self.ax_.plot(chain, lw=0.6, label=f"chain {number}")
        self.ax_.set(xlabel="draw", ylabel="log posterior density")
        self.ax_.legend(ncols=len(self.log_density), fontsize="small", loc="lower right")
        return self


class IntervalDisplay:
    """Posterior means and intervals of the largest parameters.

    Parameters
    ----------
    table : DataFrame
        As ``summary()`` returns it.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Where it was drawn; set by ``plot``.
    """

    def __init__(self, table: Any):
        self.table = table

    @classmethod
    def from_estimator(cls, estimator: Any, n_parameters: int = 20, ax: Any = None) -> Any:
        """Draw the parameters that lie furthest from zero in standard deviations.

        Parameters
        ----------
        estimator : fitted estimator
            What to draw.
        n_parameters : int, default=20
            How many parameters.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        IntervalDisplay
            The display.
        """
        check_is_fitted(estimator, "posterior_")
        table = estimator.posterior_.summary(diagnose=False)
        order = (table["mean"].abs() / table["sd"]).sort_values(ascending=False).index
        return cls(table.loc[order[:n_parameters]]).plot(ax)

    def plot(self, ax: Any = None) -> IntervalDisplay:
        """Draw.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a figure.

        Returns
        -------
        IntervalDisplay
            The display.
        """
        height = 1 + 0.22 * len(self.table)
        self.ax_ = _axes(ax, figsize=(6, height), layout="constrained")
        table = self.table[::-1]
        rows = np.arange(len(table))
        self.ax_.hlines(rows, table["5%"], table["95%"], lw=1.5)
        self.ax_.plot(table["mean"], rows, "o", ms=4)
        self.ax_.axvline(0, color="0.7", lw=0.8, zorder=0)
        self.ax_.set_yticks(rows, table.index, fontsize="small")
        self.ax_.set_xlabel("posterior mean and 90 % interval")
        return self
