"""The page of a run: its structure, and its content against numbers worked out by hand."""

import json

import pytest

from fedapp.core.errors import ConfigError, RunError
from fedapp.evaluation.verdict import Pairs, verdict_of
from fedapp.reports import helper_graph, run_accuracy
from fedapp.reports.report import blocks_of, run_page, write_reports
from fedapp.reports.run_accuracy import NO_CHANGE, joining_of, nothing_changed
from fedapp.reports.run_record import read_run
from fedapp.reports.site_report import site_page, view_of_run
from tests.reports.pages import check
from tests.reports.written import write_run


def blocks(folder):
    return {block.title: block for block in blocks_of(read_run(folder))}


def table(block, title):
    figures = [figure.table for figure in block.figures if figure.table]
    return next(t for t in [*block.tables, *figures] if t.title == title).rows


def test_a_page_is_whole_and_can_be_read_by_all(tmp_path):
    page = check(run_page([read_run(write_run(tmp_path))]))
    assert page.seen[1] == "mine"
    assert "um_pfssl on digits, 3 sites, 2 of 2 rounds, seed 7" in page.text
    assert "the mean over 3 sites (6 of 15 images together)" in page.text
    assert page.text.endswith("Left out: Who gained by joining: the sites did not measure both a "
                              "model that they trained alone and one that others had a part in. "
                              "tables.md of `fedapp compare` with local_only and one_round beside "
                              "it tells.")  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The blocks of a run, by title."""
    return blocks(write_run(tmp_path_factory.mktemp("run")))


def test_every_figure_has_its_numbers_beside_it(found):
    for block in found.values():
        for figure in block.figures:
            assert figure.caption and figure.table


TABLES = {
    ("Before and after, site by site", "Sites with under 10 % labels"): [
        ["east", "5 of 100", "1 of 5", "4 of 5", "37.6 to 96.4"]
    ],
    # Right 4, 2 and 0 of 5: cats 3, 2 and 0 of 3, dogs 1, 0 and 0 of 2.
    ("Mistakes", "Confusion matrix"): [["cat", "5", "4"], ["dog", "5", "1"]],
    ("Mistakes", "Most frequent mistakes"): [
        ["dog", "cat", "5 of 6", "83.3"], ["cat", "dog", "4 of 9", "44.4"]
    ],
    ("Can its probabilities be trusted?", "Answers by their probability"): [
        ["96.7", "15", "6", "40.0"]
    ],
    ("Can its probabilities be trusted?", "Leaving the unsure to people"): [
        ["15 of 15", "100.0", "6", "40.0"]
    ],
    ("Pseudo-labels", "Pseudo-labels by class"): [["cat", "18", "3"], ["dog", "12", "6"]],
    ("Pseudo-labels", "Pseudo-labels by uncertainty"): [
        ["0 to 10 %", "30", "9"], *([f"{k}0 to {k + 1}0 %", "0", "0"] for k in range(1, 10))
    ],
    ("Who helps whom", "Lists at the end"): [
        ["east", "west"], ["north", "east"], ["west", "north"]
    ],
    ("Who helps whom", "New helpers"): [["1", "100.0"], ["2", "100.0"]],
    ("Who helps whom", "Whose help, by share of labels, at the end"): [
        ["under 10 % labels", "0 (0.0 %)", "0 (0.0 %)", "1 (100.0 %)"],
        ["10 to 50 % labels", "1 (100.0 %)", "0 (0.0 %)", "0 (0.0 %)"],
        ["over 50 % labels", "0 (0.0 %)", "1 (100.0 %)", "0 (0.0 %)"],
    ],
    ("Time", "Time by phase"): [["train", "24 s", "88.9"], ["server", "3 s", "11.1"]],
}  # fmt: skip
"""By block and table: rows worked out by hand."""
SAID = {
    "Before and after, site by site": "Right on more images than after the warm-up: 1 of 1",
    "Can its probabilities be trusted?": "Expected calibration error 56.7 points",
    "Pseudo-labels": "30 pseudo-labels, 9 of them wrong (30.0 %).",
    "What was sent": "18 models sent, 75.0 % of the paper's bound of 24: 12.0 kB to the sites",
}
"""How the captions of a block's first figure begin."""


