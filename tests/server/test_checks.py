"""What the server refuses to believe."""

from dataclasses import replace

import pytest
import torch

from fedapp.core.errors import ProtocolError, RunError
from fedapp.core.settings import DataSettings
from fedapp.learn.metrics import CALIBRATION_BINS, evaluation
from fedapp.methods.um_pfssl.method import UmPfssl
from fedapp.protocol.messages import (
    MODEL,
    ModelRef,
    PartSent,
    PseudoLabels,
    Reply,
    ScoredRef,
    SiteFacts,
    Task,
)
from fedapp.server.checks import (
    agreeing_sites,
    check_reply,
    check_same_sites,
    joinable_sites,
    kind_of,
)
from fedapp.server.standings import Standing, Standings


def ref(site, version=1, content=None):
    return ModelRef(site, version, f"{content if content is not None else site:064x}")


PUBLISHED = DataSettings()
FACTS = SiteFacts(
    0, (1, 8, 8), ("a", "b"), labelled=3, unlabelled=4, val=2, test=3, split_digest="0" * 64
)
TASK = Task(0, 5, "train", ref(0), {"helpers": (ref(1), ref(2)), "newcomers": (ref(3),)})
TEST = evaluation(torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), torch.tensor([0, 1, 1]))
VAL = evaluation(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 1]))
HONEST = Reply(
    0,
    5,
    "f" * 64,
    (ScoredRef(ref(1), 0.5), ScoredRef(ref(3), 0.4)),
    ("f" * 64,),
    {"pseudo_wrong": 1.0, "pseudo_total": 4.0, "loss": 0.3},
    {"test": TEST, "test_before": TEST, "val": VAL},
    pseudo=PseudoLabels((3, 1), (4, *[0] * 9), (1, 0), (1, *[0] * 9)),
)


def moved(bins):
    """Return the bins with what is in one of them put into the first, which is empty."""
    assert bins[0] == 0
    full = max(i for i, held in enumerate(bins) if held)
    return (bins[full], *(0 if i == full else held for i, held in enumerate(bins) if i))


def test_an_honest_reply_passes():
    check_reply(TASK, HONEST, FACTS, {MODEL})
    check_reply(TASK, Reply(0, 5, "f" * 64), FACTS, {MODEL})


def test_every_answer_of_a_site_may_be_measured_on_both_parts():
    results = {f"{part}_{answer}": result for part, result in (("val", VAL), ("test", TEST))
               for answer in ("common", "tuned", "alone")}  # fmt: skip
    check_reply(
        TASK, replace(HONEST, evaluations={**HONEST.evaluations, **results}), FACTS, {MODEL}
    )


def bins(**changes):
    return {"evaluations": {"test": replace(TEST, **changes)}}


def pseudo(by_class, first_bin, wrong=(), bins=10):
    """Pseudo-labels that are all in the first bin of uncertainty, `wrong` ones by class."""
    wrong_bins = (sum(wrong), *[0] * (bins - 1)) if wrong else ()
    return {"pseudo": PseudoLabels(by_class, (first_bin, *[0] * (bins - 1)), wrong, wrong_bins)}


