"""The only place that imports scikit-learn's private names."""

from numbers import Integral
from typing import Any

from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_sample_weight as check_sample_weight

__all__ = ["Count", "Interval", "StrOptions", "check_sample_weight"]


class Count(Interval):
    """A whole number from 1 on; True is not one."""

    def __init__(self):
        super().__init__(Integral, 1, None, closed="left")

    def is_satisfied_by(self, val: Any) -> bool:
        """Judge a parameter."""
        return not isinstance(val, bool) and super().is_satisfied_by(val)
