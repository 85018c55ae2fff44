"""The files of a comparison, made of folders written by hand; and the short table."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from fedapp.core.errors import RunError
from fedapp.data.split.manifest import Manifest
from fedapp.reports.comparison.record import COLUMNS
from fedapp.tools.compare.cells import Cell
from fedapp.tools.compare.collect import Collection
from tests.tools.compare.tiny import cells, grid, pretend_begun, pretend_done

SUMMARY = {
    "method": "fedavg",
    "seed": 99,
    "sites": 2,
    "rounds": 3,
    "manifest": "ab" * 32,
    "mean_test_accuracy": {
        "best": 0.75, "best_round": 2, "final": 0.5,
        "best_by_validation": 0.625, "best_by_validation_round": 1,
    },
    "std_test_accuracy": 0.25,
    "worst_decile_accuracy": 0.125,
    "by_validation_std_test_accuracy": 0.3,
    "by_validation_worst_decile_accuracy": 0.2,
    "pseudo_label_error": None,
    "answers": {"tuned": {"final": 0.5, "best_by_validation": 0.7, "best_by_validation_round": 2}},
    "pooled": {
        "balanced_accuracy": {"final": 0.6, "best_by_validation": 0.65},
        "kappa": {"final": None, "best_by_validation": None},
    },
    "models_sent": 7, "models_up": 5, "bytes_down": 70, "bytes_up": 50, "bytes_evaluation": 20,
    "cost_bound_models": None,
    "wall_seconds": 12.5,
}  # fmt: skip
ROUNDS = [
    {"round": 0, "mean_test_accuracy": 0.25, "mean_val_accuracy": None, "trained": 4},
    {"round": 1, "mean_test_accuracy": 0.625, "mean_val_accuracy": 0.75, "std_test_accuracy": 0.3,
     "pseudo_label_error": 0.4, "mean_test_accuracy_tuned": 0.7, "mean_val_accuracy_tuned": 0.6},
    {"round": 2, "mean_test_accuracy": 0.75, "mean_val_accuracy": 0.7},
    {"round": 3, "mean_test_accuracy": 0.5, "mean_val_accuracy": 0.5},
]  # fmt: skip
SITES = (
    "site,mu,train,labelled,val,test,warmup_accuracy,final_accuracy,best_round_accuracy,by_valida"
)
SITES += "tion_accuracy,tuned_accuracy,helpers\n0,0.5,8,4,1,2,0.1,0.5,0.75,0.625,0.5,1:0.3\n"
SITES += "1,0.0,8,0,1,0,,,,,,\n"
EVALUATIONS = {
    "0": {"test": {"confusion": [[1, 0], [1, 0]], "bin_count": [0, 2], "bin_correct": [0, 1],
                   "bin_confidence": [0.0, 1.5]}},
    "1": {"val": {}},
}  # fmt: skip


def ran(cell: Cell, **changes) -> None:
    pretend_done(cell, **{**SUMMARY, **changes})
    lines = "".join(json.dumps(row) + "\n" for row in ROUNDS)
    (cell.folder / "metrics.jsonl").write_text(lines)
    (cell.folder / "per_site.csv").write_text(SITES)
    (cell.folder / "evaluations.json").write_text(json.dumps(EVALUATIONS))


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / "out" / name).open(newline="") as file:
        reader = csv.DictReader(file)
        assert tuple(reader.fieldnames or ()) == COLUMNS[name]
        return list(reader)


def collection(folder: Path, **changes) -> tuple[Collection, tuple[Cell, ...]]:
    every = cells(folder, **changes)
    return Collection(grid(folder, **changes), every, folder / "out"), every


# --- results --------------------------------------------------------------------------------------


def test_a_cell_becomes_a_row_of_results(tmp_path: Path):
    found, every = collection(tmp_path, methods=["fixavg"], seeds=[4])
    ran(every[0])
    paths = found.write()
    assert [path.name for path in paths] == [*COLUMNS, "comparison.json"]
    (row,) = rows(tmp_path, "results.csv")
    assert row == {
        "setting": "base", "method": "fixavg", "seed": "4", "dataset": "digits", "alpha": "1.0",
        "sites": "2", "rounds": "3",
        "best_test_accuracy": "0.75", "best_round": "2", "final_test_accuracy": "0.5",
        "selected_test_accuracy": "0.625", "selected_round": "1",
        "selected_val_accuracy": "0.75", "selected_by": "validation",
        "selected_std": "0.3", "selected_worst_decile": "0.2",
        "final_std": "0.25", "final_worst_decile": "0.125",
        "warmup_test_accuracy": "0.25", "pseudo_label_error": "",
        "last5_test_accuracy": "0.625", "largest_fall": "0.25", "calibration_error": "0.25",
        "selected_balanced_accuracy": "0.65", "selected_f1": "", "selected_kappa": "",
        "tuned_selected_test_accuracy": "0.7", "tuned_selected_round": "2",
        "tuned_final_test_accuracy": "0.5",
        **{f"{answer}_{column}": "" for answer in ("common", "online", "alone", "one_round")
           for column in ("selected_test_accuracy", "selected_round", "final_test_accuracy")},
        "models_down": "7", "models_up": "5", "bytes_down": "70", "bytes_up": "50",
        "bytes_evaluation": "20", "steps_per_site": "", "images_per_site": "",
            "cost_bound_models": "", "wall_seconds": "12.5",
        "manifest": "ab" * 32, "code": "", "cell": "cells/base/fixavg/seed-4",
    }  # fmt: skip


def test_without_validation_images_the_last_round_is_selected(tmp_path: Path):
    found, every = collection(tmp_path, methods=["fixavg"])
    ran(every[0])
    path = every[0].folder / "summary.json"
    summary = json.loads(path.read_bytes())
    for accuracy in (summary["mean_test_accuracy"], summary["answers"]["tuned"]):
        accuracy |= {"best_by_validation": None, "best_by_validation_round": None}
    path.write_text(json.dumps(summary))
    found.write()
    (row,) = rows(tmp_path, "results.csv")
    assert row["selected_by"] == "last round" and row["selected_val_accuracy"] == ""
    assert row["selected_test_accuracy"] == row["final_test_accuracy"] == "0.5"
    assert (row["selected_round"], row["tuned_selected_test_accuracy"]) == ("3", "0.5")
    assert (row["selected_std"], row["selected_worst_decile"]) == ("0.25", "0.125")
    assert rows(tmp_path, "sites.csv")[0]["selected_accuracy"] == "0.5"


def test_a_grid_may_judge_at_the_last_round(tmp_path: Path):
    found, every = collection(tmp_path, methods=["fixavg"], judged="last")
    ran(every[0])
    found.write()
    (row,) = rows(tmp_path, "results.csv")
    assert row["selected_by"] == "last round" and row["selected_round"] == "3"
    assert (row["selected_test_accuracy"], row["selected_val_accuracy"]) == ("0.5", "0.5")
    assert row["tuned_selected_test_accuracy"] == "0.5"
    assert (row["selected_std"], row["selected_worst_decile"]) == ("0.25", "0.125")
    assert rows(tmp_path, "sites.csv")[0]["selected_accuracy"] == "0.5"


def test_a_row_of_another_answer_has_that_ones_numbers_of_the_same_run(tmp_path: Path):
    """Site 1 has no model of its own: it counts with the average."""
    average = {"method.preset": "fedavg_ft", "answer": "common"}
    own = {**average, "answer": "tuned"}
    methods = {"fedavg_ft": {}, "fedavg": average, "own": own}
    found, every = collection(tmp_path, methods=methods)
    answers = {"common": {"final": 0.3, "best_by_validation": 0.6, "best_by_validation_round": 2},
               "tuned": {"final": 0.5, "best_by_validation": 0.7, "best_by_validation_round": 1,
                         "sites_without": 1}}  # fmt: skip
    ran(every[0], answers=answers)
    curve = [{**row, "mean_test_accuracy_common": test, "mean_val_accuracy_common": val}
             for row, test, val in zip(ROUNDS, (0.9, 0.65, 0.6, 0.3), (0.1, 0.2, 0.8, 0.4),
                                       strict=True)]  # fmt: skip
    lines = "".join(json.dumps(row) + "\n" for row in curve)
    (every[0].folder / "metrics.jsonl").write_text(lines)
    (every[0].folder / "per_site.csv").write_text(
        "site,mu,train,labelled,val,test,final_accuracy,common_accuracy,tuned_accuracy\n"
        "0,0.5,8,4,1,2,0.5,0.25,0.5\n1,0.5,8,4,1,2,0.5,0.35,\n"
    )
    found.write()
    assert (len(found.results), found.done) == (3, 1)
    _, common, tuned = rows(tmp_path, "results.csv")
    assert common["method"] == "fedavg" and common["cell"] == "cells/base/fedavg_ft/seed-0"
    assert (common["final_test_accuracy"], common["best_test_accuracy"]) == ("0.3", "0.65")
    assert (common["selected_test_accuracy"], common["selected_round"]) == ("0.6", "2")
    assert (common["selected_val_accuracy"], common["best_round"]) == ("0.8", "1")
    assert float(common["final_std"]) == pytest.approx(0.05)
    assert (common["final_worst_decile"], common["selected_std"]) == ("0.25", "")
    assert (common["warmup_test_accuracy"], common["largest_fall"]) == ("0.9", "0.3")
    assert common["calibration_error"] == ""  # evaluations.json has none of this answer
    assert (tuned["selected_round"], tuned["final_worst_decile"]) == ("1", "0.35")
    of_sites = [row["final_accuracy"] for row in rows(tmp_path, "sites.csv")]
    assert of_sites == ["0.5", "0.5", "0.25", "0.35", "0.5", "0.35"]
    described = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert described["answers"] == {"fedavg": "common", "own": "tuned"}


def test_an_answer_that_a_run_did_not_measure_is_named(tmp_path: Path):
    methods = {"own": {"method.preset": "fedavg", "answer": "common"}}
    found, every = collection(tmp_path, methods=methods)
    ran(every[0])
    with pytest.raises(RunError, match=r"own / seed 0: answer = 'common': .* \(tuned\); leave it"):
        found.write()


def test_sites_and_rounds_are_tidy(tmp_path: Path):
    found, every = collection(tmp_path, methods=["fixavg"])
    ran(every[0])
    found.write()
    first, second = rows(tmp_path, "sites.csv")
    assert first == {
        "setting": "base", "method": "fixavg", "seed": "0", "site": "0", "mu": "0.5", "train": "8",
        "labelled": "4", "val": "1", "test": "2", "warmup_accuracy": "0.1",
        "final_accuracy": "0.5", "selected_accuracy": "0.625", "best_round_accuracy": "0.75",
        "common_accuracy": "", "tuned_accuracy": "0.5", "online_accuracy": "",
        "one_round_accuracy": "",
        "alone_accuracy": "", "val_accuracy": "", "alone_val_accuracy": "",
    }  # fmt: skip
    assert (second["site"], second["selected_accuracy"], second["labelled"]) == ("1", "", "0")
    zero, one, *_ = rows(tmp_path, "rounds.csv")
    assert (zero["round"], zero["mean_test_accuracy"], zero["mean_val_accuracy"]) == (
        "0",
        "0.25",
        "",
    )
    assert (one["std_test_accuracy"], one["pseudo_label_error"]) == ("0.3", "0.4")
    assert (one["mean_test_accuracy_tuned"], one["mean_val_accuracy_tuned"]) == ("0.7", "0.6")
    assert zero["mean_test_accuracy_tuned"] == one["mean_test_accuracy_common"] == ""


def test_rows_stand_in_the_grids_order_whatever_ended_first(tmp_path: Path):
    changes = {"settings": {"b": None, "a": {"training.batch_size": 8}}, "seeds": [1, 0]}
    found, every = collection(tmp_path, **changes)
    expected = [
        (s, m, seed) for s in ("b", "a") for m in ("fixavg", "um_pfssl") for seed in ("1", "0")
    ]
    last = ""
    for cell in reversed(every):
        ran(cell)
        found.write()
        keys = [(r["setting"], r["method"], r["seed"]) for r in rows(tmp_path, "results.csv")]
        assert keys == [key for key in expected if key in keys]
        last = (tmp_path / "out" / "results.csv").read_text()
    again, _ = collection(tmp_path, **changes)
    again.write()
    assert (tmp_path / "out" / "results.csv").read_text() == last


def test_only_what_is_done_counts(tmp_path: Path):
    found, every = collection(tmp_path)
    pretend_begun(every[0])
    found.write()
    assert rows(tmp_path, "results.csv") == rows(tmp_path, "sites.csv") == found.results == []


def test_a_damaged_summary_is_named(tmp_path: Path):
    found, every = collection(tmp_path)
    pretend_done(every[0])
    (every[0].folder / "summary.json").write_text("[]")
    with pytest.raises(RunError, match=r"summary\.json: cannot be read .* to run the cell again"):
        found.write()


@pytest.mark.parametrize("text", ["[]", '{"0": {"test": {}}}', "{"])
def test_damaged_evaluations_are_named(tmp_path: Path, text: str):
    found, every = collection(tmp_path)
    ran(every[0])
    (every[0].folder / "evaluations.json").write_text(text)
    with pytest.raises(RunError, match=r"evaluations\.json: cannot be read .* to run the cell"):
        found.write()


def test_mix_has_no_curve_but_is_calibrated(tmp_path: Path):
    methods = ["fixavg", "fixprox", "fixbn", "mix"]
    found, every = collection(tmp_path, methods=methods)
    ran(every[-1])
    found.write()
    (row,) = rows(tmp_path, "results.csv")
    assert row["method"] == "mix" and row["calibration_error"] == "0.25"
    assert row["last5_test_accuracy"] == row["largest_fall"] == ""


def test_the_plan_is_written_down(tmp_path: Path):
    paper = {"table": "I", "dataset": "FashionMNIST"}
    found, _ = collection(
        tmp_path,
        title="Trial",
        settings={"a": None, "b": {"paper": {**paper, "setting": "alpha=1"}}},
        methods={"slow": {"method.preset": "fixavg", "training.learning_rate": 0.001}},
        paper=paper,
        seeds=[3],
        reference="slow",
    )
    found.write()
    plan = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert plan["reference"] == "slow"
    assert (plan["title"], plan["name"]) == ("Trial", "tiny")
    assert (plan["settings"], plan["methods"], plan["seeds"]) == (["a", "b"], ["slow"], [3])
    assert plan["paper"] == {"by_setting": {"a": paper, "b": {**paper, "setting": "alpha=1"}}}
    assert plan["grid"]["settings"]["a"] == {"preset": "digits_demo"}
    assert plan["grid"]["methods"]["slow"]["training.learning_rate"] == 0.001
    assert "torch" in plan["versions"] and len(plan["code"]) == 16


def test_without_the_papers_rows_there_is_no_mapping(tmp_path: Path):
    found, _ = collection(tmp_path)
    found.write()
    assert json.loads((tmp_path / "out" / "comparison.json").read_text())["paper"] == {}


# --- the split ------------------------------------------------------------------------------------


def split(seed: int) -> Manifest:
    site = np.array([0, 1, 1, seed % 2], np.int32)
    visible = np.array([True, False, True, True])
    return Manifest("digits", 2, 1, seed, site, np.array([0, 0, 1, 2], np.uint8), visible)


def test_labels_may_differ_within_a_setting_and_seed_but_the_split_may_not(tmp_path: Path):
    found, every = collection(tmp_path, methods=["fixavg", "fedavg_sl", "um_pfssl"])
    for cell, manifest in zip(every, (split(0), split(0).revealed(), split(1)), strict=True):
        ran(cell)
        manifest.save(cell.folder / "manifest.safetensors")
    found.write()
    assert found.split_faults() == [
        "base / seed 0: um_pfssl: run on another split than fixavg, so not to be compared with it"
    ]


def test_where_only_digests_are_known_they_are_compared_among_equal_labels(tmp_path: Path):
    found, every = collection(tmp_path, methods=["fixavg", "fedavg_sl", "um_pfssl"])
    for cell, digest in zip(every, ("aa", "bb", "cc"), strict=True):
        ran(cell)
        facts = {**cell.run_facts(), "manifest": digest * 32}
        (cell.folder / "run.json").write_text(json.dumps(facts))
    found.write()
    (fault,) = found.split_faults()
    assert "um_pfssl: run on another split" in fault
