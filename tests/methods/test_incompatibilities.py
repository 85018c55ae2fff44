"""With which settings each method cannot run, and that none says so of a setting that is not."""

import pytest
from pydantic.dataclasses import dataclass

from fedapp.core.errors import ConfigError, Incompatibility
from fedapp.core.settings import (
    CLOSED,
    DataSettings,
    PrivacySettings,
    RoundSettings,
    SplitSettings,
    TrainSettings,
)
from fedapp.methods import RENAMED, method_class, method_names, register
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.averaging.fedrgd import FedRgd
from fedapp.methods.incompatibilities import SETTINGS, Conditions
from fedapp.methods.recommended.prior_shift import PriorShift
from fedapp.methods.um_pfssl.method import UmPfssl

SHORT = {
    "labels": "split.labels", "robust": "rounds.robust", "clip": "privacy.clip",
    "uneven": "training.uneven", "epsilon": "privacy.epsilon", "sums": "privacy.sums",
    "findings": "data.findings", "images": "method.name",
}  # fmt: skip
REFUSED = {
    "ditto": "labels epsilon findings",
    "fedavg": "",
    "fedbn": "epsilon",
    "fedllp": "labels uneven epsilon findings sums",
    "fedmatch": "clip epsilon findings images sums",
    "fedper": "labels epsilon",
    "fedpl": "labels uneven epsilon findings sums",
    "fedprox": "epsilon",
    "fedrgd": "robust epsilon findings images sums",
    "fedrod": "labels epsilon findings",
    "fedsem": "labels epsilon findings sums",
    "fedsiam_d": "clip epsilon findings sums",
    "fedsiam_mt": "clip epsilon findings sums",
    "fedsiam_pi": "epsilon findings sums",
    "fedul": "labels uneven epsilon findings sums",
    "fixmatch_global": "epsilon findings images",
    "flexproto": "labels clip uneven epsilon findings sums",
    "lg_fedavg": "labels epsilon",
    "local_only": "labels epsilon sums",
    "mixmatch_avg": "epsilon findings images sums",
    "one_round": "robust clip uneven",
    "pfedme": "epsilon sums",
    "prior_shift": "labels epsilon",
    "protofssl": "labels clip uneven epsilon findings sums",
    "rscfed": "robust epsilon findings images sums",
    "sage": "epsilon findings images",
    "um_pfssl": "uneven epsilon findings sums",
}
"""By method, with its own settings as they are by default; images: it makes views of images."""


def everything_in_use(**privacy):
    """Conditions in which every setting of `SETTINGS` is in use, as far as they go together."""
    return Conditions(
        data=DataSettings(name="own", findings="a, b", image_size=32, channels=1),
        split=SplitSettings(labels="none"),
        training=TrainSettings(uneven="balanced"),
        rounds=RoundSettings(robust="median"),
        privacy=PrivacySettings(**privacy),
        are_images=False,
    )


CONDITIONS = [
    everything_in_use(**privacy)
    for privacy in ({"clip": 1.0}, {"epsilon": 3.0}, {"sums": "masked"})
]


def refused(method):
    return {one.setting for each in CONDITIONS for one in method.incompatibilities(each)}


def test_every_method_is_in_the_table_and_every_setting_has_its_word():
    assert list(REFUSED) == method_names()
    assert list(SHORT.values()) == list(SETTINGS)


@pytest.mark.parametrize("name", REFUSED)
def test_each_method_refuses_these_settings_and_no_others(name):
    method = method_class(name)()
    assert refused(method) == {SHORT[word] for word in REFUSED[name].split()}
    assert method.incompatibilities(Conditions()) == []


@pytest.mark.parametrize(("method", "words"), [
    (FedAvg(objective="fixmatch"), "epsilon findings images"),
    (PriorShift(weigh=False, closed="hog"), "clip epsilon"),
    (PriorShift(pseudo_labels=False), "labels epsilon"),
    (method_class("one_round")(features="patches"), "robust clip uneven epsilon"),
])  # fmt: skip
def test_what_it_refuses_may_depend_on_its_own_settings(method, words):
    assert refused(method) == {SHORT[word] for word in words.split()}


@pytest.mark.parametrize(("method", "key"), [
    (UmPfssl(helper_list_size=6), "helper_list_size"), (FedRgd(groups=6), "groups"),
])  # fmt: skip
def test_as_many_sites_must_be_there_as_it_is_set_for(method, key):
    few, enough = (Conditions(split=SplitSettings(num_clients=number)) for number in (5, 6))
    [one] = method.incompatibilities(few)
    assert one.setting == f"method.{key}" and "at most split.num_clients = 5" in one.reason
    assert method.incompatibilities(enough) == []


def test_the_paper_s_five_helpers_pass_anywhere():
    assert UmPfssl().incompatibilities(Conditions(split=SplitSettings(num_clients=2))) == []


def test_a_reason_names_the_method_and_the_rule():
    [one] = FedRgd().incompatibilities(Conditions(rounds=RoundSettings(robust="median")))
    assert one == Incompatibility(
        "rounds.robust",
        "fedrgd cannot run so: it averages its groups' replicas, which would be judged as models "
        "of one site",
        "leave it out or choose another method",
    )


@pytest.mark.parametrize("member", RENAMED)
def test_a_class_with_a_member_of_an_earlier_version_is_refused_with_the_new_name(member):
    @dataclass(frozen=True, config=CLOSED)
    class Old(FedAvg):
        name = "old"

    setattr(Old, member, "")
    with pytest.raises(ConfigError, match=f"has `{member}`, which has become `{RENAMED[member]}`"):
        register(Old)


def test_a_reason_for_a_setting_that_nobody_asks_about_is_a_mistake():
    with pytest.raises(ConfigError, match=r"training\.unevn .* mean 'training\.uneven'"):
        Conditions().refused("mine", {"training.unevn": "no form"})
