"""What all averaging methods promise of odd sites, failing sites and traffic."""

from collections import Counter, defaultdict
from dataclasses import replace

import pytest
import torch

from fedapp.data.augment import STRONG_VIEWS
from fedapp.learn.networks import initial_params
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.averaging.fedbn import FedBN
from fedapp.methods.averaging.fixmatch_global import FixMatchGlobal
from fedapp.methods.averaging.lg_fedavg import LgFedAvg
from fedapp.methods.averaging.pfedme import PFedMe
from fedapp.methods.averaging.sage import Sage
from fedapp.protocol.messages import Incoming, ModelRef, Refusal, Task
from tests.methods.conformance import (
    PIXELS,
    Deal,
    context,
    data_of,
    digits_like,
    named,
    play,
    toy,
)

# --- sites that lack something --------------------------------------------------------------------


@named([FedAvg("fixmatch"), Sage(), FixMatchGlobal()])
@pytest.mark.parametrize("name", STRONG_VIEWS)
def test_the_strong_view_is_the_one_that_is_named(method, name):
    """Drawn after the weak view, from the same stream."""
    server = ModelRef(-2, 1, "a" * 64)
    task = Task(0, 1, "train", server, {"server": (server,)})
    site = context(data_of(), initial_params(PIXELS, (1, 8, 8), 3, seed=0))
    weak, strong = replace(method, strong_view=name).views(task, site)
    draws, images = site.stream("augment", task), digits_like(6, seed=1)
    assert torch.equal(weak(images), STRONG_VIEWS["weak"](images, site.flip, draws))
    assert torch.equal(strong(images), STRONG_VIEWS[name](images, site.flip, draws))


def test_one_labelled_image_leaves_the_statistics_of_batch_norm_alone(tmp_path):
    played = play(toy(FedAvg(), tmp_path, (Deal(1, 0), Deal(9, 0))))
    [one, many] = played.of(1, "train")
    server = played.server(one)
    assert torch.equal(one.upload["stem.norm.running_mean"], server["stem.norm.running_mean"])
    assert not torch.equal(one.upload["head.weight"], server["head.weight"])
    assert not torch.equal(many.upload["stem.norm.running_mean"], server["stem.norm.running_mean"])


# --- sites that fail ------------------------------------------------------------------------------


def failing(site, number, action):
    def tamper(task, incoming):
        if (task.site, task.round, task.action) == (site, number, action):
            return Incoming(Refusal(site, number, f"no {action}"))
        return incoming

    return tamper


@named([FedBN(), LgFedAvg()])
def test_a_site_whose_answer_is_lost_goes_on_from_the_part_that_the_server_knows(tmp_path, method):
    """Its disk is a version ahead; nothing of that version comes into any model."""
    played = play(toy(method, tmp_path), failing(1, 1, "train"))
    lost = next(e for e in played.of(1, "train") if e.task.site == 1)
    known = lost.task.private
    assert known and lost.reply.private != known
    for action, number in (("evaluate", 1), ("train", 2)):
        [exchange] = [e for e in played.of(number, action) if e.task.site == 1]
        assert exchange.task.private == known


@named([FedAvg(), FedBN()])
def test_a_site_that_fails_to_measure_keeps_its_last_measurement_and_its_place(tmp_path, method):
    played = play(toy(method, tmp_path), failing(2, 2, "evaluate"))
    plain = play(toy(method, tmp_path, name="plain"))
    assert played.records()["pool"] == plain.records()["pool"]
    assert played.rows()[2]["skipped"] == {"2": "the site refused: no evaluate"}
    last = played.records()["sites"]["2"]["latest"]
    assert last["test"]["bin_count"] == list(
        plain.of(1, "evaluate")[2].reply.evaluations["test"].bin_count
    )


# --- traffic --------------------------------------------------------------------------------------


@named([FedAvg(), LgFedAvg(), PFedMe()])
def test_traffic_is_what_was_sent_and_measuring_is_counted_apart(tmp_path, method):
    played = play(toy(method, tmp_path, rounds__sample_rate=0.5))
    sums = Counter()
    for exchange in played.seen:
        measuring = exchange.task.action == "evaluate"
        for way, head, blobs in (
            ("down", exchange.heads[0], exchange.down),
            ("up", exchange.heads[1], exchange.incoming.payloads),
        ):
            size = len(head) + sum(map(len, blobs.values()))
            sums["bytes_evaluation" if measuring else f"bytes_{way}"] += size
            if not measuring:
                sums["models_sent" if way == "down" else "models_up"] += len(blobs)
    for name in ("models_sent", "models_up", "bytes_up", "bytes_down", "bytes_evaluation"):
        assert played.summary[name] == sums[name], name
    # w_0 is made at home; then each of 2 sites in 2 rounds is sent one model and sends one back.
    assert sums["models_sent"] == 4 and sums["models_up"] == 3 + 4
    lines = (played.folder.path / "traffic.csv").read_text().splitlines()[1:]
    kinds = defaultdict(int)
    for line in lines:
        _, _, way, kind, models, size, _ = line.split(",")
        kinds["bytes_evaluation" if kind == "evaluation" else f"bytes_{way}"] += int(size)
        kinds["models_evaluation"] += int(models) if kind == "evaluation" else 0
    measured = 0 if method.name == "pfedme" else 3 * 3
    assert kinds.pop("models_evaluation") == measured
    assert kinds == {name: n for name, n in sums.items() if name.startswith("bytes") and n}
