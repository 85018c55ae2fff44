"""Pages of docs/results are made of a tuning's and a comparison's files."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench import study
from bench.study import Study
from fedapp.core.errors import ConfigError
from fedapp.tools.compare import grid as grids
from tests.tools.compare.tiny import SET

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
NUMBERS = """setting,seed,dataset,alpha,sites,rounds
a,1,digits,0.5,4,3
b,1,digits,10,4,3
b,2,digits,10,4,3
c,2,heart,,4,1
"""
CONDITION = (
    "Condition: digits, 4 sites, 3 rounds, alpha 0.5, 10; heart, 4 sites, 1 round; seeds 1, 2."
)
REPORT = f"""# Title

## Accuracy

{CONDITION}

### Table

| a |

### Curves

![Curves](figures/curves.png)

What a curve is.

## Mistakes

### Confusion

![Confusion](figures/confusion.png)
"""


@pytest.fixture
def ran(tmp_path: Path) -> Study:
    tuning, comparison = tmp_path / "tune", tmp_path / "compare"
    (comparison / "figures").mkdir(parents=True)
    tuning.mkdir()
    (tuning / "tuning.json").write_text(json.dumps(FACTS))
    (tuning / "results.yaml").write_text("tuned\n")
    (comparison / study.NUMBERS).write_text(NUMBERS)
    (comparison / "tables.md").write_text(REPORT)
    for name in ("curves", "confusion"):
        (comparison / "figures" / f"{name}.png").write_bytes(b"drawn")
    return Study("results", comparison, tuning / "results.yaml", tuning)


def test_a_page_is_written_with_the_figures_that_are_shown_elsewhere_beside_it(
    tmp_path: Path, ran: Study
):
    folder = tmp_path / "docs" / "results"
    study.published(ran, folder, {"curves.png"})
    text = (folder / study.PAGE).read_text()
    made_by = "Made by `python -m bench.study results`: "
    assert text.startswith(f"# All tables: results\n\n{CONDITION}\n\n{made_by}")
    assert "\n\n## Tuning\n\n2 candidates of every method" in text and "# Title" not in text
    curves = "### Curves\n\n![Curves](curves.png)\n\nWhat a curve is."
    assert text.endswith(f"\n\n## Accuracy\n\n### Table\n\n| a |\n\n{curves}\n")
    assert (folder / "curves.png").read_bytes() == b"drawn"
    kept = {path.name for path in folder.iterdir()}
    assert kept == {study.NUMBERS, study.PAGE, "curves.png", "tuning.json", "results.yaml"}
    study.published(ran, folder)
    assert (folder / study.PAGE).read_text().endswith("\n\n## Accuracy\n\n### Table\n\n| a |\n")
    assert not list(folder.glob("*.png")), "a figure that is no longer shown is removed"


def test_figures_are_shown_that_a_page_names_by_the_studys_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(study, "DOCUMENT", tmp_path / "results" / "all_tables.md")
    text = "![a](results/one/a.png) ![b](results/other/b.png) [c](one/c.md)"
    (tmp_path / "RESULTS.md").write_text(text)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "gallery.md").write_text("![d](one/d-1_0.5.png)\n![e](someone/e.png)")
    assert study.figures_shown("one") == {"a.png", "d-1_0.5.png"}


def test_tuning_is_a_row_a_method_with_the_chosen_one_in_bold_and_a_column_a_setting():
    text = study.tuning_section(FACTS)
    assert "2 candidates of every method, on alpha=0.5, seed 100;" in text
    assert text.endswith("| FixAvg | **learning rate 0.01: 50.0**; learning rate 0.1: 25.0 |")
    one, other = FACTS["candidates"]
    every = [{**c, "setting": "a"} for c in (one, other)]
    every += [{**c, "setting": "b", "chosen": not c["chosen"]} for c in (one, other)]
    text = study.tuning_section({**FACTS, "settings": ["a", "b"], "candidates": every})
    assert "on validation images is chosen, in each setting by itself." in text
    assert "| Method | a: Candidates: accuracy on" in text and "| b: Candidates: " in text
    assert text.endswith(
        "| FixAvg | **learning rate 0.01: 50.0**; learning rate 0.1: 25.0 "
        "| learning rate 0.01: 50.0; **learning rate 0.1: 25.0** |"
    )


def test_a_study_that_is_not_tuned_says_so_and_keeps_no_tuning(
    tmp_path: Path, ran: Study, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(study, "sweeps", lambda: {"results": Path("ours.yaml")})
    folder = tmp_path / "docs"
    study.published(ran, folder)
    study.published(Study("results", ran.comparison), folder)
    text = (folder / study.PAGE).read_text()
    assert "every method has the values of [its grid](../../../conf/sweeps/ours.yaml)." in text
    assert {path.name for path in folder.iterdir()} == {study.NUMBERS, study.PAGE}
    study.published(Study("results", ran.comparison, ran.grid, source="results_a"), folder)
    text = (folder / study.PAGE).read_text()
    assert "the values that tuning chose for it in `results_a`, except" in text
    assert "[results.yaml](results.yaml) has them all." in text
    kept = {path.name for path in folder.iterdir()}
    assert kept == {study.NUMBERS, study.PAGE, "results.yaml"}


PAGES = sorted((study.DOCUMENT.parent / "results").glob(f"*/{study.PAGE}"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_the_pages_are_what_the_code_writes_and_results_leads_to_them(page: Path):
    """As far as the repository has what a page is made of: the runs' folders are elsewhere."""
    name, folder, text = page.parent.name, page.parent, page.read_text()
    grid = folder / f"{name}.yaml"
    made = Study(name, folder, source="results_fashion_mnist" if grid.exists() else "")
    if (folder / "tuning.json").exists():
        made = Study(name, folder, grid, tuning=folder)
    _, tuned, body = re.split(r"^(?=## )", text, maxsplit=2, flags=re.MULTILINE)
    first = study.condition_of(folder / study.NUMBERS)
    assert study.page(name, first, study._head(made), body) == text, tuned
    shown = study.figures_shown(name)
    assert set(re.findall(r"!\[[^]]*\]\(([^)]*)\)", text)) == shown
    assert {path.name for path in folder.glob("*.png")} == shown
    assert f"](results/{name}/{study.PAGE})" in study.DOCUMENT.read_text()


