"""A site's kept model, as rounds go by: the best by its rule, cut and resumed to the byte."""

import shutil
from functools import cache

import pytest
import torch

from fedapp.core.errors import StoreError
from fedapp.evaluation.model_selection import select
from fedapp.experiment.config import load_experiment
from fedapp.learn.metrics import evaluation
from fedapp.models.description import read_description
from fedapp.models.model import load_model
from fedapp.server.engine import Engine
from fedapp.site.federation import federation_of
from tests.flower.results import loopback
from tests.golden.numbers import SHRUNK

SITES = range(4)
CPU = torch.device("cpu")
NAME = "runtime.run_name"


def settings(out, method, **more):
    return {
        **SHRUNK, "method.preset": method, "runtime.out": str(out), NAME: "run",
        **{key.replace("__", "."): value for key, value in more.items()},
    }  # fmt: skip


def run(out, method, **more):
    return loopback(load_experiment("digits_demo", settings(out, method, **more)))


def files(folder):
    """The models' files; what all sites are worth is told at the end of a run alone."""
    return {p.relative_to(folder): p.read_bytes() for p in sorted(folder.rglob("*.*"))}


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("recommended", {}),
        ("um_pfssl", {}),
        ("pfedme", {}),
        ("fedper", {"transport__precision": "float16"}),
        ("um_pfssl", {"transport__precision": "float16"}),
        ("fedrod", {}),
        ("local_only", {"privacy__clip": 0.1}),
    ],
)
def test_a_kept_model_answers_as_it_was_measured(tmp_path, method, more):
    """The counts are those of its candidate, and the read model's own, whatever travelled."""
    folder = run(tmp_path, method, **more)
    experiment = load_experiment("digits_demo", settings(tmp_path, method, **more))
    federation = federation_of(experiment)
    for site in SITES:
        model, found = load_model(folder / "models" / str(site), CPU)
        kept = select(found.choice.candidates)
        assert (kept.round, kept.answer) == (found.origin.round, found.choice.answer)
        test = found.results.test
        assert (kept.test_right, kept.test_images) == (test.right, test.images)
        assert (kept.val_right, kept.val_images) == (
            found.results.val.right,
            found.results.val.images,
        )
        if (said := found.choice.verdict) and said.pairs:  # it speaks of the model that is kept
            assert (said.pairs.alone if kept.alone else said.pairs.together) == kept.test_right
        assert found.results.exact is True
        data = federation.dealt.site(site)
        again = evaluation(model.probabilities(data.test), data.test_labels)
        assert (again.correct, again.samples) == (test.right, test.images)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the files of all models of a run that is not cut; each method's run is made once."""

    @cache
    def of(method):
        return files(run(tmp_path_factory.mktemp(method), method) / "models")

    return of


@pytest.mark.parametrize("method", ["recommended", "um_pfssl"])
@pytest.mark.parametrize("cut", [0, 1, 3])
def test_a_run_cut_after_any_round_and_resumed_keeps_the_same_to_the_byte(
    tmp_path, monkeypatch, whole, method, cut
):
    """Cut when the sites have done the round but the server has not saved it: it is done again."""
    plain = Engine._record

    def full(engine, row, *others):
        if row["round"] == cut:
            raise StoreError("no room")
        plain(engine, row, *others)

    with monkeypatch.context() as broken, pytest.raises(StoreError):
        broken.setattr(Engine, "_record", full)
        run(tmp_path / "cut", method)
    resume = {"runtime__resume": True} if cut else {}
    assert files(run(tmp_path / "cut", method, **resume) / "models") == whole(method)


def test_a_damaged_or_lost_folder_is_begun_anew(tmp_path, caplog):
    folder = run(tmp_path, "fedavg", rounds__num_rounds=1)
    (folder / "models/0/model.json").write_text("{")
    shutil.rmtree(folder / "models/1")
    run(tmp_path, "fedavg", rounds__num_rounds=2, runtime__resume=True)
    assert "the site starts again to keep models" in caplog.text
    first = {
        site: min(c.round for c in read_description(folder / f"models/{site}").choice.candidates)
        for site in (0, 1)
    }
    assert first == {0: 2, 1: 2}  # what was seen before is gone with the folder
    assert read_description(folder / "models/0").origin.round == 2


def test_a_damaged_model_does_not_keep_a_run_from_saying_how_it_ended(tmp_path, caplog, capsys):
    folder = run(tmp_path, "fedavg", rounds__num_rounds=1)
    (folder / "models/0/model.json").write_text("{")
    capsys.readouterr()
    run(tmp_path, "fedavg", rounds__num_rounds=1, runtime__resume=True)
    assert "models/0/model.json: damaged" in caplog.text
    assert "Files in" in capsys.readouterr().out


def test_a_site_that_joining_does_not_help_keeps_its_model_alone_and_says_so(tmp_path, caplog):
    """UM-pFSSL falls far below the warm-up in these short runs."""
    caplog.set_level("DEBUG", logger="fedapp")
    folder = run(tmp_path, "um_pfssl")
    found = [read_description(folder / "models" / str(site)) for site in SITES]
    harmed = [f for f in found if f.choice.helped is False]
    assert harmed
    for one in harmed:
        assert one.origin.round == 0
        card = (folder / "models" / one.origin.called / "README.md").read_text()
        assert f"**{one.choice.verdict.line}**" in card
    assert "validation images; it is in" in caplog.text
