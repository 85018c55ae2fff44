"""RSCFed: its subsets, its weights on what sites sent, its teachers."""

import csv
from dataclasses import replace

import torch
from safetensors.torch import load

from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.two_networks.rscfed import RscFed, distance_to, reweighted
from tests.methods.conformance import (
    START,
    TASK,
    Deal,
    assert_close,
    assert_same,
    context,
    data_of,
    mean_by_hand,
    play,
    toy,
)

NO_WARM_UP = {"training__warmup_epochs": 0}
FOUR = (Deal(9, 12), Deal(20, 3), Deal(5, 0), Deal(0, 8))


def trained(played, number):
    """A round's exchanges, subset by subset."""
    found = {}
    for exchange in played.of(number, "train"):
        found.setdefault(exchange.task.phase, []).append(exchange)
    return [found[phase] for phase in sorted(found)]


def next_server(played, number):
    return played.server(played.of(number, "evaluate")[0])


# --- the server -----------------------------------------------------------------------------------


def test_one_subset_of_all_sites_without_reweighting_is_fedavg(tmp_path):
    """The server's models are the plain weighted means of what came, to rounding."""
    method = RscFed(subsets=1, subset_share=1.0, distance_scale=0.0)
    played = play(toy(method, tmp_path, **NO_WARM_UP))
    for number in (1, 2):
        [subset] = trained(played, number)
        assert [e.task.site for e in subset] == [0, 1, 2]
        mean = mean_by_hand([e.upload for e in subset], [21, 23, 5])
        assert_close(next_server(played, number), mean)


def test_on_labelled_images_alone_such_a_run_is_fedavg(tmp_path):
    """Its steps are FixMatch's without unlabelled images: the same views, order and draws."""
    deals = (Deal(9, 0), Deal(20, 0), Deal(5, 0))
    method = RscFed(subsets=1, subset_share=1.0, distance_scale=0.0)
    mine = play(toy(method, tmp_path, deals, name="mine"))
    plain = play(toy(FedAvg("fixmatch"), tmp_path, deals, name="plain"))
    assert_close(next_server(mine, 2), mean_by_hand([next_server(plain, 2)], [1]), atol=1e-5)


def test_the_server_takes_the_mean_of_reweighted_subsets(tmp_path):
    played = play(toy(RscFed(distance_scale=20.0), tmp_path, FOUR, **NO_WARM_UP))
    images = {0: 21, 1: 23, 2: 5, 3: 8}
    parts = []
    for subset in trained(played, 1):
        counts = [images[e.task.site] for e in subset]
        models = [e.upload for e in subset]
        mean = {n: t.float() for n, t in mean_by_hand(models, counts).items()}
        far = [distance_to(mean, model) for model in models]
        parts.append(mean_by_hand(models, reweighted(counts, far, 20.0)))
    assert len(parts) == 3
    assert_close(next_server(played, 1), mean_by_hand(parts, [1, 1, 1]))


def test_a_subset_without_labels_has_the_other_scale(tmp_path):
    deals = (Deal(0, 9), Deal(0, 20))
    models = []
    for name, other in (("one", 1.0), ("two", 50.0)):
        method = RscFed(distance_scale_unlabelled=other, subset_share=1.0, subsets=1)
        played = play(toy(method, tmp_path, deals, name=name, **NO_WARM_UP))
        models.append(next_server(played, 1))
    assert not torch.equal(models[0]["head.weight"], models[1]["head.weight"])


def test_all_subsets_of_a_round_begin_with_the_same_model(tmp_path):
    played = play(toy(RscFed(), tmp_path, FOUR))
    for number in (1, 2):
        began = {e.task.models["server"][0] for e in played.of(number, "train")}
        assert len(began) == 1


def test_subsets_are_drawn_for_themselves_of_the_cohort(tmp_path):
    many = tuple(Deal(3, 3, 1, 1) for _ in range(10))
    played = play(toy(RscFed(), tmp_path, many, rounds__sample_rate=0.8))
    drawn = []
    for number in (1, 2):
        subsets = [tuple(e.task.site for e in subset) for subset in trained(played, number)]
        assert [len(subset) for subset in subsets] == [4, 4, 4]
        assert len(set().union(*subsets)) <= 8
        drawn += subsets
    assert len(set(drawn)) > 3