# --- what is run ----------------------------------------------------------------------------------

RATES = {"training.learning_rate": [0.01, 0.1]}
TUNE = {"budget": 2, "seeds": [9], "values": {"fixavg": RATES, "ours": RATES}}
SOURCE = {"methods": {"fixavg": {}, "ours": {"method.preset": "um_pfssl"}}, "tune": TUNE}
CHOSEN = [
    {"method": "fixavg", "values": {"training.learning_rate": 0.1}, "chosen": True},
    {"method": "ours", "values": {"training.learning_rate": 0.01}, "chosen": True},
    {"method": "ours", "values": {"training.learning_rate": 0.1}, "chosen": False},
]


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `tune` and `compare` were asked for, which train nothing; `code`: what they return."""
    found: dict[str, Any] = {"tuned": [], "compared": [], "code": 0}

    def tune(name: str, _: Mapping[str, Any], *, out: Path) -> int:
        found["tuned"].append(name)
        out.mkdir(parents=True, exist_ok=True)
        (out / "tuning.json").write_text(json.dumps({"candidates": CHOSEN}))
        return found["code"]

    def compare(name: str, _: Mapping[str, Any], *, out: Path) -> int:
        found["compared"].append(name)
        return found["code"]

    monkeypatch.setattr(study, "tune", tune)
    monkeypatch.setattr(study, "compare", compare)
    for module in (grids, study):
        monkeypatch.setattr(module, "sweeps", lambda: sweeps_in(tmp_path))
    return found


def sweeps_in(folder: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted((folder / "conf" / "sweeps").glob("*.yaml"))}


def write_sweeps(folder: Path, **named: Mapping[str, Any]) -> None:
    for name, changes in named.items():
        plain = {"preset": "digits_demo", "set": SET, "seeds": [0], **changes}
        path = folder / "conf" / "sweeps" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(plain, sort_keys=False))


def test_studies_are_the_grids_of_that_name_the_large_ones_first(
    tmp_path: Path, calls: dict[str, Any]
):
    names = ("results_a", "results_cifar10", "second_a", "results_fashion_mnist", "other")
    write_sweeps(tmp_path, **{name: {"methods": ["fixavg"]} for name in names})
    assert study.studies() == [*study.FIRST, "results_a", "second_a"]


def test_results_names_every_study_that_ships():
    text = study.DOCUMENT.read_text(encoding="utf-8")
    assert study.studies()[:2] == list(study.FIRST)
    for name in study.studies():
        assert f"]({name}/{study.PAGE})" in text, name


def test_a_grid_with_candidates_is_tuned_first_and_another_only_compared(
    tmp_path: Path, calls: dict[str, Any]
):
    write_sweeps(tmp_path, results_a=SOURCE, results_b={"methods": ["fixavg"]})
    tuned, plain = study.run("results_a", tmp_path), study.run("results_b", tmp_path)
    assert calls["tuned"] == ["results_a"]
    assert calls["compared"] == [str(tmp_path / "tune-results_a/results_a.yaml"), "results_b"]
    assert tuned.tuning == tmp_path / "tune-results_a"
    assert plain == Study("results_b", tmp_path / "compare-results_b")


def test_values_of_another_grids_tuning_are_laid_over(tmp_path: Path, calls: dict[str, Any]):
    own = {
        "fixavg": {"training.batch_size": 8},  # the same label
        "um_pfssl": {},  # the same preset
        "slow": {"method.preset": "um_pfssl", "training.learning_rate": 0.001},  # wins
        "fedbn": {"training.learning_rate": 0.5},  # not tuned there
    }
    plan = {"tuned_from": "results_a", "methods": own, "reference": "slow"}
    write_sweeps(tmp_path, results_a=SOURCE, results_b=plan)
    found = study.run("results_b", tmp_path)
    assert (calls["tuned"], calls["compared"]) == (["results_a"], [str(found.grid)])
    assert (found.tuning, found.source) == (None, "results_a")
    laid = grids.read_grid(str(found.grid))
    assert (laid.name, laid.reference, laid.tuned_from) == ("results_b", "slow", "")
    rates = {m: c["training.learning_rate"] for m, c in laid.methods.items()}
    assert rates == {"fixavg": 0.1, "um_pfssl": 0.01, "slow": 0.001, "fedbn": 0.5}
    assert laid.methods["fixavg"]["training.batch_size"] == 8


@pytest.mark.parametrize(("methods", "chosen", "said"), [
    (["fixavg", "fedbn"], CHOSEN, "methods: fedbn: is not tuned in results_a, or twice"),
    (["fixavg"], [{**CHOSEN[0], "setting": "a"}], "names a grid that is tuned in each setting"),
])  # fmt: skip
def test_values_that_cannot_be_laid_over_are_named(
    tmp_path: Path, calls: dict[str, Any], monkeypatch: pytest.MonkeyPatch, methods, chosen, said
):
    monkeypatch.setattr(study, "_facts", lambda _: {"candidates": chosen})
    write_sweeps(
        tmp_path, results_a=SOURCE, results_b={"tuned_from": "results_a", "methods": methods}
    )
    with pytest.raises(ConfigError, match=said):
        study.run("results_b", tmp_path)
    assert calls["compared"] == []


def test_a_failed_cell_ends_it(tmp_path: Path, calls: dict[str, Any]):
    write_sweeps(tmp_path, results_a=SOURCE)
    calls["code"] = 1
    with pytest.raises(SystemExit):
        study.run("results_a", tmp_path)
    assert calls["compared"] == []


def test_a_study_to_which_results_does_not_lead_is_told(
    tmp_path: Path, ran: Study, calls: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys
):
    write_sweeps(tmp_path, results=SOURCE)
    monkeypatch.setattr(study, "run", lambda *_: ran)
    monkeypatch.setattr(study, "DOCUMENT", tmp_path / "all_tables.md")
    study.DOCUMENT.write_text("# Results\n")
    study.main(["results"])
    wanted = "[results](results/tables.md)"
    assert f"all_tables.md has no link to it: add {wanted}" in capsys.readouterr().out
    study.DOCUMENT.write_text(f"# Results\n\n{wanted}\n")
    study.main(["results"])
    assert capsys.readouterr().out == "docs/results/results/tables.md is written\n"
