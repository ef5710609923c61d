"""Bayesian regression in scikit-learn's terms, sharded over every device."""

from skbayes_shard._logistic import BayesianLogisticRegression
from skbayes_shard._posterior import Posterior

__all__ = ["BayesianLogisticRegression", "Posterior"]
__version__ = "0.1.0"
