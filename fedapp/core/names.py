"""Which names classes, findings, sites and runs may have: one rule for each kind of name.

The rule holds wherever a name enters: settings, messages, the Python API, folders of classes and
the folder of a model. The name of a class may be in any language. Characters that have a meaning in
one kind of output (HTML, Markdown, CSV) are escaped where that output is written. What a program
that reads a file could execute, and what is invisible, is refused here.
"""

import re
import unicodedata
from collections.abc import Iterable

from fedapp.core.errors import DataError

SITE_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
"""Regular expression of a site's name, which is also used as the name of a folder."""
RUN_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}"
"""Regular expression of a run's name, which is the name of its folder."""
MAX_CLASS_NAME = 200
"""Maximum length in characters of the name of a class or finding."""

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""Characters with which a cell begins that a spreadsheet would evaluate as a formula."""
_CODE_STARTS = ("$", "@", "%")
"""First characters of an expression, a reference and an inclusion in MONAI's configurations."""
_INVISIBLE = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}
"""Unicode categories of characters that are invisible, end a line or turn the reading direction."""
_JOINERS = "\u200c\u200d"
"""Invisible joiners that are nevertheless allowed: Persian and Indian languages spell with them."""


def class_name(name: str) -> str:
    """Return a valid name of a class or finding unchanged. Raises ValueError naming the rule."""
    if why := _broken_rule(name):
        raise ValueError(f"{name!r}: a class's name {why}: rename it")
    return name


def check_class_names(names: Iterable[str]) -> None:
    """Raise DataError for the first name that is not valid for a class or finding."""
    try:
        for name in names:
            class_name(name)
    except ValueError as error:
        raise DataError(f"classes: {error}") from error


def folder_name(name: str) -> str:
    """Check, like `class_name`, the name of a class that is also the name of a folder."""
    if name.startswith(".") or any(sign in name for sign in "/\\"):
        raise ValueError(
            f"{name!r}: a class's name is also a folder's: no slash, and no dot in front: rename it"
        )
    return class_name(name)


def one_visible_line(text: str) -> str:
    """Return a text that is one line of visible characters. Raises ValueError naming the rule."""
    if any(_is_invisible(sign) for sign in text):
        raise ValueError(f"{text!r}: must be one line, without control characters")
    return text


def csv_cell(name: str) -> str:
    """Return a name as a CSV cell that no spreadsheet evaluates: `'` is put before a formula."""
    return f"'{name}" if name.lstrip("'").startswith(FORMULA_STARTS) else name


def from_csv_cell(text: str) -> str:
    """Undo `csv_cell`; any other text is returned unchanged."""
    return text[1:] if text.startswith("'") and csv_cell(text) != text else text


def markdown_escaped(name: str) -> str:
    """Return a name with its Markdown characters escaped, so that it is shown literally."""
    return re.sub(r"([\\`*_{}\[\]<>()#!|~&$])", r"\\\1", name)


def _broken_rule(name: str) -> str:
    """Return the rule that a name breaks, or an empty text."""
    if not 0 < len(name) <= MAX_CLASS_NAME:
        return f"has 1 to {MAX_CLASS_NAME} characters"
    if name != name.strip():
        return "neither begins nor ends with a space"
    if name.startswith(_CODE_STARTS):
        return f"does not begin with {', '.join(_CODE_STARTS[:-1])} or {_CODE_STARTS[-1]}"
    if any(_is_invisible(sign) for sign in name):
        return "has no control characters, and none that are invisible or turn the direction"
    return ""


def _is_invisible(sign: str) -> bool:
    return unicodedata.category(sign) in _INVISIBLE and sign not in _JOINERS