LIES = {
    "pseudo-labels of a third class": (pseudo((2, 1, 1), 4), "counted in 3 groups"),
    "pseudo-labels in other bins": (pseudo((3, 1), 4, bins=9), "counted in 9 groups"),
    "more pseudo-labels than images": (pseudo((3, 2), 5), "5 pseudo-labels; it has 4"),
    "other sums": (pseudo((3, 1), 3), "do not add up"),
    "more wrong of a class": (pseudo((3, 1), 4, (1, 2)), "more pseudo-labels wrong"),
    "wrong of one class only": (pseudo((3, 1), 4, (1,)), "1 of wrong ones"),
    "unknown role": ({"contents": {"prototypes": "f" * 64}}, "sent prototypes; its method has"),
    "model as content": ({"contents": {MODEL: "f" * 64}}, "sent model; its method has"),
    "no base": (
        {"parts": {MODEL: PartSent("e" * 64, "f" * 64)}},
        "whose base its task does not name",
    ),
    "another site": ({"site": 1}, "answer of site 1"),
    "another round": ({"round": 4}, "for round 4"),
    "not offered": ({"helpers": (ScoredRef(ref(4), 1.0),)}, "was not offered"),
    "a part of what is not new": (
        {"parts": {"means": PartSent(ref(0).digest, "c" * 64)}},
        "a part of its means, of which it names no new content",
    ),
    "another version": ({"helpers": (ScoredRef(ref(1, 9), 1.0),)}, "was not offered"),
    "twice": ({"helpers": (ScoredRef(ref(1), 1.0),) * 2}, "names a site twice"),
    "itself": ({"helpers": (ScoredRef(ref(0), 1.0),)}, "or itself"),
    "hoard": ({"held": tuple(f"{k:064x}" for k in range(9))}, "holds 9 models"),
    "unknown part": ({"evaluations": {"train": TEST}}, "evaluation 'train'"),
    "unknown answer": ({"evaluations": {"val_mixture": VAL}}, "evaluation 'val_mixture'"),
    "part of another": ({"evaluations": {"test_before_tuned": TEST}}, "'test_before_tuned'; must"),
    "fewer by one answer": ({"evaluations": {"test_tuned": VAL}}, "test_tuned is of 2 images"),
    "more by one answer": ({"evaluations": {"val_common": TEST}}, "val_common is of 3 images"),
    "bins by one answer": (
        {"evaluations": {"test_alone": replace(TEST, bin_count=(3,))}},
        "of test_alone do not add up",
    ),
    "over again of what is not there": ({"equal": {"test_tuned": "test_common"}}, "one of both"),
    "sent and over again": ({"equal": {"test_before": "test"}}, "'test_before' is to be 'test'"),
    "of other images": ({"equal": {"val_tuned": "test"}}, "'val_tuned' cannot be 'test'"),
    "unknown and over again": ({"equal": {"train": "test"}}, "'train' cannot be 'test'"),
    "more images": ({"evaluations": {"val": TEST}}, "is of 3 images, it has 2"),
    "classes": (bins(confusion=((1,),)), "is not 2 x 2"),
    "few bins": (bins(bin_count=(3,)), "do not add up"),
    "sums": (bins(bin_correct=(0,) * CALIBRATION_BINS), "do not add up"),
    "overfull": (bins(bin_confidence=(9.0,) * CALIBRATION_BINS), "does not belong there"),
    "right where nothing is": (bins(bin_correct=moved(TEST.bin_correct)), "does not belong there"),
    "sure where nothing is": (
        bins(bin_confidence=moved(TEST.bin_confidence)),
        "does not belong there",
    ),
    "inflated": ({"metrics": {"pseudo_total": 1e308}}, "pseudo_total = 1e"),
    "half an image": ({"metrics": {"pseudo_total": 0.5}}, "must be a count"),
    "negative": ({"metrics": {"pseudo_total": 4, "pseudo_wrong": -1e6}}, "pseudo_wrong"),
    "too many labels": ({"metrics": {"pseudo_total": 5.0}}, "pseudo_total = 5"),
    "all wrong": ({"metrics": {"pseudo_total": 2, "pseudo_wrong": 3}}, "pseudo_wrong = 3"),
    "chatty": ({"metrics": {f"m{'x' * k}": 0.0 for k in range(40)}}, "40 metrics"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_refused_and_named(name):
    changes, says = LIES[name]
    with pytest.raises(ProtocolError, match=says):
        check_reply(TASK, replace(HONEST, **changes), FACTS, {MODEL})
        UmPfssl().check_reply(TASK, replace(HONEST, **changes), FACTS)


def test_equal_contents_of_two_sites_are_two_models():
    twins = replace(TASK, models={"helpers": (ref(1, 1, 7),), "newcomers": (ref(2, 1, 7),)})
    for site in (1, 2):
        check_reply(
            twins, replace(HONEST, helpers=(ScoredRef(ref(site, 1, 7), 1.0),)), FACTS, {MODEL}
        )


def test_sites_that_differ_from_most_are_left_out_and_named():
    said = []
    sites = [replace(FACTS, site=k) for k in range(4)]
    odd = replace(FACTS, site=4, inputs=(3, 8, 8))
    outside, twin = replace(FACTS, site=9), replace(FACTS, site=1, labelled=99)
    assert (
        agreeing_sites([odd, *reversed(sites), outside, twin], 5, PUBLISHED, said.append) == sites
    )
    text = " | ".join(said)
    assert "site 4 left out: its input shape is (3, 8, 8), most sites have (1, 8, 8)" in text
    assert "site 9 left out" in text and "second node that says it is site 1" in text
    with pytest.raises(RunError, match="no site that answered can take part"):
        agreeing_sites([outside], 5, PUBLISHED, said.append)
    with pytest.raises(RunError, match="no site answered; start at least one"):
        agreeing_sites([], 5, PUBLISHED, said.append)


def test_a_site_joins_a_run_of_its_own_kind_only():
    said = []
    kind = kind_of(FACTS)
    sites = [
        replace(FACTS, site=3),
        replace(FACTS, site=1),
        replace(FACTS, site=2, inputs=(3, 8, 8)),
    ]
    assert [f.site for f in joinable_sites(sites, 4, PUBLISHED, kind, said.append)] == [1, 3]
    assert said == ["site 2 left out: its input shape is (3, 8, 8), the run has (1, 8, 8)"]
    assert (
        joinable_sites([replace(FACTS, site=9)], 4, PUBLISHED, kind, said.append) == []
    )  # nobody: no error


def test_resume_needs_a_site_of_before_and_its_data():
    standings = Standings({0: Standing(FACTS), 2: Standing(replace(FACTS, site=2))})
    check_same_sites(standings, [FACTS])
    check_same_sites(standings, [FACTS, replace(FACTS, site=1)])
    with pytest.raises(RunError, match=r"checkpoint of sites \[0, 2\], but sites \[1\] are here"):
        check_same_sites(standings, [replace(FACTS, site=1)])
    with pytest.raises(RunError, match=r"before \(labelled is 2, was \d+\); restore"):
        check_same_sites(standings, [replace(FACTS, labelled=2)])
