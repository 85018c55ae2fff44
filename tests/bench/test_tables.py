"""bench/results/*.json -> the tables of docs/results/benchmarks.md."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench import record, tables
from fedapp.core.errors import ConfigError

TEXT = """before
<!-- bench:speed -->
old
<!-- /bench:speed -->
between
<!-- bench:absent -->
as it was
<!-- /bench:absent -->
after
"""
ROW = {"case": "a|b", "n": 5, "median_s": 0.25, "min_s": 0.2, "max_s": 0.5, "ratio": 2.0}


def result(folder: Path, **changes: Any) -> None:
    content = {
        "name": "speed",
        "command": "python -m bench.scoring",
        "machine": {"processor": "CPU X", "cores": 2, "memory_gib": 7.8, "gpu": "none"},
        "versions": {"python": "3.12.1", "torch": "2.12.1"},
        "code": "abc",
        "setting": ["model.width=4", "seed=1"],
        "series": list(range(500)),
        "rows": [ROW, {"case": "c", "images": 12_345}],
    }
    folder.mkdir(exist_ok=True)
    (folder / "speed.json").write_text(json.dumps({**content, **changes}))


def test_a_block_is_filled_with_rows_and_all_that_is_needed_to_run_it_again(tmp_path):
    result(tmp_path)
    text = tables.filled(TEXT, tmp_path)
    assert text.splitlines() == [
        "before",
        "<!-- bench:speed -->",
        "| case | n | median s (min to max) | ratio | images |",
        "| --- | --- | --- | --- | --- |",
        "| a\\|b | 5 | 0.25 (0.2 to 0.5) | 2 |  |",
        "| c |  |  |  | 12,345 |",
        "",
        "`python -m bench.scoring`; CPU X, 2 cores, 7.8 GiB, no GPU; python 3.12.1, torch 2.12.1; "
        "code abc; setting model.width=4 seed=1.",
        "<!-- /bench:speed -->",
        "between",
        "<!-- bench:absent -->",
        "as it was",
        "<!-- /bench:absent -->",
        "after",
    ]
    assert tables.filled(text, tmp_path) == text


def test_a_figure_stands_below_its_table_and_a_newer_result_takes_the_older_ones_place(tmp_path):
    result(tmp_path)
    first = tables.filled(TEXT, tmp_path)
    (tmp_path / "speed.png").touch()
    result(tmp_path, rows=[{"case": "new"}])
    second = tables.filled(first, tmp_path)
    assert "| new |\n\n![speed](../bench/results/speed.png)\n\n`python" in second
    assert "a\\|b" not in second and second == tables.filled(TEXT, tmp_path)


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ({"ratio": 5.126, "ratio_min": 5.0, "ratio_max": 6.0}, "| 5.126 (5 to 6) |"),
        ({"ratio": 1.0, "ratio_min": 1.0, "ratio_max": 1.0}, "| 1 |"),  # the base of the ratios
        ({"median_mib": 12345.6, "min_mib": 2.0, "max_mib": 3e4}, "| 12,346 (2 to 30,000) |"),
        ({"median_s": 1.5, "max_s": 2.0}, "| 1.5 | 2 |"),  # half a spread stays two columns
        ({"gone": None}, "|  |"),
    ],
)
def test_a_value_and_its_spread_share_a_cell(row, line):
    assert tables.table([row]).splitlines()[-1] == line


@pytest.mark.parametrize(("document", "content", "said"), [
    ("<!-- bench:speed -->\nrest of the document\n", "", "block speed: has no end"),
    *((TEXT, content, r"speed\.json: holds no result") for content in ("", "[]", '{"rows": []}')),
])  # fmt: skip
def test_what_is_damaged_is_named(tmp_path, document, content, said):
    (tmp_path / "speed.json").write_text(content)
    with pytest.raises(ConfigError, match=said):
        tables.filled(document, tmp_path)


def test_what_record_saves_can_be_shown_and_what_has_no_block_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    record.save("speed", [ROW], {"sites": 20})
    record.save("homeless", [ROW])
    text = tables.filled(TEXT, tmp_path)
    assert "a\\|b" in text and "sites 20." in text
    assert tables.unplaced(TEXT, tmp_path) == ["homeless"]


def test_the_command_writes_once_and_then_changes_nothing(tmp_path, monkeypatch, capsys):
    document = tmp_path / "PERFORMANCE.md"
    document.write_text(TEXT)
    result(tmp_path / "results")
    monkeypatch.setattr(tables, "DOCUMENTS", (document,))
    monkeypatch.setattr(tables, "RESULTS", tmp_path / "results")
    tables.main()
    inode = document.stat().st_ino
    tables.main()
    assert document.stat().st_ino == inode
    assert capsys.readouterr().out.splitlines() == [
        "PERFORMANCE.md: tables written",
        "PERFORMANCE.md: tables are as they were",
    ]


def test_the_documents_have_a_whole_block_for_every_promised_benchmark(tmp_path):
    promised = "scoring training overhead hostile membership traffic-counts scale-many scale-long"
    text = "\n".join(document.read_text() for document in tables.DOCUMENTS)
    assert {*promised.split()} <= {*tables._OPENING.findall(text)}
    assert tables.filled(text, tmp_path) == text


def test_a_command_that_is_gone_says_where_it_is():
    """A file, a package, a program of version 1.0.0, and a command of another program."""
    gone = [
        "python -m bench.rivals xrays X",
        "python -m bench.peers",
        "python -m bench.masks 10",
        "python -m bench.thresholds --seeds 1",
        "ls",
    ]
    where = ["", "", " at commit 2eea95e1", " at commit 9d6a908", ""]
    assert [tables._where(command) for command in gone] == where
