"""The sites of an experiment: what does not fit their data, and runs on data of every kind."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from fedapp.core.errors import ConfigError
from fedapp.core.settings import DataSettings, SplitSettings
from fedapp.data.sites import BAGS, Bags
from fedapp.experiment.config import experiment_digest
from fedapp.experiment.experiment import Experiment
from fedapp.learn.networks.mlp import MLPSettings
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.averaging.local_only import LocalOnly
from fedapp.methods.base import Method, SiteContext, SiteReport
from fedapp.protocol.messages import SERVER_SITE, Task
from fedapp.protocol.store import ModelStore
from fedapp.simulation.loopback import run_loopback
from fedapp.site.federation import federation_of
from tests.small import SMALL, small

VECTORS, IMAGES = "tests.arrays:vectors", "tests.arrays:images"


def on_vectors(**changes: Any) -> Experiment:
    usual: dict[str, Any] = {
        "data": DataSettings(name=VECTORS, subset=600),
        "model": MLPSettings(hidden="32"),
        "method": FedAvg(),
    }
    return small(**{**usual, **changes})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"data__image_size": 16}, r"data\.image_size = 16: the inputs of .* are no images"),
        ({"split__feature_shift": 0.5}, r"split\.feature_shift = 0\.5: the inputs of .* are no"),
        ({"training__augment": "weak"}, r"training\.augment = 'weak': .* are no images"),
        ({"method": FedAvg(objective="fixmatch")}, r"method\.name = 'fedavg': .* are no images"),
    ],
)
def test_what_is_for_images_is_refused_for_vectors(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        federation_of(on_vectors(**changes))
    assert "\n" not in str(caught.value)


def test_own_images_may_be_viewed_shifted_and_resized() -> None:
    changed = {"data__image_size": 16, "split__feature_shift": 0.5, "training__augment": "weak"}
    data = DataSettings(name=IMAGES)
    federation = federation_of(small(**{"data": data, **changed}))
    assert federation.dealt.site(0).labelled.shape[1:] == (1, 16, 16)


def test_the_experiments_digest_knows_the_function_and_the_manifest_its_labels() -> None:
    one, other = on_vectors(), on_vectors(data__name=IMAGES, data__subset=0)
    assert experiment_digest(one) != experiment_digest(other)
    found = [federation_of(each).manifest for each in (one, other)]
    assert found[0] is not None and found[1] is not None
    assert found[0].dataset == VECTORS and found[0].labels_sha256 != found[1].labels_sha256


@pytest.mark.parametrize("method", [FedAvg(), SMALL.method, LocalOnly()], ids=lambda m: m.name)
def test_a_run_on_vectors(tmp_path: Path, method: Method) -> None:
    changes: dict[str, Any] = {"rounds__num_rounds": 3, "rounds__sample_rate": 1.0}
    changes |= {"method": method, "runtime__out": str(tmp_path)}
    summary, run = run_loopback(on_vectors(**changes))
    assert (run / "manifest.safetensors").exists()
    assert summary["mean_test_accuracy"]["final"] > 0.3  # of ten classes
    again, _ = run_loopback(on_vectors(**changes))
    assert again["mean_test_accuracy"] == summary["mean_test_accuracy"]


class FromBags(LocalOnly):
    """Stands for a method made for bags: every image learns its bag's proportions."""

    learns_from: ClassVar[frozenset[str]] = frozenset({BAGS})

    def site_round(self, task: Task, site: SiteContext) -> SiteReport:
        site.load(task.own)
        part = site.data.parts[BAGS]
        assert isinstance(part.supervision, Bags)
        targets = part.supervision.proportions[part.supervision.bag].float()
        site.fit(part.inputs, targets, len(part), 10, task)
        return SiteReport(site.params(), evaluations=site.evaluate("val", "test"))


def site_of(experiment: Experiment, number: int, folder: Path) -> Any:
    store = ModelStore(folder / "models")
    return federation_of(experiment).site(number, experiment, store, folder)


def test_bags_are_neither_labelled_nor_unlabelled(tmp_path: Path) -> None:
    plain = site_of(small(), 0, tmp_path).facts()
    with_bags = site_of(small(method=FromBags(), split__bags=3), 0, tmp_path).facts()
    assert plain.bagged == with_bags.labelled == with_bags.unlabelled == 0
    assert with_bags.bagged == plain.labelled + plain.unlabelled
    assert with_bags.split_digest != plain.split_digest


def test_a_method_made_for_bags_learns_from_them(tmp_path: Path) -> None:
    """Sixteen bags of some four images each: nearly labels."""
    split = SplitSettings(num_clients=5, dirichlet_alpha=100.0, bags=16)
    experiment = small(method=FromBags(), split=split, runtime__out=str(tmp_path))
    summary, _ = run_loopback(experiment)
    assert summary["mean_test_accuracy"]["final"] > 0.25  # by chance 0.1


def test_a_saved_split_must_have_the_bags_and_server_data_of_the_settings(tmp_path: Path) -> None:
    for key, value in (("bags", 2), ("server_share", 0.1)):
        path = tmp_path / key
        saved = federation_of(small(**{f"split__{key}": value})).manifest
        assert saved is not None
        saved.save(path)
        same = small(**{f"split__{key}": value, "split__manifest": str(path)})
        assert federation_of(same).digest == saved.digest()
        with pytest.raises(ConfigError, match=rf"has .* but split\.{key} = 0") as caught:
            federation_of(small(split__manifest=str(path)))
        assert "\n" not in str(caught.value)


def test_the_servers_data_are_a_site_of_their_own() -> None:
    federation = federation_of(small(split__server_share=0.2))
    data = federation.dealt.site(SERVER_SITE)
    assert len(data.labels) == round(0.2 * 350)
    assert int(torch.bincount(data.labels, minlength=10).min()) == 7


def test_digests_of_what_there_was_are_unchanged() -> None:
    """Score caches, checkpoints and notes of earlier runs stand on these."""
    federation = federation_of(small())
    assert federation.digest.startswith("fe7b2dfe8be779c0")
    found = [
        (federation.dealt.site(k).fingerprint, federation.dealt.site(k).digest[:8]) for k in (0, 3)
    ]
    assert found == [("bf6afa4007ef7fed", "287502ba"), ("9a4c62d9fb344a88", "136b59ff")]
    shifted = federation_of(small(split__label_share=0.2, split__feature_shift=0.5))
    assert shifted.dealt.site(1).digest.startswith("be17e994a4ae3314")
