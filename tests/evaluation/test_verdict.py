"""Whether joining paid: by hand, the same model twice, the extremes, and how often it is wrong."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedapp.evaluation.confidence_intervals import MIN_TEST_IMAGES
from fedapp.evaluation.verdict import (
    COMPARE,
    EVEN_MIX_ALONE,
    FALSE_ALARMS,
    GAIN_TO_DETECT,
    NOT_COMPARED,
    NOTHING_TOLD,
    WARM_UP_ALONE,
    Pairs,
    SiteJoining,
    images_needed,
    interval_of_counts,
    joining_lines,
    paired_interval,
    verdict,
    verdict_of,
)


def answers(right, labels, classes=2):
    """Return probabilities of a model that is right on these images."""
    said = np.where(right, labels, (labels + 1) % classes)
    return 0.8 * np.eye(classes)[said] + 0.2 / classes


def pair(b, c, both, neither):
    """Return two models' answers: right alone on b and c images, together on some."""
    kinds = np.repeat([0, 1, 2, 3], [b, c, both, neither])
    labels = np.arange(len(kinds)) % 2
    return (
        answers(np.isin(kinds, (0, 2)), labels),
        answers(np.isin(kinds, (1, 2)), labels),
        labels,
    )


def test_numbers_by_hand():
    """P(X <= 5) of 25 fair coins: (1 + 25 + 300 + 2,300 + 12,650 + 53,130) / 2^25."""
    # p = 21/102, q = 6/102: 0.14706 +- 1.96 sqrt((0.26471 - 0.02163) / 102)
    low, high = paired_interval(20, 5, 100)
    assert (low, high) == pytest.approx((0.05138, 0.24274), abs=1e-5)
    found = verdict(*pair(20, 5, 50, 25), lone="a network")
    assert (found.said, found.gain, found.low, found.high) == ("paid", 0.15, low, high)
    assert found.pairs == Pairs(100, 70, 55, 100, 20, 5)
    assert found.pairs.p == pytest.approx(2 * 68_406 / 2**25)
    assert found.line == (
        "Joining paid, beyond chance: 70 of 100 test images right together, 55 alone (a network): "
        "+15.0 points (95 % interval +5.1 to +24.3)."
    )
    # (1.95996 + 0.84162)^2 (0.3 - 0.01) / 0.01 = 227.6
    assert images_needed(0.3) == 228
    assert images_needed(0) == images_needed(GAIN_TO_DETECT) == 71


def test_a_gain_over_an_even_mix_alone_is_not_called_joinings():
    found = verdict(*pair(20, 5, 50, 25), lone=EVEN_MIX_ALONE)
    assert found.outcome == "unknown" and "own_mix=true" in found.line
    assert verdict(*pair(5, 20, 50, 25), lone=EVEN_MIX_ALONE).outcome == "harmed"


def test_a_gain_over_a_model_of_the_warm_up_alone_is_not_called_joinings_and_a_harm_is():
    """The joined model was trained for longer, so a gain may be that of more training."""
    found = verdict(*pair(20, 5, 50, 25), lone=WARM_UP_ALONE)
    assert (found.said, found.outcome, found.gain) == ("paid", "unknown", 0.15)
    assert found.line.startswith("Cannot tell whether joining paid: 70 of 100 test images right ")
    assert f"55 alone ({WARM_UP_ALONE}): +15.0 points" in found.line and found.line.endswith(
        f", but together was trained for longer. {COMPARE}."
    )
    worse = verdict(*pair(5, 20, 50, 25), lone=WARM_UP_ALONE)
    assert worse.outcome == "harmed" and worse.line.startswith("Joining did harm, beyond chance: ")
    few = verdict(*pair(6, 5, 50, 25), lone=WARM_UP_ALONE)
    assert few.line.replace(WARM_UP_ALONE, "a network") == verdict(
        *pair(6, 5, 50, 25), lone="a network"
    ).line  # fmt: skip
    one = SiteJoining("north", replace(found, lone=""), 30, (70, 100))
    lines = joining_lines([one], WARM_UP_ALONE)
    assert lines[0] == found.line and lines[1].startswith("Gained beyond chance: 0 of 1")
    assert joining_lines([replace(one, verdict=found)]) == lines, "an older run's page agrees too"


