"""What classes, findings, sites and runs may be called: one rule for each, at every door.

Doors are settings, messages, the Python API, folders of classes and the folder of a model. A name
of a class may be in any language. What one kind of output would read as its own language (HTML,
Markdown, CSV) is escaped where it is written; what a program that reads a file would run, and what
no eye sees, is refused here.
"""

import re
import unicodedata
from collections.abc import Iterable

from fedapp.core.errors import DataError

SITE_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
"""What a site may be called; it is also a folder's name."""
RUN_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}"
"""What a run may be called, for the same reason."""
MAX_CLASS_NAME = 200
"""Characters of the name of a class or finding."""

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""How a cell begins that a spreadsheet computes."""
_CODE_STARTS = ("$", "@", "%")
"""How an expression, a reference and an inclusion begin in configurations such as MONAI's."""
_INVISIBLE = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}
"""Unicode's categories of what shows nothing, ends a line or turns the reading direction."""
_JOINERS = "\u200c\u200d"
"""Of that category, but spelling in Persian and in languages of India."""


def class_name(name: str) -> str:
    """Return the name of a class or finding as it is. Raises ValueError, which says the rule."""
    if why := _broken_rule(name):
        raise ValueError(f"{name!r}: a class's name {why}: rename it")
    return name


def check_class_names(names: Iterable[str]) -> None:
    """Raise DataError naming the first that cannot be the name of a class or finding."""
    try:
        for name in names:
            class_name(name)
    except ValueError as error:
        raise DataError(f"classes: {error}") from error


def folder_name(name: str) -> str:
    """Return the name of a class that is also a folder's, as `class_name`."""
    if name.startswith(".") or any(sign in name for sign in "/\\"):
        raise ValueError(
            f"{name!r}: a class's name is also a folder's: no slash, and no dot in front: rename it"
        )
    return class_name(name)


def one_visible_line(text: str) -> str:
    """Return a text of one line, all of which is seen. Raises ValueError, which says the rule."""
    if any(_is_invisible(sign) for sign in text):
        raise ValueError(f"{text!r}: must be one line, without control characters")
    return text


def csv_cell(name: str) -> str:
    """Return a name as a cell of CSV that no spreadsheet computes: `'` in front of a formula."""
    return f"'{name}" if name.lstrip("'").startswith(FORMULA_STARTS) else name


def from_csv_cell(text: str) -> str:
    """Return the name that `csv_cell` wrote, and any other text as it is."""
    return text[1:] if text.startswith("'") and csv_cell(text) != text else text


def markdown_escaped(name: str) -> str:
    """Return a name as Markdown that shows it, whatever signs are in it."""
    return re.sub(r"([\\`*_{}\[\]<>()#!|~&$])", r"\\\1", name)


def _broken_rule(name: str) -> str:
    """Return the rule that a name breaks; empty: none."""
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
