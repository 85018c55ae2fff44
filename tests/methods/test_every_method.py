"""What must hold of every method, whatever it does: one check of all, as for estimators elsewhere.

A method's own tests have its formulas by hand; what its rounds and sites must bear is here.
"""

import pytest

from fedapp.methods import method_class, method_names
from tests.methods.conformance import ODD, WARM_UP, check_method, play_in_one_store, toy

SETTINGS = {
    "fedavg": {"objective": "fixmatch"},
    "fedsem": {"labelled_rounds": 1},
    "fedsiam_d": {"calm_rounds": 1},
    "pfedme": {"objective": "fixmatch"},
    "prior_shift": {"confidence": 0.2},
    "rscfed": {"subset_share": 1.0},
    "um_pfssl": {"mc_samples": 2, "helper_list_size": 2, "num_replaced": 1},
}
"""With which a method does in three rounds all that it ever does."""
FROM_BAGS = {"fedllp", "fedpl", "fedul"}
"""They need bags, which these sites have not: `test_fedul` has the same of them."""
METHODS = [method_class(name)(**SETTINGS.get(name, {}))
           for name in method_names() if name not in FROM_BAGS]  # fmt: skip
WITH_LABELS = {0, 3, 5}
"""The sites of `ODD` that have labelled images."""
FROM_LABELS_ALONE = {"ditto", "fedbn", "fedper", "fedprox", "fedrod", "lg_fedavg", "local_only"}
FROM_OTHERS = {
    "flexproto": {0, 1, 4, 5}, "protofssl": {0, 1, 4, 5},  # one image can be asked about nothing
    "one_round": set(), "prior_shift": WITH_LABELS,  # no answer is sure enough here
}  # fmt: skip


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_what_every_method_bears(method, tmp_path):
    check_method(lambda name: toy(method, tmp_path, name=name, **WARM_UP))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_sites_that_lack_something_take_part(method, tmp_path, trained):
    """No labels; no training images; one image, labelled or not; nothing to measure on."""
    played = play_in_one_store(toy(method, tmp_path, ODD))
    assert [row["skipped"] for row in played.rows()] == [{}] * 3
    assert played.rows()[2]["sites_evaluated"] == 5  # the sixth has no test images
    warmed = WITH_LABELS - ({3} if method.name in ("flexproto", "protofssl") else set())
    assert trained(0) == (set() if method.name == "one_round" else warmed)
    with_images = WITH_LABELS if method.name in FROM_LABELS_ALONE else {0, 1, 3, 4, 5}
    assert trained(2) == FROM_OTHERS.get(method.name, with_images)


def test_no_method_is_left_out():
    assert {method.name for method in METHODS} | FROM_BAGS == set(method_names())
