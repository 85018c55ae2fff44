"""A bank of a frozen encoder's answers: the same numbers as the encoder, made once."""

import json

import numpy as np
import pytest
import torch

from fedapp.core.errors import ConfigError, DataError, RunError
from fedapp.data import augment
from fedapp.experiment.config import load_experiment
from fedapp.learn.networks import encoder_bank, network_settings
from fedapp.learn.networks.encoder_bank import Bank, halved
from fedapp.learn.uncertainty import dropout_sample
from fedapp.simulation.loopback import run_loopback
from fedapp.site.federation import forget
from tests.encoders import encoder_fields


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAPP_DATA", str(tmp_path))
    monkeypatch.setattr(encoder_bank, "_BANKS", [])
    forget()
    yield tmp_path / "features"
    forget()


def images(count=5):
    drawn = torch.Generator().manual_seed(1)
    return torch.randint(256, (count, 1, 8, 8), dtype=torch.uint8, generator=drawn)


def settings(**fields):
    return network_settings("encoder_bank", encoder_fields() | fields)


def mean_bank(folder, given, asked):
    """A bank of a body whose answer is the mean pixel; it notes how many images it was asked."""
    note = lambda x: (asked.append(len(x)), x.flatten(1).mean(1, keepdim=True))[1]  # noqa: E731
    return Bank(given, False, note, 1, folder)


def run(out, model, **over):
    given = {
        "data.subset": 300,
        "split.num_clients": 4,
        "rounds.num_rounds": 2,
        "rounds.sample_rate": 0.5,
        "runtime.device": "cpu",
        "runtime.run_name": model,
        "runtime.out": str(out),
        "runtime.models": False,
        "model.name": model,
    }
    fields = {f"model.{key}": value for key, value in encoder_fields().items()}
    return run_loopback(load_experiment("digits_demo", given | fields | over))


# --- the identity: without dropout and views, an encoder ------------------------------------------


@pytest.mark.parametrize("method", [
    {"method.preset": "fedavg"},
    {"method.preset": "um_pfssl_mi_labels"},
    {"method.name": "one_round", "method.features": "network"},
])  # fmt: skip
def test_runs_have_the_numbers_of_the_encoder_itself(tmp_path, method):
    rows = [run(tmp_path, name, **{"model.dropout": 0.0}, **method)[1] for name in
            ("encoder", "encoder_bank")]  # fmt: skip
    found = [
        [json.loads(line)["sites"] for line in (path / "sites.jsonl").read_text().splitlines()]
        for path in rows
    ]
    assert found[0] and found[0] == found[1]


@pytest.mark.parametrize("preset", ["fixavg", "sage", "fedmatch"])
def test_methods_with_views_run_on_a_bank(tmp_path, folder, preset):
    row, path = run(tmp_path, "encoder_bank", **{"method.preset": preset})
    assert row["mean_test_accuracy"]["final"] is not None
    made = {file.name for file in folder.glob("*/*.npy")}
    assert {"view-0.npy"} < made <= {f"view-{view}.npy" for view in range(augment.VIEWS)}
    assert not (path / "models").exists()  # they would ask for places


# --- the bank by hand -----------------------------------------------------------------------------


def test_answers_stand_at_their_places_and_are_made_once(tmp_path):
    asked, given = [], images()
    first = mean_bank(tmp_path / "b", given, asked)
    places = augment.place(torch.tensor([4, 0, 4]))
    wanted = given[[4, 0, 4]].float().flatten(1).mean(1, keepdim=True) / 255
    assert places.flatten().tolist() == [36, 0, 36]
    torch.testing.assert_close(first(places), wanted)
    assert asked == [16]  # five images, filled up
    torch.testing.assert_close(mean_bank(tmp_path / "b", given, asked)(places), wanted)
    assert asked == [16]


def test_views_of_one_batch_may_differ(tmp_path):
    bank = mean_bank(tmp_path / "b", images(), [])
    one, two = augment.place(torch.tensor([2]), 3), augment.place(torch.tensor([2]), 7)
    both = bank(torch.cat([one, two]))
    assert torch.equal(both, torch.cat([bank(one), bank(two)])) and both[0] != both[1]


@pytest.mark.parametrize("between", [0.3, 1e-3, 0.999])
def test_a_mixture_of_two_places_is_refused(tmp_path, between):
    """It would be the place of a third image, so that the answer would be wrong in silence."""
    bank = mean_bank(tmp_path / "b", images(), [])
    first, second = augment.place(torch.tensor([0])), augment.place(torch.tensor([2]))
    with pytest.raises(ConfigError, match="mixture of images"):
        bank(torch.lerp(first, second, between))