def test_the_same_model_twice_is_not_told_and_two_models_swapped_have_the_verdict_swapped():
    joined, alone, labels = pair(40, 3, 200, 60)
    same = verdict(joined, joined, labels)
    assert (same.said, same.gain, same.pairs.p) == ("unknown", 0, 1)
    there, back = verdict(joined, alone, labels), verdict(alone, joined, labels)
    assert (there.said, back.said) == ("paid", "harmed")
    assert (there.gain, there.low, there.high) == pytest.approx((-back.gain, -back.high, -back.low))


def test_the_extremes():
    every, none = verdict(*pair(100, 0, 0, 0)), verdict(*pair(0, 100, 0, 0))
    assert every.high == 1.0 and 0.9 < every.low < 1.0 and every.said == "paid"
    assert none.low == -1.0 and -1.0 < none.high < -0.9 and none.said == "harmed"
    # Six of six is the least that is beyond chance: 2 / 2^6 = 0.031; five of five is 0.0625.
    assert verdict(*pair(6, 0, 94, 0)).said == "paid"
    assert verdict(*pair(5, 0, 95, 0)).said == "unknown"
    near = verdict(*pair(17, 7, 900, 76))  # p = 0.064; the interval alone would begin above 0
    assert paired_interval(17, 7, 1000)[0] > 0 and (near.said, near.low) == ("unknown", 0.0)


def test_few_images_never_have_a_number():
    found = verdict(*pair(7, 0, 0, 0))
    assert (found.said, found.gain, found.low) == ("unknown", None, None)
    assert found.line.startswith("Cannot tell whether joining paid with 7 test images: about ")
    assert verdict(*pair(MIN_TEST_IMAGES - 1, 0, 0, 0)).gain is None
    assert verdict(*pair(MIN_TEST_IMAGES, 0, 0, 0)).said == "paid"
    assert verdict(*pair(1, 0, 0, 0)).line.startswith("Cannot tell whether joining paid with 1 t")


def test_without_a_model_alone_or_test_images_it_says_what_is_lacking():
    joined, alone, labels = pair(10, 0, 20, 0)
    assert "without a model trained alone" in verdict(joined, None, labels).line
    assert "that others had a part in" in verdict(None, alone, labels).line
    nothing = np.empty((0, 2))
    assert "without test images" in verdict(nothing, nothing, np.empty(0, dtype=np.int64)).line


def test_too_little_for_a_verdict_says_how_many_images_would_do():
    found = verdict(*pair(6, 4, 20, 10))
    assert found.said == "unknown" and found.gain == pytest.approx(0.05)
    assert (
        f"about {images_needed(12 / 42)} test images would show a gain of 10 points" in found.line
    )


def test_ten_copies_of_a_patients_image_say_no_more_than_one():
    """Of each patient ten equal images: the same patients are better and worse, the same p."""
    three, people = pair(8, 3, 10, 9), np.arange(30)
    many = [np.repeat(one, 10, axis=0) for one in (*three, people)]
    one, ten = verdict(*three, patients=people), verdict(*many[:3], patients=many[3])
    assert (one.gain, one.said, one.pairs.p) == (ten.gain, ten.said, ten.pairs.p)
    assert one == verdict(*three), "patients of one image each are images"
    assert (ten.pairs.cases, ten.pairs.better, ten.pairs.worse, ten.low) == (30, 8, 3, None)
    assert verdict(*many[:3]).said == "paid" and ten.said == "unknown"
    assert "; of 30 patients or images 8 better, 3 worse" in ten.line