@pytest.mark.parametrize(("block", "title"), TABLES)
def test_a_table_by_hand(found, block, title):
    assert table(found[block], title) == TABLES[block, title]


def test_captions_and_lines_by_hand(found):
    for block, said in SAID.items():
        captions = [*(figure.caption for figure in found[block].figures), *found[block].lines]
        assert captions[0].startswith(said)
    assert "1 → 4 of 5" in found["Before and after, site by site"].figures[0].picture.svg


def test_who_gained_stands_first_in_the_words_of_its_head_and_of_the_sites_pages(tmp_path):
    """One site of each kind; the three are drawn with other marks and colours."""
    pairs = Pairs(40, 24, 36, 40, 1, 13), Pairs(40, 22, 20, 40, 6, 4), Pairs(40, 36, 20, 40, 18, 2)
    run = read_run(write_run(tmp_path, pairs=pairs))
    first = blocks_of(run)[0]
    assert table(first, "Alone and together") == [
        ["west", "80 of 100", "20", "36", "40", "18", "2", "gained beyond chance"],
        ["east", "5 of 100", "36", "24", "40", "1", "13", "lost beyond chance"],
        ["north", "30 of 100", "20", "22", "40", "6", "4", "cannot be told"],
    ]
    pooled, *named = joining_of(run)
    text = check(run_page([run])).text
    assert all(line in text for line in (pooled, *named))
    assert pooled.startswith("Cannot tell whether joining paid: 82 of 120 test images right "
                             "together, 76 alone (a network): +5.0 points")  # fmt: skip
    assert [line.split(" (")[-1] for line in named] == ["west).", "east).", "north)."]
    assert len({drawn[:2] for drawn in run_accuracy._DRAWN.values()}) == 3
    for site, begins in zip(
        run.sites, ("Joining did harm", "Cannot tell", "Joining paid"), strict=True
    ):
        line = verdict_of(site.standing.pairs, lone="a network").line
        assert (
            line.startswith(begins)
            and check(site_page(view_of_run(run, site.name))).text.count(line) == 1
        )


def test_settings_that_differ_versions_and_warnings(found):
    settings = {
        row[0]: row[1:] for row in table(found["Settings and versions"], "Settings that differ")
    }
    assert settings["rounds.num_rounds"] == ["15", "2"] and settings["seed"] == ["0", "7"]
    assert ["torch", "2.12.1"] in table(found["Settings and versions"], "Versions")
    assert "Round 2: west skipped: no answer." in found["Warnings"].lines
    assert "Fewer than 20 test images, mostly chance: east (5), north (5), west (5)." in (
        found["Warnings"].lines
    )


def test_a_run_of_an_older_version_says_what_is_left_out(tmp_path):
    folder = write_run(tmp_path, history=False)
    page = check(run_page([read_run(folder)]))
    assert page.text.count("did not record") == 4
    assert "1 → 4 of 5" in page.text


def test_many_sites_are_shown_as_groups_and_too_many_have_no_matrix(tmp_path, monkeypatch):
    """One site in each group: the quartiles are its own accuracy."""
    monkeypatch.setattr(run_accuracy, "FEW_SITES", 2)
    monkeypatch.setattr(helper_graph, "MOST_SITES", 2)
    found = blocks(write_run(tmp_path))
    assert table(found["Learning curves"], "After the last round") == [
        ["under 10 % labels", "1", "80.0", "80.0", "80.0"],
        ["10 to 50 % labels", "1", "40.0", "40.0", "40.0"],
        ["over 50 % labels", "1", "0.0", "0.0", "0.0"],
    ]
    assert found["Who helps whom"].missing == "the graph: 3 sites are too many for a picture."


