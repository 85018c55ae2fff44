"""What all averaging methods promise of odd sites, failing sites and traffic."""

from collections import Counter, defaultdict
from dataclasses import replace

import pytest
import torch

from fedapp.data.augment import STRONG_VIEWS
from fedapp.learn.networks import initial_params
from fedapp.methods.averaging.ditto import Ditto
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.averaging.fedbn import FedBN
from fedapp.methods.averaging.fedper import FedPer
from fedapp.methods.averaging.fedprox import FedProx
from fedapp.methods.averaging.fedrod import FedRoD
from fedapp.methods.averaging.fixmatch_global import FixMatchGlobal
from fedapp.methods.averaging.lg_fedavg import LgFedAvg
from fedapp.methods.averaging.pfedme import PFedMe
from fedapp.methods.averaging.sage import Sage
from fedapp.protocol.messages import Incoming, ModelRef, Refusal, Task
from tests.methods.conformance import (
    ODD,
    PIXELS,
    Deal,
    context,
    data_of,
    digits_like,
    named,
    play,
    toy,
)

AVERAGING = [FedAvg, FedProx, FedBN, FedPer, LgFedAvg, PFedMe]
EVERY = [method(objective) for method in AVERAGING for objective in ("supervised", "fixmatch")]
EVERY += [FedRoD(), Ditto(), Sage(), FixMatchGlobal()]
SUPERVISED = ("fedrod", "ditto")


# --- sites that lack something --------------------------------------------------------------------


@named(EVERY)
def test_sites_that_lack_something_run_to_the_end(tmp_path, method):
    """No labels; no training images; one image, labelled or not; nothing to measure on."""
    played = play(toy(method, tmp_path, ODD))
    assert [row["skipped"] for row in played.rows()] == [{}] * 3
    objective = "supervised" if method.name in SUPERVISED else getattr(method, "objective", "")
    learners = {0, 3, 5} if objective == "supervised" else {0, 1, 3, 4, 5}
    assert {e.task.site for e in played.of(0, "warmup") if e.incoming.payloads} == {0, 3, 5}
    for number in (1, 2):
        sent = {e.task.site for e in played.of(number, "train") if e.incoming.payloads}
        assert sent == learners
        assert played.rows()[number]["trained"] == len(learners)
    assert played.rows()[2]["sites_evaluated"] == 5  # the sixth has no test images
    if played.kept() or method.name in SUPERVISED:
        assert {e.task.site for e in played.seen if e.private} == learners


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


@named([FedBN(), FedPer()])
def test_a_lost_private_part_starts_again_from_w_0(tmp_path, method, caplog):
    """Nobody else has it. The run goes on; the site's log says so."""

    def lose(task, incoming):
        if (task.site, task.round, task.action) == (1, 1, "evaluate"):
            [folder] = tmp_path.glob("run/remote/site-1/private")
            for path in folder.rglob("*.safetensors"):
                path.unlink()
        return incoming

    played = play(toy(method, tmp_path), lose)
    assert [row["skipped"] for row in played.rows()] == [{}] * 3
    assert "the site begins it anew" in caplog.text
    [_, second, _] = played.of(2, "evaluate")
    assert second.private


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
