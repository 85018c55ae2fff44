"""The report of a comparison: Markdown, the page, and comparisons that are not whole."""

import html
import re
from itertools import pairwise

import pytest

from fedapp.core.errors import RunError
from fedapp.reports.comparison.document import write_report
from fedapp.reports.comparison.record import read_comparison
from fedapp.reports.layout import BestEntry, Section, Table, escaped, to_markdown
from tests.reports.comparison.synthetic import (
    change,
    read_rows,
    realistic,
    result,
    runs,
    site,
    write_rows,
    written,
)
from tests.reports.pages import Page

FILES = ("results.csv", "sites.csv", "rounds.csv")
NASTY = "<b>a|b</b> & *c* _d_ `e` [f](g) \\h"


def report(out, reference=""):
    """Write the report, in which nothing is NaN or None; return its Markdown."""
    write_report(out, reference)
    markdown = (out / "tables.md").read_text(encoding="utf-8")
    for text in (markdown, (out / "tables.html").read_text(encoding="utf-8")):
        assert not re.search(r"(?i:\bnan\b|\binf\b)|\bNone\b", text)
    return markdown


# --- Markdown and HTML ----------------------------------------------------------------------------


def test_markdown_shows_any_text_as_it_is():
    text = escaped(NASTY)
    assert text == "\\<b\\>a\\|b\\</b\\> \\& \\*c\\* \\_d\\_ \\`e\\` \\[f\\](g) \\\\h"
    assert escaped("lg_fedavg\nin two lines") == "lg_fedavg in two lines"


def test_markdown_of_a_table():
    table = Table("T", ["a", "b"], [["x|y", BestEntry("1")]], ["n < 2"], labels=1)
    assert to_markdown("R", [Section("S", ["p"], [table])]) == (
        "# R\n\n## S\n\np\n\n### T\n\n| a | b |\n| --- | ---: |\n| x\\|y | **1** |\n\nn \\< 2\n"
    )


def test_groups_are_set_apart_only_where_they_have_several_rows():
    table = Table("", ["s", "m"], [["a", "1"], ["a", "2"], ["b", "1"]])
    assert [table.begins_group(i) for i in range(3)] == [False, False, True]
    assert not Table("", ["s", "m"], [["a", "1"], ["b", "2"]]).begins_group(1)


def test_both_forms_say_the_same_whatever_the_names_are_and_load_nothing_from_elsewhere(tmp_path):
    names = [NASTY, "$x^2$"], ["um_pfssl", "a|<i>b", "_hidden"]
    realistic(tmp_path, *names, (0, 1), title=NASTY)
    paths = write_report(tmp_path)
    text, markdown = ((tmp_path / f"tables.{k}").read_text("utf-8") for k in ("html", "md"))
    page = Page(text)
    for said in {*page.seen} - {"Skip to the content"}:
        assert escaped(html.unescape(said)) in markdown, said
    assert NASTY in page.seen and "a|<i>b" in page.seen
    assert not {"b", "i", "script"} & {tag for tag, _ in page.attributes}
    bars = [len(re.findall(r"(?<!\\)\|", line)) for line in markdown.splitlines()]
    for first, second in pairwise(bars):
        assert first == second or 0 in (first, second)  # all rows of a table are as wide
    assert "://" not in text and "@import" not in text
    named = {a.get("src") or a.get("href") for _, a in page.attributes} - {None}
    files = {name for name in named if not name.startswith("#")}
    assert files == {str(p.relative_to(tmp_path)) for p in paths if p.suffix == ".png"}
    assert all((tmp_path / name).is_file() for name in files)


# --- comparisons that are not whole ---------------------------------------------------------------


def test_one_seed_and_missing_cells_give_a_report_that_says_so(tmp_path):
    realistic(tmp_path, seeds=(0, 1))
    lost = {("alpha=5", "um_pfssl"), ("alpha=5", "fixavg")}
    for name in FILES:
        change(
            tmp_path / name,
            lambda row: (
                None if (row["setting"], row["method"]) in lost or row["seed"] == "1" else row
            ),
        )
    text = report(tmp_path)
    assert "4 of 12 cells have a result" in text
    assert "Missing: alpha=0.5, LocalOnly: seed 1;" in text
    assert "| FixAvg |" in text and " - |" in text


def test_nothing_has_run_yet(tmp_path):
    written(tmp_path, [], settings=["a"], methods=["fixavg"], seeds=[0, 1])
    for name in FILES:
        (tmp_path / name).unlink()
    text = report(tmp_path)
    assert "0 of 2 cells have a result" in text and "Missing: a, FixAvg: seed 0, 1." in text
    assert not list(tmp_path.glob("figures/*"))


