"""What a site adds to a sum: by hand, one site, and what nobody can have said."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedapp.core.errors import ProtocolError
from fedapp.learn.class_priors import (
    UNINFORMATIVE_STRENGTH,
    mean_mix,
    mean_mix_of_sums,
    same_class_pair_sums,
)
from fedapp.learn.metrics import CALIBRATION_BINS, evaluation
from fedapp.methods._summed import (
    EVALUATIONS,
    Contribution,
    Layout,
    answer_accuracy,
    check_all_added,
    within_range,
)
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.protocol.messages import EVALUATE, MODEL, ModelRef, Task
from fedapp.protocol.secure_aggregation.fixed_point import from_words, max_number, to_words

FLOATS = {"w": ((2,), torch.float32), "n": ((), torch.int64)}
SUMS = {"counts": ((2,), torch.int64), "total": ((1,), torch.float32)}


def layout(measured: bool = False, **roles: bool) -> Layout:
    schemas = {MODEL: FLOATS, "sums": SUMS}
    return Layout(roles, schemas, ("loss", "steps"), 2, measured, 1 / 2)


def model(*numbers: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor(numbers), "n": torch.tensor(7)}


def test_a_mean_by_hand() -> None:
    there = layout(model=True)
    one = Contribution(
        {MODEL: model(1.0, 2.0)}, 1.0, 1.0, metrics={"loss": 3.0}, counts={"labelled": 1}
    )
    two = Contribution(
        {MODEL: model(5.0, -2.0)}, 3.0, 1.0, metrics={"loss": 1.0}, counts={"labelled": 3}
    )
    found = there.read(there.row(one) + there.row(two))
    assert found.contents[MODEL]["w"].tolist() == [4.0, -1.0]  # (1 * 1 + 3 * 5) / 4, ...
    assert int(found.contents[MODEL]["n"]) == 0  # integers are the server's own
    assert (found.sites, found.learned, found.weight) == (2, 2, 4)
    assert found.metrics["loss"] == 2.0
    assert found.counts["labelled"] == 4


def test_a_sum_by_hand() -> None:
    there = layout(sums=False)
    one = Contribution({"sums": {"counts": torch.tensor([1, 2]), "total": torch.tensor([0.5])}})
    found = there.read(there.row(one) * 3)
    assert found.contents["sums"]["counts"].tolist() == [3, 6]
    assert found.contents["sums"]["total"].tolist() == [1.5]
    assert "loss" not in found.metrics  # nobody trained


def test_one_site_is_what_it_says() -> None:
    answers = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8]])
    said = {"test": evaluation(answers, torch.tensor([0, 0, 1]))}
    there = layout(measured=True)
    found = there.read(there.row(Contribution(evaluations=said)))
    assert found.evaluations["test"].confusion == said["test"].confusion
    assert found.evaluations["test"].bin_count == said["test"].bin_count
    assert found.evaluations["test"].bin_confidence == pytest.approx(said["test"].bin_confidence)
    assert found.metrics["mean_test"] == pytest.approx(2 / 3)
    assert found.metrics["sites_test"] == 1


def test_nobody_says_anything() -> None:
    there = layout(measured=True, model=True, sums=False)
    found = there.read(np.zeros(there.size))
    assert not found.contents and not found.evaluations and not found.weight
    assert there.size == len(there.row(Contribution()))


def test_means_count_all_sites_with_images_the_same() -> None:
    """A large site does not count more, and one without images does not count."""
    there = layout(measured=True)
    right = evaluation(torch.tensor([[0.9, 0.1]] * 30), torch.zeros(30, dtype=torch.int64))
    wrong = evaluation(torch.tensor([[0.1, 0.9]]), torch.tensor([0]))
    none = evaluation(torch.empty(0, 2), torch.empty(0, dtype=torch.int64))
    rows = [there.row(Contribution(evaluations={"test": one})) for one in (right, wrong, none)]
    found = there.read(np.sum(rows, axis=0))
    assert found.metrics["mean_test"] == 0.5
    assert found.metrics["sites_test"] == 2
    assert found.evaluations["test"].accuracy == pytest.approx(30 / 31)


def test_what_stands_in_an_answers_place() -> None:
    used = evaluation(torch.tensor([[0.9, 0.1]] * 4), torch.tensor([0, 0, 0, 1]))
    common = evaluation(torch.tensor([[0.9, 0.1]] * 4), torch.tensor([0, 1, 1, 1]))
    said = {"test": used, "test_common": common}
    assert answer_accuracy("test", said, 1 / 2) == 0.75
    assert answer_accuracy("test_tuned", said, 1 / 2) == 0.25
    assert answer_accuracy("test_alone", said, 1 / 4) == 0.25  # an even guess among four
    assert answer_accuracy("test_online", said, 1 / 2) == 0.75
    assert answer_accuracy("test_tuned", {}, 1 / 2) is None


@pytest.mark.parametrize("wrong", [-1.0, 0.4])
def test_counts_are_counts(wrong: float) -> None:
    there = layout()
    row = there.row(Contribution())
    row[3] = wrong
    with pytest.raises(ProtocolError, match="between whole numbers"):
        there.read(row)


def test_every_block_has_its_place() -> None:
    """No two numbers share a place: each changed by itself changes what is read."""
    there = layout(measured=True, model=True, sums=False)
    said = evaluation(torch.tensor([[0.9, 0.1]]), torch.tensor([0]))
    whole = Contribution(
        {MODEL: model(1.0, 2.0), "sums": {"counts": torch.ones(2, dtype=torch.int64),
                                         "total": torch.ones(1)}},
        1.0, 1.0, metrics={"loss": 1.0, "steps": 1.0},
        evaluations={"test": said, "val": said}, counts={"test": 1},
    )  # fmt: skip
    row = there.row(whole)
    assert len(row) == 3 + 5 + 2 + 2 + (1 + 3) + 12 * (3 + 4 + 3 * CALIBRATION_BINS)
    plain, silent = there.read(row), []
    for place in np.flatnonzero(row):
        other = row.copy()
        other[place] += 1
        silent += [place] if repr(there.read(other)) == repr(plain) else []
    assert silent == [3 + 5 + 2 + 2]  # how many sent sums: whether anybody did is all that is read


def test_how_alike_mixes_are_by_hand() -> None:
    # Of 4 images 3 are of one class: of 6 pairs 3 are alike, 3/6 times 4 images.
    found = [10**3 * x for x in same_class_pair_sums(torch.tensor([3, 1]))[:2]]
    squares = [10**6 * x for x in same_class_pair_sums(torch.tensor([3, 1]))[2:]]
    assert [*found, *squares] == pytest.approx([4.0, 2.0, 16.0, 4.0, 8.0])
    assert same_class_pair_sums(torch.tensor([1, 0])) == (0.0,) * 5
    assert same_class_pair_sums(torch.tensor([0, 0])) == (0.0,) * 5


def test_a_million_labels_of_each_site_fit_a_masked_sum() -> None:
    sites, counts = 100, torch.tensor([900_000, 100_000])
    one = np.array(same_class_pair_sums(counts))
    words = to_words(one, sites)
    total = from_words(np.stack([words] * sites).sum(0, dtype=np.uint64), sites)
    assert total == pytest.approx(sites * one)
    alike = torch.stack([counts] * sites)
    assert mean_mix_of_sums(alike.sum(0), total.tolist()).tolist() == of_sums(alike).tolist()


def of_sums(counts: torch.Tensor) -> torch.Tensor:
    sums = [sum(of) for of in zip(*map(same_class_pair_sums, counts), strict=True)]
    return mean_mix_of_sums(counts.sum(0), sums)


def test_mixes_that_differ_are_worth_nothing_and_equal_ones_much() -> None:
    apart = 50 * torch.eye(4, dtype=torch.int64)
    assert float(of_sums(apart).sum()) == 0.0
    assert float(mean_mix(apart).sum()) == 0.0
    even = torch.full((20, 4), 50)
    assert float(of_sums(even).sum()) > 50
    assert float(of_sums(torch.zeros(3, 4, dtype=torch.int64)).sum()) == pytest.approx(0, abs=0.1)


def test_sums_say_what_all_counts_say() -> None:
    """Strengths from sums lie near those from every site's counts, over three strengths.

    Each is of 40 sites of 60 images, fixed draws. The two estimators differ by less than a factor
    of 2 there; where mixes are far apart both say 0. Above, the one of sums says less
    (`LEAST_VARIANCE`).
    """
    draws = np.random.default_rng(5)
    for strength, differs in ((1.0, 0.0), (5.0, 2.0), (20.0, 2.0)):
        mixes = draws.dirichlet(np.full(10, strength / 10), size=40)
        counts = torch.tensor(np.stack([draws.multinomial(60, mix) for mix in mixes]))
        a, b = (float(found.sum()) for found in (mean_mix(counts), of_sums(counts)))
        if not differs:
            assert a == b == pytest.approx(0.0, abs=0.1)
        else:
            assert (
                1 / differs < (a + UNINFORMATIVE_STRENGTH) / (b + UNINFORMATIVE_STRENGTH) < differs
            )


def test_facts_of_all() -> None:
    from fedapp.methods._summed import facts_of_all
    from fedapp.protocol.messages import ALL_SITES, SiteFacts

    like = SiteFacts(3, (1, 2, 2), ("a", "b"), 0, 0, 0, 0, "0" * 64, name="north")
    found = facts_of_all(like, ALL_SITES, Contribution(counts={"labelled": 5, "test": 2}))
    assert found == replace(like, site=ALL_SITES, name="", labelled=5, test=2)
    assert found.display_name == "all sites together"


def test_findings_have_places_for_two_classes_each_and_an_even_guess_of_two() -> None:
    task = Task(0, 1, EVALUATE, ModelRef(-1, 0, "0" * 64))
    plain, finds = (Layout.of(FedAvg(), task, {}, 3, of) for of in (False, True))
    assert (plain.classes, finds.classes) == (3, 6)
    assert plain.even == pytest.approx(1 / 3) and finds.even == 0.5
    assert finds.size - plain.size == len(EVALUATIONS) * (36 - 9)


def test_an_even_guess_of_findings_is_one_of_two() -> None:
    task = Task(0, 1, EVALUATE, ModelRef(-1, 0, "0" * 64))
    finds = Layout.of(FedAvg(), task, {}, 3, finds=True)
    said = {"test": evaluation(torch.tensor([[0.9, 0.9, 0.9]]), torch.tensor([[1, 0, -1]]))}
    row = finds.row(Contribution(evaluations=said))
    each = 3 + 36 + 3 * CALIBRATION_BINS
    at = len(row) - (len(EVALUATIONS) - EVALUATIONS.index("test_alone")) * each
    assert row[at : at + 2].tolist() == [1.0, 0.5]
    assert finds.read(row).evaluations == said


def test_a_row_out_of_range_says_so_in_its_first_number_alone() -> None:
    """By hand; its border; and all members at once still fit into words."""
    row = np.array([1.0, -3.0, 2.0])
    assert within_range(row, 3.0) is row
    for bad in (np.array([1.0, -3.1, 2.0]), np.array([np.nan, 0, 1]), np.array([1, 0, -np.inf])):
        assert within_range(bad, 3.0).tolist() == [3.0, 0.0, 0.0]
    for members in (3, 7, 10_000):
        most = max_number(members)
        bad = within_range(np.array([1.0, np.inf]), most)
        one, all_of_them = (from_words(to_words(bad, members) * np.uint64(n), members)
                            for n in (1, members))  # fmt: skip
        assert all_of_them[0] == pytest.approx(members * most)
        check_all_added(Contribution(sites=float(members)), members)
        for found in (one[0] + members - 1, all_of_them[0]):
            with pytest.raises(ProtocolError, match=r"some member .* could not do its work"):
                check_all_added(Contribution(sites=found), members)
