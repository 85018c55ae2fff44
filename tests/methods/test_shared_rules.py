"""Rules that many methods share, each as a table: warm-up, work, memory, ranges of settings."""

import pytest
from pydantic import ValidationError

from fedapp.methods import method_class
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.averaging.fedbn import FedBN
from fedapp.methods.averaging.fixmatch_global import FixMatchGlobal
from fedapp.methods.averaging.mixmatch_avg import MixMatchAvg
from fedapp.methods.averaging.pfedme import PFedMe
from fedapp.methods.averaging.sage import Sage
from fedapp.methods.um_pfssl.method import UmPfssl
from fedapp.protocol.messages import ModelRef, Task
from tests.methods.conformance import START, Deal, assert_same, context, data_of, play, toy

WARM_UP = Task(0, 0, "warmup", ModelRef(0, 1, "b" * 64), {"server": (ModelRef(-2, 1, "a" * 64),)})
DEALS = (Deal(9, 20), Deal(20, 3), Deal(5, 0))
PASSES = {
    "labelled": (2, 3, 1),
    "larger": (3, 3, 1),  # of labelled and unlabelled images
    "all": (4, 3, 1),  # both together
}
"""Mini-batches of eight in a pass, by what is passed over."""


@pytest.mark.parametrize("name", ["fixmatch_global", "mixmatch_avg", "sage", "fedrgd", "rscfed"])
def test_the_warm_up_is_fedavgs(name):
    training = {"warmup_epochs": 4, "warmup_rounds": 4}
    one, two = (
        method.site_round(WARM_UP, context(data_of(4, 9), START, **training)).params
        for method in (method_class(name)(), FedAvg())
    )
    assert_same(one, two)


@pytest.mark.parametrize(("method", "passes", "times"), [
    ("local_only", "labelled", 1), ("fedavg", "labelled", 1), ("fedprox", "labelled", 1),
    ("fedbn", "labelled", 1), ("fedper", "labelled", 1), ("lg_fedavg", "labelled", 1),
    ("fedrod", "labelled", 1), ("ditto", "labelled", 2), (PFedMe(inner_steps=4), "labelled", 4),
    (FedAvg("fixmatch"), "larger", 1), (FedBN("fixmatch"), "larger", 1),
    ("fixmatch_global", "larger", 1), ("mixmatch_avg", "larger", 1), ("fedrgd", "larger", 1),
    ("rscfed", "larger", 3), ("fedmatch", "larger", 2), ("sage", "all", 1),
    ("fedsiam_pi", "all", 1), ("fedsiam_mt", "all", 1), ("fedsiam_d", "all", 1),
    (UmPfssl(mc_samples=2), "all", 1),
])  # fmt: skip
def test_every_method_has_the_same_epochs(tmp_path, method, passes, times):
    """Two in the warm-up, of the labelled images; three in a round. As replies count them."""
    method = method_class(method)() if isinstance(method, str) else method
    changes = {"training__local_epochs": 3, "training__warmup_epochs": 2, "rounds__num_rounds": 1}
    if method.name == "rscfed":
        changes["rounds__sample_rate"] = 1.0
    played = play(toy(method, tmp_path, DEALS, **changes))
    twice = times if passes == "labelled" else 1
    for exchange in played.of(0, "warmup"):
        site, done = exchange.task.site, exchange.reply.metrics
        assert done["steps"] == 2 * PASSES["labelled"][site] * twice
        assert done["images"] == 2 * DEALS[site].labelled * (2 if method.name == "ditto" else 1)
    steps = dict.fromkeys(range(3), 0)
    for exchange in played.of(1, "train"):
        steps[exchange.task.site] += exchange.reply.metrics["steps"]
    if method.name == "rscfed":  # a site is in some of three subsets
        assert all(steps[k] % (3 * n) == 0 for k, n in enumerate(PASSES[passes]))
    elif method.name == "fedmatch":  # a site without unlabelled images learns sigma alone
        assert steps == {0: 3 * 3 * 2, 1: 3 * 3 * 2, 2: 3}
    else:
        assert steps == {k: 3 * n * times for k, n in enumerate(PASSES[passes])}


@pytest.mark.parametrize(("method", "images"), [
    (FedAvg(), 8), (FedAvg("fixmatch"), 24), (FixMatchGlobal(), 16), (MixMatchAvg(views=3), 32),
    (Sage(), 24),
])  # fmt: skip
def test_so_many_images_go_through_at_once(method, images):
    assert method.images_per_step(8, data_of()) == images


@pytest.mark.parametrize(("name", "bad"), [
    ("ditto", {"attachment": -0.1}), ("ditto", {"answer": "alone"}), ("ditto", {"objective": "x"}),
    ("fedprox", {"proximal": -0.1}), ("fedprox", {"mu": 1.0}), ("fedprox", {"confidence": 1.5}),
    ("fedrgd", {"groups": 0}), ("fedrgd", {"groups": 27}), ("fedsiam_d", {"calm_rounds": 0}),
    ("fedsiam_d", {"saved_share": 1.1}), ("fedsiam_d", {"curve": "round"}),
    ("flexproto", {"cap": 1.0}), ("flexproto", {"cap": -0.1}), ("flexproto", {"temperature": 0.0}),
    ("flexproto", {"distance": "cosine"}), ("flexproto", {"helper_count": 65}),
    ("mixmatch_avg", {"views": 0}), ("mixmatch_avg", {"temperature": 0.0}),
    ("mixmatch_avg", {"mixup": -0.1}), ("mixmatch_avg", {"ramp_rounds": 0}),
    ("pfedme", {"elastic": -1.0}), ("pfedme", {"inner_steps": 0}), ("pfedme", {"beta": 0.0}),
    ("prior_shift", {"answer": "alone"}), ("prior_shift", {"weigh": 1}),
    ("rscfed", {"subsets": 0}), ("rscfed", {"subset_share": 0.0}), ("rscfed", {"subset_share": 2}),
    ("rscfed", {"largest_decay": 1.1}), ("sage", {"half_gap": 0.0}), ("sage", {"strong_view": "x"}),
    ("um_pfssl", {"num_replaced": 5}), ("um_pfssl", {"helper_list_size": 0}),
    ("um_pfssl", {"update_every": 0}), ("um_pfssl", {"recalibrate": 1}),
], ids=str)  # fmt: skip
def test_hyper_parameters_are_checked(name, bad):
    with pytest.raises((ValidationError, TypeError)):
        method_class(name)(**bad)