def test_values_that_were_not_measured_are_dashes(tmp_path):
    rows = [row for m in "xy" for row in runs("a", m, None, None, best_test_accuracy="nan")]
    written(tmp_path, rows, [site("a", m, 0, 0, None) for m in "xy"])
    report(tmp_path)


@pytest.mark.parametrize(("plan", "more", "said"), [
    ({"methods": [f"m{n:02}" for n in range(30)], "seeds": [0, 1]}, {},
     "Missing: a, m00: seed 1; a, m01: seed 0, 1; .* a, m11: seed 0, 1; and 18 more\\."),
    ({}, {"code": "y"}, r"2 versions of the code \(x, y\)"),
    ({}, {"manifest": "y"}, "Not all methods ran on the same split in a, seed 0"),
    ({"judged": "last"}, {}, "Every run is judged at its last round"),
    ({}, {"selected_by": "last round"}, "There are no validation images in a: the selected round"),
    ({"answers": {"m01": "common"}, "presets": {"m01": "fedavg"}}, {},
     r"Scored by another answer .*: m01: the common answer of fedavg\."),
])  # fmt: skip
def test_the_head_says_what_is_missing_and_what_is_doubtful(tmp_path, plan, more, said):
    same = {"code": "x", "manifest": "x", "selected_by": "validation"}
    methods = ["m00"] if "seeds" in plan else ["m00", "m01"]
    rows = [result("a", m, 0, 0.5, **(same | (more if m == "m01" else {}))) for m in methods]
    written(tmp_path, rows, **plan)
    made = report(tmp_path).replace("\\", "")
    head, _, last = made.partition("\n### All at a glance")
    assert re.search(said, last if "Scored" in said else head)
    assert made.rindex("\n## ") == made.index("\n## How the numbers were made")


def test_files_of_a_version_that_counted_no_steps_are_read(tmp_path):
    written(tmp_path, [result("a", "x", 0, 0.5)])
    rows = read_rows(tmp_path / "results.csv")
    columns = [name for name in rows[0] if name not in ("steps_per_site", "images_per_site")]
    write_rows(tmp_path / "results.csv", columns, [{n: row[n] for n in columns} for row in rows])
    made = read_comparison(tmp_path)
    assert made.by_seed("a", "x", "selected_test_accuracy") == {0: 0.5}
    assert made.by_seed("a", "x", "steps_per_site") == {}


def test_rows_that_were_not_planned_are_left_out_and_the_last_of_two_counts(tmp_path):
    rows = [result("a", m, 0, value) for m, value in (("x", 0.1), ("y", 0.5), ("x", 0.5))]
    made = written(tmp_path, rows, [site("a", "y", 0, 0, 0.5)], methods=["x"])
    assert list(made.results.index) == [("a", "x", 0)] and made.sites.empty
    assert made.by_seed("a", "x", "selected_test_accuracy") == {0: 0.5}


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


def test_a_damaged_number_is_named_with_its_line_and_so_is_a_line_that_was_cut(tmp_path):
    rows = written(tmp_path, runs("a", "x", 0.5, 0.5)).folder / "results.csv"
    whole = rows.read_text()
    change(rows, lambda row: row | {"wall_seconds": "x" * int(row["seed"])})
    with pytest.raises(RunError, match=r"results\.csv: line 3 is damaged \(.*'x'"):
        read_comparison(tmp_path)
    rows.write_text(whole[: whole.rindex("fashion_mnist")])
    with pytest.raises(RunError, match=r"results\.csv: line 3 is damaged"):
        read_comparison(tmp_path)


# --- the reference method -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("methods", "plan", "named", "label"),
    [
        (["fixavg", "um_pfssl", "um_pfssl_mi"], {}, "", "UM-pFSSL MI"),
        (["fixavg", "um_pfssl"], {}, "", "UM-pFSSL"),
        (["fixavg", "fixbn"], {}, "", "FixAvg"),
        (["fixavg", "tuned"], {"presets": {"tuned": "um_pfssl"}}, "", "tuned"),
        (["um_pfssl", "fixavg"], {}, "fixavg", "FixAvg"),
        (["um_pfssl", "fixavg"], {"reference": "fixavg"}, "", "FixAvg"),
    ],
)
def test_the_reference_is_the_one_named_else_the_grids_else_um_pfssl(
    tmp_path, methods, plan, named, label
):
    written(tmp_path, [result("a", m, 0, 0.5) for m in methods], **plan)
    assert f"### Each method less {label}\n" in report(tmp_path, named)
    with pytest.raises(RunError, match="reference 'nobody': is not in this comparison; choose one"):
        write_report(tmp_path, "nobody")