@pytest.mark.parametrize(
    ("name", "text", "missing"),
    [
        ("sites.jsonl", '{"round": 1, "sites": []}\n{"sites": {}}\n', "Curves of single sites"),
        ("metrics.jsonl", '{"round": 0}\n{"round": 1, "wall_seconds": null}\n[]\n', ""),
        ("metrics.jsonl", '{"mean_test_accuracy": 1}\n', "The run has no round yet"),
    ],
)
def test_rows_that_lack_what_they_should_have_are_left_out(tmp_path, name, text, missing):
    folder = write_run(tmp_path)
    (folder / name).write_text(text)
    assert missing in run_page([read_run(folder)])


def test_what_never_changed_is_no_curve(tmp_path):
    """Rounds that repeat the first: two blocks give their reason, and all others stay."""
    folder = write_run(tmp_path)
    for name in ("metrics.jsonl", "sites.jsonl"):
        first, *rest = map(json.loads, (folder / name).read_text().splitlines())
        rows = [first, *({**first, "round": row["round"]} for row in rest)]
        (folder / name).write_text("\n".join(map(json.dumps, rows)))
    run = read_run(folder)
    assert nothing_changed(run) and not nothing_changed(read_run(write_run(tmp_path, "other")))
    found = blocks(folder)
    for title in ("Learning curves", "Before and after, site by site"):
        assert not found[title].full and found[title].missing == NO_CHANGE
    page = check(run_page([run]))
    assert page.text.count(NO_CHANGE) == 2 and "after the warm-up it was" not in page.text
    assert page.text.index("Before you use it") < page.text.index("Warnings")
    assert page.text.rindex("Settings and versions") > page.text.rindex("How the numbers were made")


def test_a_run_under_way_has_a_page(tmp_path):
    folder = write_run(tmp_path)
    (folder / "summary.json").unlink()
    assert "The run is not over" in check(run_page([read_run(folder)])).text


def test_names_cannot_change_the_page(tmp_path):
    evil = '<script>alert("x")</script>&'
    folder = write_run(tmp_path, classes=(evil, "</style><svg onload=x>"))
    records = folder / "metrics.jsonl"
    records.write_text(records.read_text().replace("no answer", "<img src=x onerror=y>"))
    text = run_page([read_run(folder)])
    page = check(text)
    assert "<script" not in text and "<img" not in text
    assert evil in page.text and "<img src=x onerror=y>" in page.text


def test_runs_side_by_side_have_one_heading_for_each_subject(tmp_path):
    folders = [write_run(tmp_path, name) for name in ("one", "two")]
    page = check(run_page(list(map(read_run, folders))))
    assert page.headings.count(2) == 14 and page.headings.count(3) == 26
    assert page.seen[1] == "Runs side by side"


def test_the_command_writes_where_the_run_is_or_where_it_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAPP_OUT", str(tmp_path))
    folder = write_run(tmp_path)
    assert write_reports(["mine"]) == [folder / "report.html"]
    assert write_reports([str(folder)], out=tmp_path) == [tmp_path / "report.html"]
    assert write_reports(["mine"], site="north") == [folder / "site-north.html"]
    write_run(tmp_path, "other")
    monkeypatch.chdir(tmp_path)
    [both] = write_reports(["mine", "other"])
    assert "Runs side by side" in both.read_text()


@pytest.mark.parametrize(("words", "error", "said"), [
    ((["none"],), RunError, "'none': no such run in"),
    ((["empty"],), RunError, "no run and no comparison"),
    ((["mine"], "", "nort"), RunError, "no such site in mine; did you mean 'north'"),
    ((["mine"], "fedavg"), ConfigError, "--reference is of comparisons"),
    ((["mine", "mine"], "", "north"), ConfigError, "--site is of one run"),
    ((["compared"], "", "north"), ConfigError, "a comparison is reported by itself"),
])  # fmt: skip
def test_the_command_says_what_is_wrong(tmp_path, monkeypatch, words, error, said):
    monkeypatch.setenv("FEDAPP_OUT", str(tmp_path))
    write_run(tmp_path)
    for name in ("empty", "compared"):
        (tmp_path / name).mkdir()
    (tmp_path / "compared/comparison.json").touch()
    with pytest.raises(error, match=said):
        write_reports(*words)
