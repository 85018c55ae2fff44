"""docs/RESULTS.md is made of a tuning's and a comparison's files."""

import json
from pathlib import Path

import pytest

from bench import study
from fedapp.errors import ConfigError

FACTS = {
    "budget": 2,
    "settings": ["alpha=0.5"],
    "seeds": [100],
    "candidates": [
        {"method": "fixavg", "values": {"training.learning_rate": 0.01}, "chosen": True,
         "validation_accuracy": 0.5, "test_accuracy": 0.1},
        {"method": "fixavg", "values": {"training.learning_rate": 0.1}, "chosen": False,
         "validation_accuracy": 0.25, "test_accuracy": 0.9},
    ],
}  # fmt: skip
REPORT = "# Title\n\n## Accuracy\n\n### Table\n\n![Curves](figures/curves.png)\n"


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    tuning, comparison = tmp_path / "tune", tmp_path / "compare"
    (comparison / "figures").mkdir(parents=True)
    tuning.mkdir()
    (tuning / "tuning.json").write_text(json.dumps(FACTS))
    (tuning / "results.yaml").write_text("tuned\n")
    for name in study.KEPT:
        (comparison / name).write_text("numbers\n")
    (comparison / "tables.md").write_text(REPORT)
    (comparison / "figures" / "curves.png").write_bytes(b"drawn")
    return tuning, comparison


def test_a_block_is_filled_and_all_that_it_shows_is_kept(tmp_path: Path, folders):
    before = "# Results\n\n<!-- results:results -->\nold\n<!-- /results:results -->\n\nWords.\n"
    folder = tmp_path / "docs" / "results"
    text = study.published(before, "results", *folders, folder)
    assert text.startswith("# Results\n\n<!-- results:results -->\n### Tuning\n")
    assert text.endswith("<!-- /results:results -->\n\nWords.\n")
    assert "old" not in text and "# Title" not in text
    assert "### Accuracy\n\n#### Table\n\n![Curves](results/results/curves.png)" in text
    assert (folder / "curves.png").read_bytes() == b"drawn"
    kept = {path.name for path in folder.iterdir()}
    assert kept == {*study.KEPT, "curves.png", "tuning.json", "results.yaml"}
    assert study.published(text, "results", *folders, folder) == text


def test_tuning_is_a_row_a_method_with_the_chosen_one_in_bold():
    text = study.tuning_section(FACTS)
    assert "2 candidates of every method, on alpha=0.5, seed 100;" in text
    assert text.endswith("| FixAvg | **learning rate 0.01: 50.0**; learning rate 0.1: 25.0 |")


def test_a_document_without_the_block_is_left_alone():
    with pytest.raises(ConfigError, match="block results: is missing; write <!-- results:results"):
        study.filled("# Results\n", "results", "new")


def test_figures_that_are_no_longer_drawn_are_removed(tmp_path: Path, folders):
    folder = tmp_path / "docs" / "results"
    folder.mkdir(parents=True)
    (folder / "old.png").touch()
    block = "<!-- results:results -->\n<!-- /results:results -->"
    study.published(block, "results", *folders, folder)
    assert not (folder / "old.png").exists()