def test_few_patients_never_have_a_number_however_many_their_images():
    three = pair(20, 5, 50, 25)
    found = verdict(*three, patients=np.arange(100) % (MIN_TEST_IMAGES - 1))
    assert found.gain is None
    assert f"with 100 test images of {MIN_TEST_IMAGES - 1} patients: 20 are" in found.line
    assert verdict(*three, patients=np.arange(100) % MIN_TEST_IMAGES).gain is not None


def test_where_more_patients_gain_than_lose_and_fewer_images_are_right_it_is_not_told():
    pairs = Pairs(300, 140, 160, 60, 20, 4)
    assert pairs.p < FALSE_ALARMS and verdict_of(pairs).said == "unknown"
    assert verdict_of(replace(pairs, together=161)).said == "paid"


def test_counts_alone_have_a_wider_interval_than_pairs_and_say_so():
    """p = 71/102, q = 56/102: 0.14706 +- 1.95996 sqrt((0.21161 + 0.24760) / 102)."""
    assert interval_of_counts(70, 55, 100) == pytest.approx((0.01556, 0.27856), abs=1e-5)
    counts, own = verdict_of(Pairs(100, 70, 55)), verdict(*pair(20, 5, 50, 25))
    assert counts.gain == own.gain and counts.low < own.low and own.high < counts.high
    assert counts.line.endswith("; which of them is not known.")


def test_pairs_add_up_travel_as_numbers_and_wrong_ones_are_none():
    one, two = Pairs(100, 70, 55, 100, 20, 5), Pairs(60, 40, 41, 30, 4, 5)
    assert one + two == Pairs(160, 110, 96, 130, 24, 10)
    assert one + Pairs(10, 5, 5) == Pairs(110, 75, 60), "of mere counts no pairs"
    assert (
        Pairs.read(one.numbers) == Pairs.read({k: v + 1e-6 for k, v in one.numbers.items()}) == one
    )
    assert Pairs.read({}) is Pairs.read(dict.fromkeys(one.numbers, 0)) is None
    for wrong in ("pairs_better", "pairs_cases", "pairs_alone"):
        assert Pairs.read({**one.numbers, wrong: 101}) is None


# --- all sites ------------------------------------------------------------------------------------


def drawn(stream, gain):
    """Return a small run, its sites' pairs: sizes, agreement, patients and the true gains drawn.

    gain: the share of images that a site may truly gain or lose, at most.
    """
    for number in range(stream.integers(1, 12)):
        cases = int(stream.integers(0, 120))
        differ, side = stream.uniform(0.0, 0.6), stream.uniform(-gain, gain)
        side = float(np.clip(side, -differ, differ))
        each = int(stream.integers(1, 4)) if stream.random() < 0.3 else 1
        change = stream.choice(3, cases, p=[(differ + side) / 2, (differ - side) / 2, 1 - differ])
        b, c = int((change == 0).sum()), int((change == 1).sum())
        both = int(stream.integers(0, cases - b - c + 1))
        pairs = Pairs(cases * each, (both + b) * each, (both + c) * each, cases, b, c)
        labelled = 0 if stream.random() < 0.1 else 5
        none = "without a model trained alone"
        said = verdict_of(pairs) if labelled and cases else verdict_of(Pairs(0, 0, 0))
        if not labelled or not cases:
            said = replace(said, pairs=None, why=none)
        right = (pairs.together, pairs.images) if cases else None
        one = "ill" if cases and stream.random() < 0.2 else ""
        yield SiteJoining(f"site {number}", said, labelled, right, one)


