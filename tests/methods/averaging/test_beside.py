"""Tensors that a site has of its own beside those it shares: at home, by content, as it left them.

The methods here are FedAvg and FedBN whose sites keep a head of their own beside the shared one; it
grows by 1 whenever they train.
"""

from dataclasses import replace

from pydantic.dataclasses import dataclass

from fedapp.core.settings import CLOSED
from fedapp.learn.networks.parts import head_names
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.averaging.fedbn import FedBN
from tests.methods.conformance import Deal, load, named, play, play_in_one_store, toy

HEAD = "memory.head.weight"


class Beside:
    """Mixed into a method."""

    def memory(self, model, w_0):
        return {name: w_0[name] for name in head_names(model)}

    def site_round(self, task, site):
        report = super().site_round(task, site)
        if report.params is None:
            return report
        return replace(report, memory={name: t + 1 for name, t in site.memory.items()})


@dataclass(frozen=True, config=CLOSED)
class Shared(Beside, FedAvg):
    pass


@dataclass(frozen=True, config=CLOSED)
class WithNorms(Beside, FedBN):
    pass


BOTH = [Shared(), WithNorms()]
PHASES = {"training__warmup_epochs": 2, "training__warmup_rounds": 2}


def grown(played, exchange):
    """By how much a site's own head has grown since w_0."""
    part = load(exchange.private)
    assert part.keys() == played.kept() | {HEAD, "memory.head.bias"}
    change = part[HEAD] - played.w_0()["head.weight"]
    assert (change - change.mean()).abs().max() < 1e-5
    return round(change.mean().item())


@named(BOTH)
def test_it_starts_from_w_0_and_is_what_the_last_training_made_of_it(tmp_path, method):
    played = play(toy(method, tmp_path, **PHASES))
    assert all(not row["skipped"] for row in played.rows())
    for site in range(3):
        trained = [e for e in played.seen if e.task.site == site and e.incoming.payloads]
        assert [grown(played, e) for e in trained] == [1, 2, 3, 4]


@named(BOTH)
def test_a_site_that_does_not_train_keeps_it_as_it_is(tmp_path, method):
    """It only measures, is not of the cohort, or has nothing to learn from."""
    deals = (Deal(9, 0), Deal(8, 0), Deal(0, 5))
    played = play(toy(method, tmp_path, deals, rounds__num_rounds=3, rounds__sample_rate=0.3))
    known = dict.fromkeys(range(3), "")
    for exchange in played.seen:
        site = exchange.task.site
        assert exchange.task.private == known[site]
        changed = exchange.reply.private != known[site]
        assert changed == bool(exchange.incoming.payloads)
        known[site] = exchange.reply.private
    assert known[2] == "" and known[0] and known[1]
    times = {
        k: sum(bool(e.incoming.payloads) for e in played.seen if e.task.site == k) for k in known
    }
    assert {k: grown(played, played.of(3, "evaluate")[k]) for k in (0, 1)} == {
        k: times[k] for k in (0, 1)
    }


@named(BOTH)
def test_where_the_disk_lost_it_it_starts_again_from_w_0_and_the_log_says_so(
    tmp_path, method, caplog
):
    def lose(task, incoming):
        if (task.site, task.round, task.action) == (1, 1, "evaluate"):
            for path in (tmp_path / "run/remote/site-1/private").rglob("*.safetensors"):
                path.unlink()
        return incoming

    played = play(toy(method, tmp_path, **PHASES), lose)
    assert [row["skipped"] for row in played.rows()] == [{}] * 3
    assert "the site begins it again" in caplog.text
    assert [grown(played, e) for e in played.of(2, "evaluate")] == [4, 1, 4]


def test_sites_in_the_servers_own_store_have_it_on_disks_of_their_own(tmp_path):
    one = play(toy(Shared(), tmp_path, name="wire"))
    two = play_in_one_store(toy(Shared(), tmp_path, name="loopback"))
    assert one.records() == two.records()
    pool = [load(path.read_bytes()) for path in two.folder.pool_root.rglob("*.safetensors")]
    assert pool and all(part.keys() == two.w_0().keys() for part in pool)
    parts = [load(path.read_bytes()) for path in two.folder.sites_root.rglob("*.safetensors")]
    assert parts and all(HEAD in part for part in parts)
