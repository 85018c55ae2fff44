"""What must hold of every method, whatever it does: one check of all, as for estimators elsewhere.

A method's own tests have its formulas by hand; what its rounds and sites must bear is here.
"""

import pytest

from fedapp.methods import method_class, method_names
from tests.methods.conformance import WARM_UP, check_method, toy

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


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_what_every_method_bears(method, tmp_path):
    check_method(lambda name: toy(method, tmp_path, name=name, **WARM_UP))


def test_no_method_is_left_out():
    assert {method.name for method in METHODS} | FROM_BAGS == set(method_names())
