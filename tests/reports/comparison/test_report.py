"""The report of a comparison: Markdown, the page, and comparisons that are not whole."""

import html
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from fedapp.core.errors import RunError
from fedapp.reports.comparison.document import write_report
from fedapp.reports.comparison.record import read_comparison
from fedapp.reports.layout import Best, Section, Table, escaped, to_markdown
from tests.reports.comparison.synthetic import (
    change,
    read_rows,
    realistic,
    result,
    site,
    write_rows,
    written,
)

TABLE_I = {"table": "I", "dataset": "FashionMNIST"}


# --- Markdown and HTML ----------------------------------------------------------------------------

NASTY = "<b>a|b</b> & *c* _d_ `e` [f](g) \\h"


class Page(HTMLParser):
    """Checks that tags are balanced, and keeps what a reader sees."""

    VOID = frozenset({"meta", "img", "br", "link"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.tags: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.sources += [value for name, value in attrs if name in {"src", "href"} and value]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if data.strip() and self.open[-1] != "style":
            self.seen.append(data.strip())


def page(out: Path) -> Page:
    parser = Page()
    parser.feed((out / "tables.html").read_text(encoding="utf-8"))
    assert not parser.open
    return parser


def test_markdown_shows_any_text_as_it_is():
    text = escaped(NASTY)
    assert text == "\\<b\\>a\\|b\\</b\\> \\& \\*c\\* \\_d\\_ \\`e\\` \\[f\\](g) \\\\h"
    assert escaped("lg_fedavg\nin two lines") == "lg_fedavg in two lines"


def test_markdown_of_a_table():
    table = Table("T", ["a", "b"], [["x|y", Best("1")]], ["n < 2"], labels=1)
    assert to_markdown("R", [Section("S", ["p"], [table])]) == (
        "# R\n\n## S\n\np\n\n### T\n\n| a | b |\n| --- | ---: |\n| x\\|y | **1** |\n\nn \\< 2\n"
    )


def test_groups_are_set_apart_only_where_they_have_several_rows():
    table = Table("", ["s", "m"], [["a", "1"], ["a", "2"], ["b", "1"]])
    assert [table.begins_group(i) for i in range(3)] == [False, False, True]
    assert not Table("", ["s", "m"], [["a", "1"], ["b", "2"]]).begins_group(1)


def test_strange_names_do_no_harm(tmp_path):
    names = [NASTY, "$x^2$"], ["um_pfssl", "a|<i>b", "_hidden"]
    realistic(tmp_path, *names, (0, 1), title=NASTY)
    write_report(tmp_path)
    seen = page(tmp_path)
    assert NASTY in seen.seen and "a|<i>b" in seen.seen
    assert not {"b", "i"} & set(seen.tags)
    lines = (tmp_path / "tables.md").read_text(encoding="utf-8").splitlines()
    bars = [len(re.findall(r"(?<!\\)\|", line)) for line in lines]
    for first, second in pairwise(bars):
        assert first == second or 0 in (first, second)  # all rows of a table are as wide


def test_both_forms_say_the_same(tmp_path):
    realistic(tmp_path, ["alpha=0.5"], paper=TABLE_I)
    write_report(tmp_path)
    markdown = (tmp_path / "tables.md").read_text(encoding="utf-8")
    for text in page(tmp_path).seen:
        assert escaped(html.unescape(text)) in markdown, text


def test_the_page_needs_nothing_from_elsewhere(tmp_path):
    realistic(tmp_path, ["alpha=0.5"], seeds=(0,))
    paths = write_report(tmp_path)
    text = (tmp_path / "tables.html").read_text(encoding="utf-8")
    assert "://" not in text and "<script" not in text and "@import" not in text
    files = {source for source in page(tmp_path).sources if not source.startswith("#")}
    assert files == {str(p.relative_to(tmp_path)) for p in paths if p.suffix == ".png"}
    assert all((tmp_path / name).is_file() for name in files)


# --- comparisons that are not whole ---------------------------------------------------------------


def unclean(out: Path) -> list[str]:
    text = "".join(
        (out / name).read_text(encoding="utf-8") for name in ("tables.md", "tables.html")
    )
    return re.findall(r"(?i:\bnan\b|\binf\b)|\bNone\b", text)


def test_one_seed_and_missing_cells_give_a_report_that_says_so(tmp_path):
    realistic(tmp_path, seeds=(0, 1))
    lost = {("alpha=5", "um_pfssl"), ("alpha=5", "fixavg")}
    for name in ("results.csv", "sites.csv", "rounds.csv"):
        change(
            tmp_path / name,
            lambda row: (
                None if (row["setting"], row["method"]) in lost or row["seed"] == "1" else row
            ),
        )
    write_report(tmp_path)
    text = (tmp_path / "tables.md").read_text(encoding="utf-8")
    assert "4 of 12 cells have a result" in text
    assert "Missing: alpha=0.5, LocalOnly: seed 1;" in text
    assert "| FixAvg |" in text and " - |" in text
    assert not unclean(tmp_path)


def test_nothing_has_run_yet(tmp_path):
    written(tmp_path, [], settings=["a"], methods=["fixavg"], seeds=[0, 1])
    for name in ("results.csv", "sites.csv", "rounds.csv"):
        (tmp_path / name).unlink()
    assert [path.name for path in write_report(tmp_path)] == ["tables.md", "tables.html"]
    text = (tmp_path / "tables.md").read_text(encoding="utf-8")
    assert "0 of 2 cells have a result" in text and "Missing: a, FixAvg: seed 0, 1." in text


def test_values_that_were_not_measured_are_dashes(tmp_path):
    rows = [result("a", m, s, None, best_test_accuracy="nan") for m in ("x", "y") for s in (0, 1)]
    written(tmp_path, rows, [site("a", m, 0, 0, None) for m in ("x", "y")])
    write_report(tmp_path)
    assert not unclean(tmp_path)


def test_a_long_list_of_missing_cells_is_cut(tmp_path):
    methods = [f"m{number:02}" for number in range(30)]
    written(tmp_path, [result("a", "m00", 0, 0.5)], methods=methods, seeds=[0, 1])
    write_report(tmp_path)
    text = (tmp_path / "tables.md").read_text(encoding="utf-8")
    assert "Missing: a, m00: seed 1; a, m01: seed 0, 1; " in text
    assert "a, m11: seed 0, 1; and 18 more." in text


def test_cells_of_other_code_and_other_splits_are_named(tmp_path):
    rows = [result("a", m, 0, 0.5, code=2 * m, manifest=m) for m in "xy"]
    written(tmp_path, rows)
    write_report(tmp_path)
    text = (tmp_path / "tables.md").read_text(encoding="utf-8")
    assert "2 versions of the code (xx, yy)" in text
    assert "Not all methods ran on the same split in a, seed 0" in text


def test_files_of_a_version_that_counted_no_steps_are_read(tmp_path):
    written(tmp_path, [result("a", "x", 0, 0.5)])
    rows = read_rows(tmp_path / "results.csv")
    columns = [name for name in rows[0] if name not in ("steps_per_site", "images_per_site")]
    write_rows(tmp_path / "results.csv", columns, [{n: row[n] for n in columns} for row in rows])
    made = read_comparison(tmp_path)
    assert made.by_seed("a", "x", "selected_test_accuracy") == {0: 0.5}
    assert made.by_seed("a", "x", "steps_per_site") == {}


def test_rows_that_were_not_planned_are_left_out(tmp_path):
    rows = [result("a", m, 0, 0.5) for m in ("x", "y")]
    made = written(tmp_path, rows, [site("a", "y", 0, 0, 0.5)], methods=["x"])
    assert list(made.cells) == [("a", "x", 0)] and not made.sites


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("comparison.json", None, r"comparison\.json: is missing"),
        ("comparison.json", "{", r"comparison\.json: is damaged"),
        ("comparison.json", '{"settings": []}', r"comparison\.json: is damaged"),
        ("results.csv", "setting,method\na,b\n", r"results\.csv: has no column seed"),
        ("sites.csv", "", r"sites\.csv: has no column setting"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, name, content, message):
    written(tmp_path, [result("a", "x", 0, 0.5)])
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(RunError, match=message):
        read_comparison(tmp_path)


def test_a_damaged_number_is_named_with_its_line(tmp_path):
    written(tmp_path, [result("a", "x", seed, 0.5) for seed in range(2)])
    change(tmp_path / "results.csv", lambda row: row | {"wall_seconds": "x" * int(row["seed"])})
    with pytest.raises(RunError, match=r"results\.csv: line 3 is damaged \(.*'x'"):
        read_comparison(tmp_path)


# --- the reference method -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("methods", "presets", "title"),
    [
        (["fixavg", "um_pfssl", "um_pfssl_mi"], {}, "Each method less UM-pFSSL MI"),
        (["fixavg", "um_pfssl"], {}, "Each method less UM-pFSSL"),
        (["fixavg", "fixbn"], {}, "Each method less FixAvg"),
        (["fixavg", "tuned"], {"tuned": "um_pfssl"}, "Each method less tuned"),
    ],
)
def test_the_reference_is_um_pfssl_where_it_is_there(tmp_path, methods, presets, title):
    written(tmp_path, [result("a", m, 0, 0.5) for m in methods], presets=presets)
    write_report(tmp_path)
    assert f"### {title}\n" in (tmp_path / "tables.md").read_text(encoding="utf-8")


def test_another_reference_can_be_named_and_must_be_there(tmp_path):
    written(tmp_path, [result("a", m, 0, 0.5) for m in ("um_pfssl", "fixavg")])
    write_report(tmp_path, "fixavg")
    assert "### Each method less FixAvg\n" in (tmp_path / "tables.md").read_text(encoding="utf-8")
    written(tmp_path, [result("a", m, 0, 0.5) for m in ("um_pfssl", "fixavg")], reference="fixavg")
    write_report(tmp_path)
    assert "### Each method less FixAvg\n" in (tmp_path / "tables.md").read_text(encoding="utf-8")
    with pytest.raises(RunError, match="reference 'nobody': is not in this comparison; choose one"):
        write_report(tmp_path, "nobody")
