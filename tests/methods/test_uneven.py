"""`training.uneven` reaches every method that averages, and is refused by all others in a line."""

import pytest
import torch

from fedapp.core.errors import ConfigError
from fedapp.experiment.config import load_experiment
from fedapp.methods import method_class
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.recommended.prior_shift import PriorShift
from tests.methods.conformance import Deal, play, toy
from tests.methods.test_incompatibilities import REFUSED

TAKES = sorted(name for name, words in REFUSED.items() if "uneven" not in words)


def sent(name, folder, uneven):
    """Return the digests of all that two sites sent in a run, one of them with uneven labels."""
    method = PriorShift(closed="none") if name == "prior_shift" else method_class(name)()
    deals = (Deal(12, 6, 2, 2), Deal(5, 3, 2, 2))
    small = {"training__uneven": uneven, "rounds__num_rounds": 1}
    played = play(toy(method, folder, deals, name=uneven, **small))
    return [sorted(one.incoming.payloads) for one in played.seen]


@pytest.mark.parametrize("name", TAKES)
def test_each_setting_moves_what_a_site_learns(name, tmp_path):
    plain, balanced, adjusted = (sent(name, tmp_path, h) for h in ("plain", "balanced", "adjusted"))
    assert any(plain) and plain != balanced and adjusted != balanced
    assert (plain == adjusted) == (
        name in ("prior_shift", "fedrod")
    )  # what they send is so as it is


def test_protected_images_keep_their_counts_to_themselves():
    said = {"method.preset": "fedavg", "training.uneven": "balanced", "privacy.epsilon": 8.0}
    with pytest.raises(ConfigError, match=r"training\.uneven.*privacy\.epsilon hides"):
        load_experiment("digits_demo", {**said, "model.norm": "group"})


def test_where_classes_count_alike_prior_shift_answers_without_its_class_mix(tmp_path):
    from fedapp.methods.recommended.prior_shift import _answer_mix

    mix = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    plain, even = (
        type("Site", (), {"training": toy(FedAvg(), tmp_path, training__uneven=how).training})()
        for how in ("plain", "adjusted")
    )
    assert _answer_mix(mix, plain) is mix
    assert _answer_mix(mix, even).tolist() == pytest.approx([1 / 3] * 3)
