"""The answers of a site under averaging methods: the server's model and its own, each measured."""

import json
from collections import Counter

import pytest

from fedapp.core.cache import Cache
from fedapp.methods.averaging.ditto import Ditto
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.averaging.fedbn import FedBN
from fedapp.methods.averaging.fedper import FedPer
from fedapp.methods.averaging.fedrod import FedRoD
from fedapp.methods.base import SiteContext
from fedapp.site.private_state import PrivateParts
from fedapp.site.site import SiteClient
from tests.methods.conformance import (
    Deal,
    correct_by_hand,
    load,
    named,
    play,
    play_in_one_store,
    site_data,
    toy,
)

DEALS = (Deal(9, 12), Deal(20, 3), Deal(0, 5))
"""The third has nothing to learn from without pseudo-labels."""


def right(played, exchange, params, part):
    data = site_data(played.experiment, exchange.task.site)
    images = {"val": (data.val, data.val_labels), "test": (data.test, data.test_labels)}[part]
    return correct_by_hand(played.experiment, params, *images)


def newest_own(played, exchange):
    """The last model that the site of a measurement sent before; None: it never has."""
    earlier = played.seen[: played.seen.index(exchange)]
    sent = [e for e in earlier if e.task.site == exchange.task.site and e.incoming.payloads]
    return load(*sent[-1].incoming.payloads.values()) if sent else None


@named([FedAvg(), FedBN(), FedAvg(answer="tuned"), FedBN(answer="tuned")])
def test_both_answers_are_measured_by_hand_and_one_of_them_is_used(tmp_path, method):
    played = play(toy(method, tmp_path, DEALS, training__learning_rate=0.1))
    learned = 0
    for exchange in [e for number in range(3) for e in played.of(number, "evaluate")]:
        found = exchange.reply.evaluations
        own, common = newest_own(played, exchange), played.model(exchange)
        tuned = common if own is None else own | played.private(exchange.task.private)
        learned += own is not None
        for part in ("val", "test"):
            assert found[f"{part}_common"].correct == right(played, exchange, common, part)
            assert found[f"{part}_tuned"].correct == right(played, exchange, tuned, part)
            assert found[part] == found[f"{part}_{method.answer}"]
        assert len(found) == 6
    assert learned == 6  # two of three sites, after each round


@named([FedAvg(), FedBN(), FedRoD(), Ditto()])
def test_a_site_measures_its_own_model_once_until_it_learns_again(tmp_path, method, monkeypatch):
    """One of three sites learns in a round; all answer as when each measures all anew."""
    measured = Counter()
    evaluate = SiteContext.evaluate

    def counted(site, *parts, answer=""):
        measured[answer] += 1
        return evaluate(site, *parts, answer=answer)

    def runs(name):
        measured.clear()
        changes = {"rounds__num_rounds": 4, "rounds__sample_rate": 0.3}
        played = play_in_one_store(toy(method, tmp_path, name=name, **changes))
        return json.loads((played.folder.path / "evaluations.json").read_text()), dict(measured)

    monkeypatch.setattr(SiteContext, "evaluate", counted)
    once, count = runs("once")
    monkeypatch.setattr(SiteClient, "_cache", property(lambda site: Cache(0)))
    assert once == runs("anew")[0] and measured["tuned"] == 3 * 5
    assert count["tuned"] == 3 + 4  # all after the warm-up, then the one that learned
    assert count["common"] == measured["common"] == 3 * 5


@named([FedPer(), Ditto()])
def test_a_part_that_could_not_be_read_once_leaves_no_measurement(tmp_path, method, monkeypatch):
    """The site measures with w_0's part then; in its next task the file can be read again."""
    load, asked = PrivateParts.load, Counter()

    def once_not(parts, digest, schema):
        asked[parts.root, digest] += 1
        return load(parts, digest, schema) if not digest or asked[parts.root, digest] > 1 else None

    def run(name):
        asked.clear()
        changes = {"rounds__num_rounds": 3, "rounds__sample_rate": 0.3}
        played = play_in_one_store(toy(method, tmp_path, name=name, **changes))
        return json.loads((played.folder.path / "evaluations.json").read_text())

    monkeypatch.setattr(PrivateParts, "load", once_not)
    once = run("once")
    monkeypatch.setattr(SiteClient, "_cache", property(lambda site: Cache(0)))
    assert once == run("anew")


@pytest.mark.parametrize("method", [FedAvg, FedBN])
def test_which_answer_is_used_changes_no_model(tmp_path, method):
    one = play(toy(method(), tmp_path, name="one"))
    two = play(toy(method(answer="tuned"), tmp_path, name="two"))
    assert one.records()["pool"] == two.records()["pool"]
    assert one.records()["private"] == two.records()["private"]


def test_the_records_keep_every_answer_and_the_means_are_of_the_one_in_use(tmp_path):
    played = play(toy(FedAvg(answer="tuned"), tmp_path, training__learning_rate=0.1))
    last = {str(e.task.site): e.reply.evaluations for e in played.of(2, "evaluate")}
    kept = json.loads((played.folder.path / "evaluations.json").read_text())
    for site, found in last.items():
        assert kept[site].keys() == found.keys()
        for name, result in found.items():
            assert kept[site][name]["confusion"] == [list(row) for row in result.confusion]
    mean = sum(found["test_tuned"].accuracy for found in last.values()) / 3
    assert played.rows()[2]["mean_test_accuracy"] == pytest.approx(mean)
