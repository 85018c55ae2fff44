"""Nodes that stand for several simulated sites each, and get several tasks in a message."""

from collections import Counter
from types import SimpleNamespace

import pytest

from client_app import answering, identity
from client_app.identity import stands_for
from fedapp.core.errors import RunError
from fedapp.experiment.config import load_experiment
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.protocol import flower_records
from fedapp.protocol.messages import Incoming, Refusal
from server_app.carrier import GridCarrier
from tests.flower.grids import MemoryGrid, node, preset, serve
from tests.flower.results import loopback, results
from tests.small import SMALL, small

SITES = 8
"""Two tasks in each message to a node that stands for all of them."""


@pytest.fixture
def federation(tmp_path, monkeypatch):
    """Experiment and a grid of so many nodes; sites beside the pool."""
    monkeypatch.delenv("FEDAPP_SITES", raising=False)

    def make(nodes, name="flower", **settings):
        those = {"runtime__out": str(tmp_path / name), "split__num_clients": SITES}
        experiment = small(rounds__num_rounds=2, **those, **settings)
        run_config = {"preset": preset(experiment, tmp_path)}
        those = {
            100 + p: node(run_config, **{"partition-id": p, "num-partitions": nodes})
            for p in range(nodes)
        }
        grid = MemoryGrid(those)
        grid.simulated = True
        return load_experiment(run_config["preset"]), grid

    return make


def kinds(grid):
    return Counter(message.metadata.message_type for push in grid.pushes for message in push)


@pytest.mark.parametrize("method", [SMALL.method, FedAvg()])
def test_nodes_for_all_sites_give_the_loopback_runs_bits(federation, method):
    settings = {"method": method}
    whole = results(loopback(federation(1, "loopback", **settings)[0]))
    for nodes in (1, 4):
        experiment, grid = federation(nodes, f"of-{nodes}", **settings)
        _, folder = serve(experiment, grid)
        assert results(folder.path) == whole
        assert kinds(grid)["query.hello"] == nodes
        assert ("train.lot" in kinds(grid)) == (nodes == 1)


@pytest.mark.parametrize(("tasks", "sizes"), [
    (3, [1] * 3), (7, [1] * 7), (9, [2] * 4 + [1]), (40, [10] * 4), (600, [64] * 9 + [24]),
])  # fmt: skip
def test_a_node_gets_at_least_four_messages_of_at_most_64_tasks(tasks, sizes):
    """Of few sites one each: a message costs little beside a site's work, and actors share it."""
    outbox = [SimpleNamespace(task=SimpleNamespace(site=k)) for k in range(tasks)]
    carrier = object.__new__(GridCarrier)
    carrier.sites = SimpleNamespace(
        nodes=dict.fromkeys(range(tasks), 7), sharing_pool={*range(tasks)}
    )
    lots = list(carrier._batches(outbox))
    assert list(map(len, lots)) == sizes
    assert [out for lot in lots for out in lot] == outbox


def test_a_real_node_is_one_site_whatever_it_says_of_itself(federation, capsys):
    """SuperNodes without keys: one that claims all sites is none."""
    experiment, grid = federation(1, rounds__join_wait_s=0.1)
    grid.simulated = False
    with pytest.raises(RunError, match="answers when asked who it is"):
        serve(experiment, grid)


def test_what_goes_wrong_at_a_site_is_its_answer_alone(federation, monkeypatch):
    honest = answering.open_site

    def broken(*given):
        site, folder = honest(*given)
        if site.data.site == 3:
            raise OSError("the disk of site 3")
        return site, folder

    experiment, grid = federation(2)
    monkeypatch.setattr(answering, "open_site", broken)
    _, folder = serve(experiment, grid)
    found = {row["site"] for row in results(folder.path)["rows"] if "site" in row}
    assert 3 not in found


def test_a_simulated_site_is_opened_for_its_introduction_and_once_for_all_its_tasks(
    federation, monkeypatch
):
    opened, honest = Counter(), answering.open_site

    def counted(*given):
        site, folder = honest(*given)
        opened[site.data.site] += 1
        return site, folder

    experiment, grid = federation(2)
    monkeypatch.setattr(answering, "open_site", counted)
    serve(experiment, grid)
    assert opened == dict.fromkeys(range(SITES), 2)


def test_a_site_with_a_folder_of_its_own_is_one_and_gets_one_task_at_a_time(federation, tmp_path):
    """Its terms and its record are about one task: several at once would pass them by."""
    experiment, grid = federation(1)
    serve(experiment, grid)
    [lot] = [m for push in grid.pushes for m in push if m.metadata.message_type == "train.lot"][:1]
    [hello] = [m for m in grid.pushes[0] if m.metadata.message_type == "query.hello"]
    run_config = {"preset": preset(experiment, tmp_path)}
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "site.yaml").write_text(f"folders: [{tmp_path}]\n")
    parts = {"partition-id": 0, "num-partitions": 1}
    assert len(flower_records.read_answers(node(run_config, **parts)(hello).content)) > 1
    real = node(run_config, **parts, **{"site-folder": str(folder)})
    [refused] = flower_records.read_answers(real(lot).content)
    assert "several tasks at once are for simulated sites" in refused.answer.reason
    [introduced] = flower_records.read_answers(real(hello).content)
    assert not isinstance(introduced.answer, Refusal), introduced.answer


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        (lambda lot: lot[1:], "3 answers to 4 tasks"),
        (lambda lot: [*lot, lot[0]], "5 answers to 4 tasks"),
        (lambda lot: [Incoming(Refusal(-1, 0, "no room"))], "no room"),
    ],
)
def test_a_lots_wrong_answer_is_refused_for_each_of_its_sites(answers, says):
    from flwr.app import Message

    from server_app.transport import parsed

    lot = [Incoming(Refusal(k, 0, "later")) for k in range(4)]
    asked = Message(flower_records.write_answers(lot), 7, "train.lot")
    reply = Message(flower_records.write_answers(answers(lot)), reply_to=asked)
    found = parsed(reply, 4)
    assert [incoming.answer.reason for incoming in found] == [says] * 4


def test_nodes_share_the_sites_among_them(monkeypatch):
    monkeypatch.setattr(identity, "in_ray", lambda: True)
    experiment = small()
    sites = experiment.split.num_clients
    nodes = [{"partition-id": p, "num-partitions": 4} for p in range(4)]
    assert sorted(k for one in nodes for k in stands_for(one, experiment)) == list(range(sites))
    assert list(stands_for({"partition-id": 2}, experiment)) == [2]
    assert list(stands_for({"site-name": "north"}, experiment)) == []
    assert list(stands_for({"partition-id": 2, "num-partitions": sites}, experiment)) == [2]
    monkeypatch.undo()  # a SuperNode with the same config
    assert [list(stands_for(one, experiment)) for one in nodes] == [[0], [1], [2], [3]]
