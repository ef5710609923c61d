"""Every public name carries a complete numpydoc docstring."""

import inspect

import pytest
from numpydoc.validate import validate

import skbayes_shard

IGNORED = {
    "GL01",  # the summary starts on the line of the opening quotes
    "ES01",  # a summary alone may say all there is to say
    "SA01",  # "See Also" where there is something to see, not everywhere
    "SA04",  # ... and names that explain themselves need no description
    "RT02",  # "name : type" in Returns is allowed, as in scikit-learn
}
# The class shows its methods at work in one example; a method without its own is fine.
IGNORED_FOR_METHODS = IGNORED | {"EX01"}


def _own_members(cls):
    """Public methods and properties written in this package, inherited ones included."""
    for name in dir(cls):
        if name.startswith("_"):
            continue
        member = inspect.getattr_static(cls, name)
        member = member.fget if isinstance(member, property) else getattr(cls, name)
        if inspect.isroutine(member) and member.__module__.split(".")[0] == "skbayes_shard":
            yield name


def _public_objects():
    for name in skbayes_shard.__all__:
        obj = getattr(skbayes_shard, name)
        if inspect.isclass(obj) or inspect.isroutine(obj):
            yield pytest.param(f"skbayes_shard.{name}", IGNORED, id=name)
        if inspect.isclass(obj):
            for member in _own_members(obj):
                path = f"skbayes_shard.{name}.{member}"
                yield pytest.param(path, IGNORED_FOR_METHODS, id=f"{name}.{member}")


@pytest.mark.parametrize(("path", "ignored"), list(_public_objects()))
def test_docstring_is_valid(path, ignored):
    errors = [f"{code}: {text}" for code, text in validate(path)["errors"] if code not in ignored]
    assert not errors, "\n".join([path, *errors])


def test_package_has_public_names():
    # Otherwise an empty __all__ would leave nothing to check above.
    assert "BayesianLogisticRegression" in skbayes_shard.__all__
