"""What classes may be called: names of real users pass, code and what no eye sees does not."""

import csv
import io
import re

import pytest
from markdown_it import MarkdownIt

from fedapp.core.names import (
    RUN_NAME,
    SITE_NAME,
    class_name,
    csv_cell,
    folder_name,
    from_csv_cell,
    markdown_escaped,
    one_visible_line,
)

REAL = [
    "0-9", "<5 mm", "> 5 mm & < 1 cm", "T cell", "T-shirt/top", "C++", "+ve", "-", "=1", "a|b",
    "50 %", "5 $", "a@b", "NaN", "it's", 'a "b"', "*", "# 1", "[x](y)", "`x`", "_x_", "糖尿病",
    "Tumör", "cafe\u0301", "\u0648\u0631\u0645", "\u0645\u06cc\u200c\u062e",
    "क\u094d\u200dष", "日本\u3000語", "x" * 200,
]  # fmt: skip
WRONG = {
    "": "1 to 200",
    "x" * 201: "1 to 200",
    " a": "space",
    "a\u3000": "space",
    "$__import__('os').system('touch RAN')": "begin with",
    "@other": "begin with",
    "%other.json": "begin with",
    "a\nb": "control",
    "a\x1b[31mb": "control",
    "a\0b": "control",
    "a\u2028b": "control",
    "a\u202eb": "control",
    "a\u2067b": "control",
    "a\u200fb": "control",
    "a\ufeffb": "control",
    "a\u00adb": "control",
    "a\ue000b": "control",
    "a\udc80b": "control",
}
"""No names, and a word of the rule that each breaks."""


@pytest.mark.parametrize("name", REAL)
def test_names_of_real_classes_pass(name):
    assert class_name(name) == name


@pytest.mark.parametrize("name", WRONG, ids=ascii)
def test_what_is_no_name_is_refused_with_the_rule(name):
    with pytest.raises(ValueError, match=WRONG[name]) as error:
        class_name(name)
    assert str(error.value).isprintable()


@pytest.mark.parametrize("name", [".hidden", "a/b", "a\\b", "@x"])
def test_a_class_that_is_also_a_folder_has_a_folders_name(name):
    with pytest.raises(ValueError, match="rename it"):
        folder_name(name)


def test_what_a_site_or_run_is_called_a_class_may_be_called():
    for name in ("north", "A.b-c_9", "0"):
        assert re.fullmatch(SITE_NAME, name) and re.fullmatch(RUN_NAME, name)
        assert class_name(name) == folder_name(name) == one_visible_line(name) == name


@pytest.mark.parametrize("name", REAL)
def test_markdown_shows_a_name_as_it_is(name):
    html = MarkdownIt("commonmark").enable("table").renderInline(markdown_escaped(name))
    assert "<" not in html  # no mark of any kind
    [inline] = MarkdownIt("commonmark").parseInline(markdown_escaped(name))
    assert "".join(token.content for token in inline.children) == name


@pytest.mark.parametrize("name", [*REAL, "@sum", "\t=1", "\r=1", "'+ve", "'", "'a"])
def test_a_cell_is_no_formula_and_holds_the_name(name):
    text = io.StringIO()
    csv.writer(text).writerow([csv_cell(name), "0.5"])
    [[read, _]] = csv.reader(io.StringIO(text.getvalue(), newline=""))
    assert not read.startswith(("=", "+", "-", "@", "\t", "\r"))
    assert from_csv_cell(read) == name
