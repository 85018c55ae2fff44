"""Mix: the mean of tables by hand, and final models read back from runs."""

import json
from pathlib import Path
from shutil import rmtree

import numpy as np
import pytest
import torch

from fedapp.core.errors import RunError, StoreError
from fedapp.experiment.run_folder import RunFolder
from fedapp.learn.metrics import evaluation
from fedapp.site.federation import federation_of
from fedapp.tools.compare.cell_process import Job, do
from fedapp.tools.compare.cells import Cell
from fedapp.tools.compare.ensemble import FinalModels, ensemble
from tests.tools.compare.tiny import cells

METHODS = ["fixavg", "fixprox", "fixbn", "lg_fedavg", "um_pfssl", "fedavg_sl", "mix"]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Cell]:
    """Every method's cell, run in this process, its models kept."""
    every = cells(tmp_path_factory.mktemp("ran"), methods=METHODS)
    for cell in every:
        do(Job.from_line(Job.of(cell, "loopback").to_line()))
    return {cell.method: cell for cell in every}


def read(cell: Cell, name: str):
    return json.loads((cell.folder / name).read_text())


# --- the ensemble ---------------------------------------------------------------------------------


def test_the_mean_of_two_tables():
    first = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.5, 0.3]])
    second = torch.tensor([[0.1, 0.5, 0.4], [0.3, 0.1, 0.6]])
    mean = ensemble([first, second])
    torch.testing.assert_close(mean, torch.tensor([[0.5, 0.3, 0.2], [0.25, 0.3, 0.45]]))
    # alone they answer (0, 1) and (1, 2), together (0, 2)
    assert evaluation(mean, torch.tensor([0, 2])).correct == 2
    assert evaluation(first, torch.tensor([0, 2])).correct == 1


def test_one_model_is_its_own_ensemble_and_the_order_does_not_matter():
    tables = [torch.softmax(torch.arange(6.0).reshape(2, 3) * k, 1) for k in (1, -2, 3)]
    assert torch.equal(ensemble(tables[:1]), tables[0])
    torch.testing.assert_close(ensemble(tables), ensemble(tables[::-1]))


def test_no_images_no_answers():
    assert ensemble([torch.empty(0, 10)] * 3).shape == (0, 10)


# --- final models ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS[:-1])
def test_final_models_give_the_accuracies_that_the_run_recorded(ran: dict[str, Cell], method: str):
    cell = ran[method]
    models = FinalModels(cell.folder, cell.experiment, federation_of(cell.experiment))
    for site, recorded in read(cell, "evaluations.json").items():
        for part in ("val", "test"):
            confusion = evaluation(*models.probabilities(int(site), part)).confusion
            assert [list(row) for row in confusion] == recorded[part]["confusion"], (site, part)


def test_a_model_that_a_site_has_beside_the_common_one_is_left_aside(tmp_path: Path):
    """Prior shift's site keeps a whole model of its own: what is loaded is the common one."""
    cell = cells(tmp_path, methods=["recommended"])[0]
    do(Job.of(cell, "loopback"))
    models = FinalModels(cell.folder, cell.experiment, federation_of(cell.experiment))
    first = {name: tensor.clone() for name, tensor in models.load(0).state_dict().items()}
    assert all(torch.equal(first[name], t) for name, t in models.load(1).state_dict().items())


def test_mix_is_the_mean_of_what_its_three_parents_answer(ran: dict[str, Cell]):
    mix, of = ran["mix"], [ran[name] for name in METHODS[:3]]
    federation = federation_of(mix.experiment)
    models = [FinalModels(c.folder, c.experiment, federation) for c in of]
    accuracies = []
    for site in range(4):
        answers = [model.probabilities(site, "test")[0].double().numpy() for model in models]
        labels = federation.dealt.site(site).test_labels.numpy()
        accuracies.append(float((np.mean(answers, axis=0).argmax(1) == labels).mean()))
    rows = RunFolder(mix.folder).per_site()
    assert [row["final_accuracy"] for row in rows] == pytest.approx(accuracies)
    assert [row["by_validation_accuracy"] for row in rows] == pytest.approx(accuracies)
    mean = read(mix, "summary.json")["mean_test_accuracy"]
    assert mean["best"] == mean["final"] == mean["best_by_validation"]
    assert mean["final"] == pytest.approx(np.mean(accuracies))
    assert mean["best_round"] == mean["best_by_validation_round"] == 3
    assert [row["round"] for row in RunFolder(mix.folder).metrics()] == [3]


def test_mix_costs_what_all_three_cost(ran: dict[str, Cell]):
    summary = read(ran["mix"], "summary.json")
    of = [read(ran[name], "summary.json") for name in METHODS[:3]]
    for key in ("models_sent", "models_up", "bytes_up", "bytes_down", "bytes_evaluation"):
        assert summary[key] == sum(parent[key] for parent in of), key
    assert summary["wall_seconds"] == pytest.approx(sum(parent["wall_seconds"] for parent in of))
    assert summary["manifest"] == of[0]["manifest"]


def test_a_mix_that_was_cut_is_made_again(ran: dict[str, Cell]):
    mix = ran["mix"]
    before = read(mix, "evaluations.json")
    (mix.folder / "summary.json").unlink()
    assert mix.state() == "begun"
    do(Job.of(mix, "loopback"))
    assert mix.state() == "done"
    assert read(mix, "evaluations.json") == before


def test_a_lost_private_part_is_an_error_and_never_w_0(ran: dict[str, Cell], tmp_path: Path):
    cell = ran["fixbn"]
    models = FinalModels(cell.folder, cell.experiment, federation_of(cell.experiment))
    lost = cell.folder / "sites" / "site-0"
    lost.rename(tmp_path / "away")
    try:
        with pytest.raises(StoreError, match="no such model"):
            models.load(0)
    finally:
        (tmp_path / "away").rename(lost)


def test_removed_models_and_unfinished_runs_are_named(tmp_path: Path):
    (cell,) = cells(tmp_path, methods=["fixavg"])
    with pytest.raises(RunError, match="is not over"):
        FinalModels(cell.folder, cell.experiment, federation_of(cell.experiment))
    do(Job.of(cell, "loopback"))
    rmtree(cell.folder / "pool")
    with pytest.raises(RunError, match="its models were removed"):
        FinalModels(cell.folder, cell.experiment, federation_of(cell.experiment))
