"""A site's kept model, when another run of the same name comes: it stays, to the byte."""

from dataclasses import replace

import pytest

from client_app.node import open_site
from fedapp.core.errors import RunError
from fedapp.experiment.run_folder import folder_of
from fedapp.learn.networks import initial_params
from fedapp.learn.params import digest_of, to_bytes
from fedapp.methods.base import SiteReport
from fedapp.models.description import read_description
from fedapp.protocol.messages import Evaluation, ModelRef, Task
from fedapp.site.policy import SitePolicy
from tests.flower.grids import origin_of, preset
from tests.small import small

IMAGES = 15
FIRST, OTHER = "a" * 64, "b" * 64


@pytest.fixture(params=["a place of its own", "none"])
def work(tmp_path, request):
    """Have a site of a run measure a model of a round; return the folder that it keeps it in."""
    place = {"store-path": str(tmp_path / "site")} if request.param != "none" else {}

    def go(identity, number, right, name="hospitals", **changes):
        experiment = small(runtime__out=str(tmp_path / "runs"), **changes)
        folder = tmp_path / f"seed-{experiment.seed}"
        folder.mkdir(exist_ok=True)
        origin = replace(origin_of(experiment, name), identity=identity)
        node = {"partition-id": 2, **place}
        site, _ = open_site(
            {"preset": preset(experiment, folder)},
            node,
            origin,
            {},
            SitePolicy(None, no_terms=True),
            lambda: None,
        )
        w_0 = initial_params(experiment.model, (1, 8, 8), 10, experiment.seed)
        blob = to_bytes(w_0)
        site.store.put(blob)
        task = Task(2, number, "train", ModelRef(2, 0, digest_of(blob)))
        params = {k: v + number / 100 if v.is_floating_point() else v for k, v in w_0.items()}
        context, _ = site.context(task)
        site.keeper.take(task, SiteReport(params=params, evaluations=measured(right)), context)
        return site.keeper.folder

    return go


def measured(right):
    """An evaluation of so many right of `IMAGES`."""
    confusion = [[0] * 10 for _ in range(10)]
    confusion[0][0], confusion[0][1] = right, IMAGES - right
    bins = [0] * 14
    counts = (*bins, IMAGES), (*bins, right), (*bins, float(IMAGES))
    return {"val": Evaluation(tuple(map(tuple, confusion)), *counts)}


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    "changes",
    [{}, {"seed": 7}, {"training__learning_rate": 0.5}],
    ids=["another server", "another seed", "another experiment"],
)
def test_a_run_of_the_same_name_from_elsewhere_is_kept_beside(work, changes):
    """Round 5, 15 of 15 right; then others call their untrained model by the same name."""
    ours = work(FIRST, 5, IMAGES)
    before = files(ours)
    assert read_description(ours).origin.round == 5
    theirs = {work(OTHER, number, number, **changes) for number in range(7)}
    assert files(ours) == before
    assert len(theirs) == 1 and ours not in theirs
    assert [folder.name for folder in theirs] == [ours.name]
    assert read_description(*theirs).choice.candidates[-1].val_right == 6
    assert work(FIRST, 6, 3) == ours  # and the first goes on where it was
    assert read_description(ours).origin.round == 5


def test_the_same_run_from_round_0_again_does_not_replace_it_either(work):
    ours = work(FIRST, 5, IMAGES)
    tensors = (ours / "model.safetensors").read_bytes()
    assert {work(FIRST, number, 3) for number in (0, 1, 5)} == {ours}
    assert (ours / "model.safetensors").read_bytes() == tensors
    found = read_description(ours)
    assert found.origin.round == 5
    assert max(one.val_right for one in found.choice.candidates) == IMAGES


def test_a_run_of_an_earlier_version_that_says_not_which_it_is_replaces_none(work, caplog):
    """Both have no identity: settings tell them apart, and the run is refused by name."""
    ours = work("", 5, IMAGES)
    before = files(ours)
    assert work("", 6, IMAGES, seed=7) == ours
    assert files(ours) == before
    assert "holds a model of another run (small, seed 1), which stays" in caplog.text


@pytest.mark.parametrize("name", ["models", "Models"])
def test_no_run_is_called_as_the_folder_of_all_models(work, name):
    with pytest.raises(RunError, match="sites keep the models of all runs in a folder of that"):
        work(FIRST, 0, 0, name=name)


def test_two_processes_that_make_a_runs_folder_at_once_have_one(tmp_path, monkeypatch):
    """The other one is faster, between the look and the making."""
    plain, made = type(tmp_path).rename, []

    def late(path, target):
        if not made:
            made.append(target)
            folder_of(tmp_path, "run", FIRST)
        return plain(path, target)

    monkeypatch.setattr(type(tmp_path), "rename", late)
    assert folder_of(tmp_path, "run", FIRST) == tmp_path / "run"
    assert folder_of(tmp_path, "run", OTHER) == tmp_path / "run~2"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run~2"]