def test_a_site_drawn_twice_learns_twice_and_its_teacher_goes_on(tmp_path):
    """Two mini-batches a task: the count of steps goes up by two in each."""
    method = RscFed(subsets=2, subset_share=1.0)
    played = play(toy(method, tmp_path, (Deal(9, 12), Deal(9, 16)), **NO_WARM_UP))
    counts = [int(load(e.private)["memory.steps"]) for e in played.seen
              if e.task.site == 0 and e.task.action == "train"]  # fmt: skip
    assert counts == [2, 4, 6, 8]
    first, second = (subset[0].upload for subset in trained(played, 1))
    assert not torch.equal(first["head.weight"], second["head.weight"])


def test_a_subset_that_sends_nothing_has_no_part(tmp_path):
    """Only the second of two subsets is heard in round 1: the server's model is its average."""

    def tamper(task, incoming):
        return None if (task.round, task.action, task.phase) == (1, "train", 0) else incoming

    method = RscFed(subsets=2, subset_share=1.0, distance_scale=0.0)
    played = play(toy(method, tmp_path, rounds__min_reply_share=0.0, **NO_WARM_UP), tamper)
    second = [e.upload for e in trained(played, 1)[1]]
    assert_close(next_server(played, 1), mean_by_hand(second, [21, 23, 5]))


def test_teachers_never_travel(tmp_path):
    played = play(toy(RscFed(subset_share=1.0), tmp_path, **NO_WARM_UP))
    with (played.folder.path / "traffic.csv").open() as file:
        kinds = {row["kind"] for row in csv.DictReader(file)}
    assert kinds == {"model", "message", "evaluation"}
    teachers = {
        tensor.numpy().tobytes()
        for e in played.seen if e.private
        for name, tensor in load(e.private).items()
        if name.startswith("memory.teacher.") and tensor.ndim > 1
    }  # fmt: skip
    # After the first step of all a teacher is its student, which a site with one step sends.
    first = {t.numpy().tobytes() for e in played.seen if e.task.round <= 1
             for b in e.incoming.payloads.values() for t in load(b).values()}  # fmt: skip
    sent = [b for e in played.seen for b in (*e.down.values(), *e.incoming.payloads.values())]
    hidden = teachers - first
    assert hidden and not any(secret in blob for secret in hidden for blob in sent)


# --- a site ---------------------------------------------------------------------------------------


def remembering(method, site):
    return replace(site, memory=method.memory(site.model, START))


def test_after_the_first_step_the_teacher_is_the_student():
    method = RscFed()
    report = method.site_round(TASK, remembering(method, context(data_of(6, 6), START)))
    assert int(report.memory["steps"]) == 1
    weights = {n.removeprefix("teacher."): t for n, t in report.memory.items() if n != "steps"}
    assert weights.keys() == {n for n in START if "running" not in n and "num_" not in n}
    assert_same(weights, {name: report.params[name] for name in weights})


def test_after_the_second_it_is_halfway():
    """alpha = 1 - 1 / 2, of a teacher that a site brings from an earlier task."""
    method = RscFed()
    site = context(data_of(6, 6), START)
    old = {n: torch.full_like(t, 2.0) for n, t in method.memory(site.model, START).items()}
    old["steps"] = torch.tensor(1)
    report = method.site_round(TASK, replace(site, memory=old))
    for name in ("head.weight", "stem.conv.weight"):
        wanted = (2.0 + report.params[name]) / 2
        torch.testing.assert_close(report.memory[f"teacher.{name}"], wanted)
    assert int(report.memory["steps"]) == 2


def test_the_teacher_of_earlier_rounds_says_what_is_learned():
    """Before its first step the teacher is the server's model, whatever the memory holds."""
    method = RscFed(consistency_weight=1.0)
    learned = []
    for steps, shift in ((0, 0.0), (0, 1.0), (5, 0.0), (5, 1.0)):
        site = context(data_of(6, 6), START)
        memory = {n: t + shift for n, t in method.memory(site.model, START).items()}
        memory["steps"] = torch.tensor(steps)
        learned.append(method.site_round(TASK, replace(site, memory=memory)).params["head.weight"])
    assert torch.equal(learned[0], learned[1]) and torch.equal(learned[0], learned[2])
    assert not torch.equal(learned[2], learned[3])


def test_the_temperature_sharpens_what_the_teacher_says():
    """At 1 it is the teacher's answer; on labelled images alone it changes nothing."""

    def learned(temperature, data):
        method = RscFed(consistency_weight=1.0, temperature=temperature)
        return method.site_round(TASK, remembering(method, context(data, START))).params

    cold, warm = (learned(t, data_of(6, 6)) for t in (0.1, 1.0))
    assert not torch.equal(cold["head.weight"], warm["head.weight"])
    assert_same(learned(0.1, data_of(6, 0)), learned(1.0, data_of(6, 0)))
