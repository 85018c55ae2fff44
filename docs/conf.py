"""The documentation site: `make docs` builds it from docs/*.md, without a network."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

project = "fedapp"
copyright = "the fedapp authors, Apache-2.0"
html_title = "fedapp"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "fromcode",
    "mathml",
    "offline",
    "whole",
]
exclude_patterns = ["_ext"]
highlight_language = "none"  # of blocks that name no language: commands and what they print
html_theme = "furo"
html_math_renderer = "mathml"

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
add_module_names = False

nitpicky = True
# Types in signatures: of other libraries, or of ours that have no page.
nitpick_ignore_regex = [("py:class", r"(?!fedapp\.methods\.).*|fedapp\.methods\.base\.State")]
