"""What the server believes of a site's findings, and of sites that have others."""

from dataclasses import replace

import pytest
import torch

import fedapp
from fedapp.core.errors import ProtocolError, RunError
from fedapp.core.settings import DataSettings
from fedapp.learn.metrics import evaluation
from fedapp.protocol.messages import MODEL, ModelRef, Reply, SiteFacts, Task
from fedapp.server.checks import agreeing_sites, check_reply, preset_mismatch
from fedapp.server.standings import Standing, Standings
from tests.server.test_masked_sums import model

NAMES = ("effusion", "mass")
FACTS = SiteFacts(0, (1, 8, 8), NAMES, 3, 0, 0, 3, "0" * 64, name="east")
TASK = Task(0, 1, "train", ModelRef(-1, 0, "0" * 64))
TEST = evaluation(
    torch.tensor([[0.9, 0.2], [0.4, 0.7], [0.6, 0.4]]), torch.tensor([[1, 0], [1, -1], [0, 1]])
)
HONEST = Reply(0, 1, "f" * 64, evaluations={"test": TEST})
AGREED = DataSettings(
    name="own", findings=", ".join(NAMES), sites="east, west", image_size=8, channels=1
)


def test_an_honest_reply_passes_and_is_none_of_classes():
    check_reply(TASK, HONEST, FACTS, {MODEL}, finds=True)
    with pytest.raises(ProtocolError, match="confusion matrix test is not 2 x 2"):
        check_reply(TASK, HONEST, FACTS, {MODEL})


@pytest.mark.parametrize(("confusion", "says"), [
    (((0, 1), (1, 3)), "is not of 2 findings"),
    (((0, 1, 0, 0), (1, 1, 0, 0), (0, 0, 1, 0), (0, 0, 1)), "is not of 2 findings"),
    (((0, 1, 0, 0), (1, 1, 0, 0), (0, 0, 0, 0), (1, 0, 1, 0)), "mixes findings"),
    (((0, 1, 0, 0), (1, 2, 0, 0), (0, 0, 1, 0), (0, 0, 0, 0)), "or is of more images"),
    (((0, 1, 0, 0), (1, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 0)), "do not add up"),
])  # fmt: skip
def test_counts_that_no_images_have_are_refused(confusion, says):
    lie = replace(HONEST, evaluations={"test": replace(TEST, confusion=confusion)})
    with pytest.raises(ProtocolError, match=says):
        check_reply(TASK, lie, FACTS, {MODEL}, finds=True)


def test_a_site_with_other_findings_is_left_out_by_name():
    other = replace(FACTS, classes=("effusion", "oedema"))
    assert preset_mismatch(FACTS, AGREED) == ""
    assert (
        "its findings is ('effusion', 'oedema'), the preset says ('effusion', 'mass')"
        in preset_mismatch(other, AGREED)
    )
    said = []
    with pytest.raises(RunError, match="no site that answered can take part"):
        agreeing_sites([other], 2, AGREED, said.append)
    assert "site 0 left out: its findings" in said[0]


def test_an_even_guess_of_a_finding_is_one_of_two_and_counts_give_no_verdict():
    run = Standings({0: Standing(FACTS), 1: Standing(replace(FACTS, site=1, name="west"))})
    alone = {"test": TEST, "test_alone": TEST}
    row = run.close_round(1, [replace(HONEST, evaluations=alone), replace(HONEST, site=1)], {})
    assert row["mean_test_accuracy"] == pytest.approx(2 / 5)
    assert row["mean_test_accuracy_alone"] == pytest.approx((2 / 5 + 1 / 2) / 2)
    assert row["pooled_test_balanced_accuracy"] == pytest.approx((1 / 4 + 1 / 2) / 2)
    assert run.sites[0].verdict.said == "unknown"
    assert "from counts of findings" in run.sites[0].verdict.line
    assert run.sites[0].test_classes == 2


def rows_of(count, seed):
    """Rows and two findings that follow from them, a third not read; and one that nobody has."""
    stream = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=stream)
    y = torch.stack([x[:, 0] > 0.3, x[:, 1] > 0, torch.zeros(count) > 1], 1).long()
    y[torch.rand(y.shape, generator=stream) < 0.3] = -1
    return x, y


@pytest.mark.parametrize(("method", "role"), [
    ("fedavg", ""), ("one_round", "solution"), ("recommended", "solution"),
])  # fmt: skip
def test_a_masked_sum_of_findings_is_the_plain_one(method, role, tmp_path, monkeypatch):
    """But for fixed point; mixes of sites are estimated from sums, and no head is of them."""
    monkeypatch.setenv("FEDAPP_OUT", str(tmp_path))
    sites = [
        fedapp.Site(rows_of(20 + k, k), rows_of(9, k + 20)[0], rows_of(12, k + 40),
                    rows_of(15, k + 60)) for k in range(4)
    ]  # fmt: skip
    few = {"rounds.num_rounds": 2, "training.warmup_epochs": 1, "model.hidden": "4"}
    none = {"method.guesses": 0}  # guesses go by the mixes of sites
    scored = few | {"rounds.pooled_auroc": True}
    settings = {"fedavg": scored, "one_round": none, "recommended": few | none}[method]
    plain, masked = (
        fedapp.run(fedapp.Federation(sites), method, network="mlp", quiet=True,
                   settings={**settings, "privacy.sums": sums}) for sums in ("plain", "masked")
    )  # fmt: skip
    one, other = model(plain.folder, role), model(masked.folder, role)
    assert one.keys() == other.keys()
    for name in one.keys() - {"prior"}:
        assert torch.allclose(one[name].double(), other[name].double(), atol=2e-5), name
    assert plain.accuracy == pytest.approx(masked.accuracy, abs=0.03)
    for mine, theirs in zip(plain.summary["by_class"], masked.summary["by_class"], strict=True):
        assert (mine["images"], mine["read"]) == (theirs["images"], theirs["read"])
        if mine.get("auroc") is not None:
            assert mine["auroc"] == pytest.approx(theirs["auroc"], abs=0.02)
    assert (plain.summary["by_class"][0].get("auroc") is not None) == (method == "fedavg")
