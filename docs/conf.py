"""Sphinx configuration."""

from importlib.metadata import version as installed_version

project = "skbayes_shard"
author = "the skbayes_shard developers"
version = release = installed_version("skbayes_shard")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
]
exclude_patterns = ["_build"]
templates_path = ["_templates"]
html_theme = "alabaster"
html_title = f"skbayes_shard {release}"

autodoc_typehints = "none"  # the numpydoc sections name the types
numpydoc_show_class_members = False  # the class template lists the members


def skip_foreign_member(app, what, name, obj, skip, options):
    """Leave out members that come from scikit-learn: their links lead into its own manual."""
    owner = getattr(obj, "fget", None) or obj
    module = getattr(owner, "__module__", None)
    if module is not None and not module.startswith(f"{project}."):
        return True
    return None


def setup(app):
    """Register the member filter."""
    app.connect("autodoc-skip-member", skip_foreign_member)
