"""Sphinx settings: Markdown pages, and the API from docstrings."""

from importlib.metadata import version as _version

project = "pce-jax"
copyright = "the pce-jax authors"
version = release = _version("pce-jax")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
myst_enable_extensions = ["dollarmath", "deflist"]
exclude_patterns = ["_build"]

default_role = "code"  # docstrings write names in single back quotes
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # shapes stand in the signature's annotations and in the text
napoleon_attr_annotations = False
autodoc_default_options = {"members": True}
add_module_names = False

html_theme = "alabaster"
html_theme_options = {
    "description": "Parallel context encoding for Llama-style models in JAX",
    "fixed_sidebar": True,
    "page_width": "1080px",
}
