"""FedSem: FedAvg until all images get labels, once; then FedAvg on all images."""

from dataclasses import replace

import torch
from safetensors.torch import load

from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.averaging.fedsem import KNOWN, LABEL, TEACHER, FedSem
from fedapp.protocol.messages import ModelRef, Reply, SiteFacts, Task
from fedapp.site.private_state import MEMORY
from tests.methods.conformance import (
    OTHER,
    SERVER,
    START,
    assert_same,
    context,
    data_of,
    play,
    toy,
)

TASK = Task(0, 2, "train", ModelRef(0, 1, "b" * 64), {"server": (SERVER,)})
ONCE = FedSem(labelled_rounds=1)


def remembered(tensors, known=1):
    return {**{TEACHER + n: t for n, t in tensors.items()}, KNOWN: torch.tensor(known)}


def remembered_by(exchange):
    """Return what a site remembers after an exchange."""
    return {n: t for n, t in load(exchange.private).items() if n.startswith(MEMORY)}


def models(played):
    return {key: value[1] for key, value in played.records()["pool"].items()}


def test_without_a_second_part_it_is_fedavg_bit_for_bit(tmp_path):
    plain = play(toy(FedAvg(), tmp_path, name="fedavg"))
    mine = play(toy(FedSem(labelled_rounds=2), tmp_path, name="fedsem"))
    assert models(mine) == models(plain)


def test_with_perfect_labels_it_is_fedavg_on_all_images_bit_for_bit():
    """The teacher's answers are the labels of the same images, given to FedAvg as known."""
    site = context(data_of(4, 5), START, memory=remembered(OTHER))
    found = ONCE.site_round(TASK, site)
    answers = context(data_of(0, 5), OTHER)
    answers.load(SERVER)
    labels = answers.predicted(site.data.unlabelled).argmax(1)
    images = torch.cat([site.data.labelled, site.data.unlabelled])
    part = replace(site.data.parts["labelled"], inputs=images,
                   supervision=torch.cat([site.data.labels, labels]))  # fmt: skip
    known = replace(context(data_of(0, 0), START), data=data_of(0, 0).with_parts(labelled=part))
    assert_same(found.params, FedAvg().site_round(TASK, known).params)
    assert found.memory is None


def test_every_site_labels_once_with_the_model_of_that_round(tmp_path):
    played = play(toy(ONCE, tmp_path, rounds__sample_rate=0.34, rounds__num_rounds=4))
    labelled = [e for e in played.seen if e.task.action == LABEL]
    assert [(e.task.round, e.task.site) for e in labelled] == [(2, 0), (2, 1), (2, 2)]
    [named] = {e.task.models["server"][0].digest for e in labelled}
    measured = played.of(1, "evaluate")[0].task.models["server"][0]
    assert named == measured.digest
    for exchange in labelled:
        assert not exchange.incoming.payloads  # counts alone
        pseudo = exchange.reply.pseudo
        assert pseudo.total == {0: 12, 1: 3, 2: 0}[exchange.task.site]
        assert exchange.reply.metrics["pseudo_total"] == pseudo.total
    kept = {e.task.site: remembered_by(e) for e in labelled}
    for number in (2, 3, 4):  # what labels a site's images never changes
        for exchange in played.of(number, "train"):
            assert_same(remembered_by(exchange), kept[exchange.task.site])


def test_what_is_kept_is_the_model_that_was_sent(tmp_path):
    played = play(toy(ONCE, tmp_path))
    for exchange in (e for e in played.seen if e.task.action == LABEL):
        kept = {n.removeprefix(MEMORY): t for n, t in load(exchange.private).items()}
        assert int(kept.pop(KNOWN)) == 1
        assert_same({n.removeprefix(TEACHER): t for n, t in kept.items()}, played.server(exchange))


def test_a_site_without_labels_of_its_own_making_labels_when_it_learns():
    """It came later, or lost them: the model that it is sent stands in, and is kept."""
    late = context(data_of(4, 5), START, memory=remembered(OTHER, known=0))
    report = ONCE.site_round(TASK, late)
    assert_same(report.memory, remembered(START))
    asked = context(data_of(4, 5), START, memory=remembered(START))
    assert_same(report.params, ONCE.site_round(TASK, asked).params)


def test_a_pass_has_each_labelled_image_as_often_as_is_said():
    """Of 4 labelled and 8 other images: batches of 4 of 12 before, of 20 after they got labels."""
    method, name = FedSem(labelled_rounds=1, labelled_repeat=3), "stem.norm.num_batches_tracked"
    for number, steps in ((1, 3), (2, 5)):
        site = context(data_of(4, 8), START, memory=remembered(OTHER), batch_size=4)
        found = method.site_round(replace(TASK, round=number), site)
        assert int(found.params[name] - START[name]) == steps


def test_before_that_unlabelled_images_play_no_part():
    early = replace(TASK, round=1)
    one = FedSem().site_round(early, context(data_of(4, 5), START, memory=remembered(OTHER)))
    other = FedSem().site_round(early, context(data_of(4, 0), START, memory=remembered(OTHER)))
    assert_same(one.params, other.params)
    facts = SiteFacts(0, (1, 8, 8), ("a",), 6, 54, 0, 1, "0" * 64)
    for number, weight in ((1, 6), (30, 6), (31, 60)):
        assert FedSem().weight(facts, Reply(0, number, "d" * 64)) == weight
