"""Runs with `rounds.pooled_auroc`: what the server says of all scores, masked too."""

import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

import fedapp
from fedapp.core.errors import ProtocolError
from fedapp.evaluation.ranking_metrics import BIN_EDGES, score_counts
from fedapp.methods.base import SiteContext
from fedapp.protocol.codec import decode_answer, encode
from fedapp.protocol.messages import MODEL, Evaluation, Scored
from fedapp.reports.report import run_page
from fedapp.reports.run_record import read_run
from fedapp.server.checks import check_reply
from fedapp.simulation.loopback import run_loopback
from tests.api.test_findings import NAMES, site
from tests.server.test_checks import FACTS, HONEST, TASK, TEST
from tests.server.test_masked_sums import experiment, rows

ON = {"rounds.pooled_auroc": True}
MANY = {"data.subset": 1600, "rounds.num_rounds": 1}


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


@pytest.fixture
def said(monkeypatch):
    """Return what gives the answers that a run's last score counts are of, and their labels."""
    given, honest = {}, SiteContext.evaluation

    def evaluated(self, answers, labels):
        found = honest(self, answers, labels)
        given[self.data.site, found.scores] = answers.double().numpy(), labels.numpy()
        return found

    def last(folder):
        sites = read_run(folder).sites
        each = [given[one.number, one.standing.latest["test"].scores] for one in sites]
        return [np.concatenate(of) for of in zip(*each, strict=True)]

    monkeypatch.setattr(SiteContext, "evaluation", evaluated)
    return last


@pytest.mark.parametrize("name", ["fedavg", "um_pfssl", "one_round"])
def test_it_is_scikit_learns_over_all_sites_images(name, tmp_path, said):
    folder = run_loopback(experiment(tmp_path, name, "plain", **ON, **MANY))[1]
    answers, truth = said(folder)
    rounded = np.searchsorted(BIN_EDGES, answers, side="right")
    classes = summary(folder)["by_class"]
    told = [c for c, one in enumerate(classes) if one["auroc"] is not None]
    assert len(told) > 5
    for c in told:
        of, scores = truth == c, rounded[:, c]
        assert classes[c]["auroc"] == pytest.approx(roc_auc_score(of, scores), abs=1e-12)
        exact = average_precision_score(of, scores)
        assert classes[c]["average_precision"] == pytest.approx(exact, abs=1e-12)
    mean = summary(folder)["auroc"]
    assert mean == pytest.approx(np.mean([classes[c]["auroc"] for c in told]))
    page = run_page([read_run(folder)])
    assert "AUROC by class" in page and "Mean over sites, %" in page


def test_masked_sums_give_the_same_and_no_sites_own(tmp_path):
    plain, masked = (
        summary(run_loopback(experiment(tmp_path / s, "fedavg", s, **ON))[1])
        for s in ("plain", "masked")
    )
    assert masked["auroc"] == pytest.approx(plain["auroc"], abs=0.01)
    assert plain["auroc_of_sites"] is not None and masked["auroc_of_sites"] is None
    assert [one["images"] for one in masked["by_class"]] == [
        one["images"] for one in plain["by_class"]
    ]
    assert "Mean over sites" in run_page([read_run(tmp_path / "masked" / "run")])


def test_nothing_is_sent_unasked_and_else_all_is_as_it_was(tmp_path):
    off, on = (
        run_loopback(experiment(tmp_path / name, "fedavg", "plain", **over))[1]
        for name, over in (("off", {}), ("on", ON))
    )
    assert "scores" not in (off / "checkpoint.json").read_text()
    for mine, theirs in zip(rows(off), rows(on), strict=True):
        same = {k: of for k, of in mine.items() if not k.startswith(("bytes", "wall"))}
        assert same.items() <= theirs.items()
    assert (off / "evaluations.json").read_text() == (on / "evaluations.json").read_text()
    assert "auroc" not in summary(off) and "Mean over sites, %" not in run_page([read_run(off)])
    state = json.loads((on / "checkpoint.json").read_text())["state"]["standings"]["sites"]
    told = {name for one in state.values() for name, of in one["latest"].items() if "scores" in of}
    assert told == {"test"}


def test_findings_are_ranked_one_by_one(tmp_path, monkeypatch, said):
    monkeypatch.setenv("FEDAPP_OUT", str(tmp_path))
    data = fedapp.Federation([site("north", 240, 0), site("south", 160, 1)], classes=NAMES)
    for method in ("fedavg", "one_round"):
        run = fedapp.run(data, method, network="mlp", settings=ON | {"rounds.num_rounds": 1},
                         quiet=True)  # fmt: skip
        answers, truth = said(run.folder)
        for f in (0, 1):
            read = truth[:, f] >= 0
            rounded = np.searchsorted(BIN_EDGES, answers[read, f], side="right")
            found = run.summary["by_class"][f]["auroc"]
            assert found == pytest.approx(roc_auc_score(truth[read, f], rounded), abs=1e-12)
        assert run.summary["by_class"][2]["auroc"] is None, "nobody has it"


def scored():
    answers = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    return TEST.with_scores(score_counts(answers, np.array([0, 1, 1])).tolist())


def reply(test):
    return replace(HONEST, evaluations=HONEST.evaluations | {"test": test})


def test_counts_travel_whole_and_those_that_do_not_fit_are_refused():
    honest = reply(scored())
    assert decode_answer(encode(honest)) == honest
    assert isinstance(decode_answer(encode(honest)).evaluations["val"], Evaluation)
    assert b"scores" not in encode(HONEST)
    check_reply(TASK, honest, FACTS, {MODEL}, scored=True)
    counts = scored().scores
    moved = (counts[0][::-1], counts[1])
    for test, on, why in (
        (TEST, True, "lacks score counts"),
        (scored(), False, "has score counts"),
        (TEST.with_scores(moved), True, "add up"),
        (TEST.with_scores(counts[:1]), True, "not of 2 classes"),
        (TEST.with_scores([of[1:] for of in counts]), True, "not of 2 classes"),
    ):
        with pytest.raises(ProtocolError, match=why):
            check_reply(TASK, reply(test), FACTS, {MODEL}, scored=on)
    with pytest.raises(ProtocolError):
        decode_answer(encode(honest).replace(b'"scores":[[0', b'"scores":[[-1'))
    with pytest.raises(ProtocolError, match="val"):
        val = scored()
        check_reply(TASK, replace(HONEST, evaluations={"val": val}), FACTS, {MODEL}, scored=True)


def test_without_scores_it_is_the_evaluation_that_it_was():
    assert scored().plain == TEST == TEST.plain and isinstance(scored(), Scored)
