"""Labels at the server through Flower's two halves, and of a server with images of its own."""

import shutil
from dataclasses import replace

import pytest

from fedapp.core.errors import ConfigError
from fedapp.data.own import Place
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.protocol.messages import SERVER_SITE
from fedapp.protocol.store import ModelStore
from fedapp.site.federation import federation_of
from fedapp.site.server_site import servers_site
from tests.flower.grids import MemoryGrid, preset, serve, sites
from tests.flower.results import loopback, results, rows
from tests.methods.test_labels_at_server import cut_amid_training, server
from tests.own import experiment, three_sites


def test_a_run_cut_amid_the_servers_training_resumes_to_the_same_bits(tmp_path, monkeypatch):
    """The server trains in the second round when the power goes; its sites' processes go on."""
    whole = loopback(server("fedsiam_d", tmp_path / "whole"))
    wanted = server("fedsiam_d", tmp_path / "flower")
    (tmp_path / "flower").mkdir()
    nodes = sites({"preset": preset(wanted, tmp_path)}, 3)
    with monkeypatch.context() as patch:
        cut_amid_training(patch, times=4)
        with pytest.raises(KeyboardInterrupt):
            serve(wanted, MemoryGrid(nodes))
    again = replace(wanted, runtime=replace(wanted.runtime, resume=True))
    _, there = serve(again, MemoryGrid(nodes))
    assert results(there.path)["pool"] == results(whole)["pool"]
    assert rows(there.path) == rows(whole)


# --- a server with images of its own --------------------------------------------------------------


@pytest.fixture
def federation(tmp_path):
    """Three sites; the server has a copy of what east has: folders of labelled images."""
    root = three_sites(tmp_path / "data")
    shutil.copytree(root / "east", tmp_path / "server")

    def of(**changes):
        return experiment(
            root,
            method=FedAvg("fixmatch", confidence=0.3),
            runtime__out=str(tmp_path / "runs"),
            runtime__server_data=str(tmp_path / "server"),
            **changes,
        )

    return of


def test_it_learns_from_all_its_labelled_images_and_measures_nothing(tmp_path, federation):
    wanted = federation()
    data = servers_site(wanted, ModelStore(tmp_path / "pool"), tmp_path / "kept").data
    place = Place("server", tmp_path / "server")
    dealt = federation_of(wanted, {SERVER_SITE: place}).dealt.site(SERVER_SITE)
    count = sum(map(len, (dealt.labels, dealt.val_labels, dealt.test_labels)))
    assert len(data.labels) == count == len(list((tmp_path / "server/labelled").rglob("*.png")))
    assert len(data.val) == len(data.test) == 0 < len(dealt.test)


def test_it_trains_beside_sites_with_their_own_images(federation):
    folder = loopback(federation())
    assert results(folder)["pool"][str(SERVER_SITE)][0] > 3  # more than its averages
    assert all(not row["skipped"] for row in rows(folder))


def test_a_site_with_labels_to_learn_from_is_refused_in_one_line(federation):
    with pytest.raises(ConfigError) as caught:
        loopback(federation(split__labels="none"))
    said = str(caught.value)
    assert said.startswith("split.labels = 'none': site 0 (east) has ") and "\n" not in said
    assert "take their labels away, or give them to 'val' or 'test'" in said


def test_a_server_whose_folder_is_not_there_is_one_line(tmp_path, federation):
    shutil.rmtree(tmp_path / "server")
    with pytest.raises(Exception, match="server") as caught:
        loopback(federation())
    assert "\n" not in str(caught.value)
