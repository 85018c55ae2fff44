"""Inputs whose class nobody knows: dealt evenly, learned from, never judged and never shown."""

import numpy as np
import pytest
import torch

from fedapp.core.errors import DataError
from fedapp.core.settings import DataSettings, SplitSettings
from fedapp.data.inputs import UNKNOWN, DataSet
from fedapp.data.simulated_sites import SimulatedSites
from fedapp.data.sites import Audit
from fedapp.data.split.manifest import TRAIN
from fedapp.data.split.partition import partition
from fedapp.learn.metrics import count_pseudo_labels
from fedapp.learn.networks.mlp import MLPSettings
from fedapp.methods.um_pfssl.method import UmPfssl
from fedapp.simulation.loopback import run_loopback
from tests.small import small

KNOWN = np.arange(60) % 3
LABELS = np.insert(KNOWN, np.arange(0, 40), UNKNOWN)  # one before each of the first 40


def dealt(**changes):
    images = torch.arange(100, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 8, 8)
    data = DataSet(images.clone(), torch.from_numpy(LABELS), ("a", "b", "c"), (0.5,), (0.5,))
    split = SplitSettings(num_clients=4, **changes)
    return data, partition(data.labels, split, 7, "x")


@pytest.mark.parametrize("deal", ["iid", "dirichlet", "two_classes"])
def test_they_are_dealt_evenly_beside_the_others_that_lie_where_they_would_alone(deal):
    _, manifest = dealt(deal=deal)
    alone = partition(KNOWN, SplitSettings(num_clients=4, deal=deal), 7, "x")
    unknown = LABELS == UNKNOWN
    assert np.bincount(manifest.site[unknown]).tolist() == [10] * 4
    assert not manifest.visible[unknown].any() and (manifest.split[unknown] == TRAIN).all()
    for name in ("site", "split", "visible"):
        assert np.array_equal(getattr(manifest, name)[~unknown], getattr(alone, name))


def test_a_site_has_them_unlabelled_and_its_audit_judges_the_others_alone():
    data, manifest = dealt(deal="iid", label_share=0.5)
    site = SimulatedSites(data, manifest, torch.device("cpu")).site(0)
    hidden = manifest.indices(0, TRAIN, False)
    assert sorted(site.unlabelled[:, 0, 0, 0].tolist()) == hidden.tolist()
    truth = torch.from_numpy(LABELS)[site.unlabelled[:, 0, 0, 0].long()]
    assert not site.audit.complete
    assert site.audit.pseudo_label_errors(truth.clamp(0)) == (0, int((truth >= 0).sum()))


def test_by_hand():
    audit = Audit(torch.tensor([0, UNKNOWN, 2, 1]))
    assert audit.pseudo_label_errors(torch.tensor([0, 1, 1, 1])) == (1, 3)
    assert audit.pseudo_label_errors(torch.tensor([2, 2]), torch.tensor([1, 2])) == (0, 1)
    found = count_pseudo_labels(torch.eye(3)[[0, 1, 1, 1]], audit)
    assert (found.by_class, found.wrong_by_class) == ((1, 3, 0), ())


@pytest.mark.parametrize(("changes", "says"), [
    ({"bags": 3}, r"split.bags=3: the classes of 40 inputs are not known: choose 0"),
    ({"labels": "all"}, r"split.labels=all: .* choose some"),
])  # fmt: skip
def test_what_needs_their_classes_is_refused(changes, says):
    with pytest.raises(DataError, match=says):
        dealt(**changes)


def test_a_split_that_shows_their_labels_is_refused():
    data, manifest = dealt()
    with pytest.raises(DataError, match="shows labels of inputs whose class is not known"):
        SimulatedSites(data, manifest.revealed(), torch.device("cpu"))


def test_a_run_learns_from_them_and_counts_what_can_be_judged(tmp_path):
    summary, _ = run_loopback(
        small(
            method=UmPfssl(helper_list_size=2, num_replaced=1),
            data=DataSettings(name="tests.arrays:partly"),
            model=MLPSettings(hidden="16"),
            rounds__num_rounds=2,
            runtime__out=str(tmp_path),
        )
    )
    assert 0 <= summary["pseudo_label_error"] <= 1
