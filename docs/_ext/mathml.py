"""Formulae as MathML, which browsers draw themselves: the pages load no script and no font."""

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.typing import ExtensionMetadata
from sphinx.writers.html5 import HTML5Translator

_log = logging.getLogger(__name__)


def _inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(_drawn(node, as_block=False))
    raise nodes.SkipNode


def _block(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math">{_drawn(node, as_block=True)}</div>')
    raise nodes.SkipNode


def _drawn(node: nodes.Element, as_block: bool) -> str:
    """Return a formula as MathML; where it cannot be read, warn, which fails the build.

    The exception itself is lost in a parallel build, and with it all pages that the same process
    had to write.
    """
    try:
        drawn: str = tex2mathml(node.astext(), as_block=as_block)
        return drawn
    except MathError as error:
        _log.warning("a formula: %s", error, location=node)
        return ""


def setup(app: Sphinx) -> ExtensionMetadata:
    """Offer the renderer `mathml`."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