def test_no_two_words_of_a_run_contradict_each_other_in_1000_runs():
    stream = np.random.default_rng(48)
    kinds = {"paid": "Joining paid, beyond", "harmed": "Joining did harm, beyond",
             "unknown": "Cannot tell whether joining paid"}  # fmt: skip
    for _ in range(1000):
        run = list(drawn(stream, 0.4))
        pooled, *rest = joining_lines(run, "a network")
        text = " ".join(rest)
        compared = [one for one in run if one.verdict.pairs]
        for one in run:
            said, word = one.verdict, one.verdict.outcome
            if said.pairs is None:
                own = "No labels" if not one.labelled and one.right else "Cannot tell"
                assert one.line.startswith(own)
                continue
            assert one.line == verdict_of(said.pairs).line, "whoever has the pairs says the same"
            assert one.line.startswith(kinds[word])
            if said.low is not None:
                inside = said.low <= 0 <= said.high
                assert inside == (word == "unknown") and said.low <= said.gain <= said.high
            if word != "unknown":
                assert (said.gain > 0) == (said.pairs.better > said.pairs.worse) == (word == "paid")
                assert said.pairs.cases >= MIN_TEST_IMAGES
        warned = [one.name for one in run if one.one_answer]
        last = rest.pop() if warned else ""
        measured = sum(one.right is not None for one in run)
        assert not last or last.startswith(f"Do not use to decide: {len(warned)} of {measured}")
        assert all(f"{name}: 'ill'" in last for name in warned[:8])
        assert "to decide" not in " ".join(rest), "the paired verdict is another question"
        if not compared:
            why = NOT_COMPARED if measured else NOTHING_TOLD
            assert pooled == f"Cannot tell whether joining paid: {why}." and not rest
            continue
        assert pooled.startswith(tuple(kinds.values()))
        for word, title in (("paid", "Gained"), ("harmed", "Lost"), ("unknown", "Cannot be told")):
            number = sum(one.verdict.outcome == word for one in compared)
            assert f"{title} beyond chance: {number} of" in text or f"{title}: {number} of" in text
        assert sum(int(line.split(": ")[1].split(" ")[0]) for line in rest[:3]) == len(compared)


def test_without_a_true_difference_at_most_one_in_twenty_is_called_gain_or_loss():
    """Sites, and all of a run together; 5 standard deviations: fails once in 3.5 million."""
    stream = np.random.default_rng(49)
    runs = [list(drawn(stream, 0.0)) for _ in range(1000)]
    sites = [one.verdict for run in runs for one in run if one.verdict.gain is not None]
    named = sum(one.outcome != "unknown" for one in sites)
    together = [joining_lines(run)[0] for run in runs]
    false = sum("beyond chance" in line for line in together)
    for wrong, of in ((named, len(sites)), (false, len(together))):
        spread = math.sqrt(FALSE_ALARMS * (1 - FALSE_ALARMS) / of)
        assert 0.01 < wrong / of < FALSE_ALARMS + 5 * spread


def test_sites_are_named_in_three_kinds_and_one_without_labels_has_its_own_sentence():
    of = {"north": Pairs(40, 30, 20, 40, 12, 2), "east": Pairs(40, 20, 30, 40, 2, 12),
          "south": Pairs(40, 30, 30, 40, 2, 2)}  # fmt: skip
    sites = [SiteJoining(name, verdict_of(pairs), 5) for name, pairs in of.items()]
    why = replace(verdict_of(Pairs(0, 0, 0)), pairs=None)
    sites.append(SiteJoining("west", why, 0, (90, 93)))
    sites.append(SiteJoining("mill", why, 0))
    lines = joining_lines(sites, "the same closed form")
    assert lines[0].startswith(
        "Cannot tell whether joining paid: 80 of 120 test images right together, 80 alone (the "
        "same closed form): +0.0 points"
    )
    assert lines[1:] == [
        "Gained beyond chance: 1 of 3 sites (north).",
        "Lost beyond chance: 1 of 3 sites (east).",
        "Cannot be told: 1 of 3 sites (south).",
        "No labels to learn from alone, nothing to compare: west is right on 90 of 93 together.",
    ]
    assert sites[3].line == (
        "No labels to learn from alone, nothing to compare: 90 of 93 test images right together."
    )
    summed = joining_lines([], together=Pairs(120, 90, 70, 120, 26, 6))
    assert summed[0].startswith("Joining paid, beyond chance: 90 of 120") and len(summed) == 1
