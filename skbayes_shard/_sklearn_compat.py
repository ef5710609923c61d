"""The only place that imports scikit-learn's private names."""

from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_sample_weight as check_sample_weight

__all__ = ["Interval", "StrOptions", "check_sample_weight"]
