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


def result(folder: Path, name: str = "speed", **changes: Any) -> None:
    content = {
        "name": name,
        "command": "python -m bench.speed",
        "machine": {"processor": "CPU X", "cores": 2, "memory_gib": 7.8, "gpu": "none"},
        "versions": {"python": "3.12.1", "torch": "2.12.1"},
        "code": "abc",
        "setting": ["model.width=4", "seed=1"],
        "series": list(range(500)),
        "rows": [ROW, {"case": "c", "images": 12_345}],
    }
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps({**content, **changes}))


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
        "`python -m bench.speed`; CPU X, 2 cores, 7.8 GiB, no GPU; python 3.12.1, torch 2.12.1; "
        "code abc; setting model.width=4 seed=1.",
        "<!-- /bench:speed -->",
        "between",
        "<!-- bench:absent -->",
        "as it was",
        "<!-- /bench:absent -->",
        "after",
    ]
    assert tables.filled(text, tmp_path) == text


def test_a_figure_stands_below_its_table(tmp_path):
    result(tmp_path)
    (tmp_path / "speed.png").touch()
    assert "|\n\n![speed](../bench/results/speed.png)\n\n`python" in tables.filled(TEXT, tmp_path)


def test_a_newer_result_takes_the_place_of_the_older(tmp_path):
    result(tmp_path)
    first = tables.filled(TEXT, tmp_path)
    result(tmp_path, rows=[{"case": "new"}])
    second = tables.filled(first, tmp_path)
    assert "| new |" in second and "a\\|b" not in second
    assert second == tables.filled(TEXT, tmp_path)


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


def test_a_block_without_an_end_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="block speed: has no end"):
        tables.filled("<!-- bench:speed -->\nrest of the document\n", tmp_path)


@pytest.mark.parametrize("content", ["", "[]", '{"rows": []}'])
def test_a_file_that_holds_no_result_is_named(tmp_path, content):
    (tmp_path / "speed.json").write_text(content)
    with pytest.raises(ConfigError, match=r"speed\.json: holds no result"):
        tables.filled(TEXT, tmp_path)


def test_results_without_a_block_are_named(tmp_path):
    result(tmp_path)
    result(tmp_path, "homeless")
    assert tables.unplaced(TEXT, tmp_path) == ["homeless"]


def test_what_record_saves_can_be_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    record.save("speed", [ROW], {"sites": 20})
    text = tables.filled(TEXT, tmp_path)
    assert "a\\|b" in text and "sites 20." in text


def test_the_command_writes_once_and_then_changes_nothing(tmp_path, monkeypatch, capsys):
    document = tmp_path / "PERFORMANCE.md"
    document.write_text(TEXT)
    result(tmp_path / "results")
    monkeypatch.setattr(tables, "DOCUMENTS", (document,))
    monkeypatch.setattr(tables, "RESULTS", tmp_path / "results")
    tables.main()
    written = document.stat()
    tables.main()
    assert (document.stat().st_ino, document.stat().st_mtime_ns) == (
        written.st_ino,
        written.st_mtime_ns,
    )
    assert capsys.readouterr().out.splitlines() == [
        "PERFORMANCE.md: tables written",
        "PERFORMANCE.md: tables are as they were",
    ]


def test_the_documents_have_a_whole_block_for_every_promised_benchmark(tmp_path):
    promised = (
        "scoring training overhead traffic-counts traffic-encodings scale-many scale-long "
        "hostile membership "
        "prototype-helpers-fashion_mnist_small-fashion_mnist"
    )
    text = "\n".join(document.read_text() for document in tables.DOCUMENTS)
    assert {*promised.split()} <= {*tables._OPENING.findall(text)}
    assert tables.filled(text, tmp_path) == text