def test_a_bank_that_was_cut_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(encoder_bank, "CHUNK", 2)
    asked, places = [], augment.place(torch.arange(5), 6)
    whole = mean_bank(tmp_path / "whole", images(), [])(places)
    bank = mean_bank(tmp_path / "b", images(), asked)
    answers = bank._answers

    def cut(view, first):
        if first == 4:
            raise KeyboardInterrupt
        return answers(view, first)

    monkeypatch.setattr(bank, "_answers", cut)
    with pytest.raises(KeyboardInterrupt):
        bank(places)
    with (tmp_path / "b" / "view-6.part").open("ab") as file:
        file.write(b"torn")
    assert torch.equal(mean_bank(tmp_path / "b", images(), asked)(places), whole)
    assert asked == [16] * 3


def test_a_damaged_file_is_refused(tmp_path):
    (tmp_path / "view-0.npy").write_bytes(b"no array")
    with pytest.raises(DataError, match=r"view-0\.npy: cannot be read .*: remove it"):
        mean_bank(tmp_path, images(), [])(augment.place(torch.tensor([0])))
    np.save(tmp_path / "view-0.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(DataError, match="cannot be read"):
        mean_bank(tmp_path, images(), [])(augment.place(torch.tensor([0])))
    np.save(tmp_path / "view-0.npy", np.zeros((4, 1), np.float32))
    with pytest.raises(DataError, match="holds float32"):
        mean_bank(tmp_path, images(), [])(augment.place(torch.tensor([0])))


def test_equal_images_have_one_place():
    pool = images(3)[[0, 1, 0, 2]]
    assert settings().stand_in(pool, False).flatten().tolist() == [0, 9, 0, 18]


def test_weak_and_strong_views_are_drawn_from_their_own():
    places = augment.place(torch.arange(2000), 2)
    draws = torch.Generator().manual_seed(3)
    for draw, wanted in ((augment.weak, range(1, 5)), (augment.strong, range(5, 9))):
        found = draw(places, True, draws)
        assert torch.equal(found // augment.VIEWS, places // augment.VIEWS)
        assert set((found % augment.VIEWS).flatten().tolist()) == set(wanted)
    with pytest.raises(ConfigError, match=r"strong_view = 'cutout'.*take randaugment"):
        augment.cutout(places, True, draws)


# --- dropout by bytes -----------------------------------------------------------------------------


def test_half_of_the_values_are_dropped_each_for_itself():
    torch.manual_seed(0)
    found = halved(torch.full((40_000, 16), 3.0))
    torch.manual_seed(0)  # by hand: the lowest bit of a number is the first value
    first = int(torch.randint(-(2**63), 2**63 - 1, (10_001,))[0])
    assert found.flatten()[:64].tolist() == [6.0 * (first >> bit & 1) for bit in range(64)]
    assert set(found.unique().tolist()) == {0.0, 6.0}
    signs = found / 3 - 1  # of two bytes a row
    limit = 5 / len(signs) ** 0.5  # false alarm for 16 means and 120 pairs: 1 in 12,000
    assert signs.mean(0).abs().max() < limit
    alike = signs.T @ signs / len(signs)
    assert alike.fill_diagonal_(0).abs().max() < limit


def test_dropout_of_another_share_is_drawn_as_usual():
    bank = settings(dropout=0.3).network((1,), 10)
    x = torch.ones(3, bank.features)
    torch.manual_seed(0)
    found = bank.embed((x,), dropout_sample)
    torch.manual_seed(0)
    assert torch.equal(found, dropout_sample(x, 0.3))


# --- what it cannot do ----------------------------------------------------------------------------


def test_it_is_for_simulated_images_only(tmp_path):
    with pytest.raises(ConfigError, match="takes images"):
        settings().stand_in(torch.rand(4, 3), False)
    for x in (torch.zeros(1, 1), torch.zeros(1, 1, 8, 8)):  # no simulation has begun; an image
        with pytest.raises(ConfigError, match=r"set model\.name=encoder"):
            settings().network((1,), 10)(x)
    with pytest.raises(RunError, match="mixture of images"):
        run(tmp_path / "mixed", "encoder_bank", **{"method.preset": "mixmatch_avg"})
    with pytest.raises(ConfigError, match="hog features are of images"):
        run(tmp_path, "encoder_bank", **{"method.name": "one_round", "method.features": "hog"})
    with pytest.raises(ConfigError, match=r"split\.feature_shift = 0\.5"):
        run(tmp_path, "encoder_bank", **{"split.feature_shift": 0.5, "method.preset": "fedavg"})
    with pytest.raises(ConfigError, match="trained must be head"):
        load_experiment("digits_demo", {"model.name": "encoder_bank", "model.trained": "all"})
