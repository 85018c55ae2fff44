"""All sites' images together: what follows from the confusion matrices that sites send anyway."""

import pytest

from fedapp.protocol.messages import Evaluation, Reply, SiteFacts
from fedapp.server.standings import Standing, Standings


def facts(site):
    return SiteFacts(site, (1, 8, 8), ("healthy", "ill"), 5, 5, 10, 10, "0" * 64)


def cases(right, wrong):
    """One site's test images: of class 1 so many found and missed; of class 0 forty, all right."""
    confusion = ((40, 0), (wrong, right))
    count = 40 + right + wrong
    bins = (0,) * 14
    return Evaluation(confusion, (*bins, count), (*bins, 40 + right), (*bins, float(count)))


def test_hospitals_with_0_to_2_cases_are_not_ranked_and_do_not_count_like_those_with_200():
    """Every hospital finds 80 % of its cases; those with one or two of them come first and last."""
    sizes = [200, 200, 0, 1, 1, 2, 2]
    found = [160, 160, 0, 1, 0, 2, 0]
    run = Standings({k: Standing(facts(k)) for k in range(7)})
    own = [cases(right, size - right) for size, right in zip(sizes, found, strict=True)]
    run.close_round(
        1,
        [Reply(site=k, round=1, model="0" * 64, evaluations={"test": one, "val": one})
         for k, one in enumerate(own)],
        {},
    )  # fmt: skip
    of_sites = [found[k] / sizes[k] for k in range(7) if sizes[k]]
    ranked = sorted(range(7), key=lambda k: -(found[k] / sizes[k]) if sizes[k] else 0)
    assert {3, 5} <= set(ranked[:2]) and abs(sum(of_sites) / 6 - 0.6) < 1e-9, "the pitfall"
    summary = run.summary()
    case = summary["by_class"][1]
    assert case["images"] == 406 and case["sites_with_few"] == 4
    assert case["sensitivity"] == pytest.approx(323 / 406)
    pooled = summary["pooled"]["balanced_accuracy"]
    assert pooled["final"] == pytest.approx((1 + 323 / 406) / 2)
    assert pooled["best_by_validation_round"] == 1


def test_all_sites_images_together_are_the_sum_of_their_latest():
    run = Standings({k: Standing(facts(k)) for k in range(2)})

    def say(number, site, one):
        return Reply(site=site, round=number, model="0" * 64, evaluations={"test": one, "val": one})

    run.close_round(0, [say(0, 0, cases(3, 7)), say(0, 1, cases(9, 1))], {})
    row = run.close_round(1, [say(1, 0, cases(10, 0))], {})
    again = Standings(dict(run.sites)).close_round(1, [], {})
    for of in (row, again):
        assert of["pooled_test_balanced_accuracy"] == pytest.approx((1 + 19 / 20) / 2)


def test_a_class_of_few_images_at_all_sites_together_has_no_number():
    run = Standings({0: Standing(facts(0))})
    one = cases(2, 1)
    run.close_round(1, [Reply(site=0, round=1, model="0" * 64, evaluations={"test": one})], {})
    [healthy, case] = run.summary()["by_class"]
    assert healthy["sensitivity"] == 1 and healthy["specificity"] is None
    assert (case["images"], case["sensitivity"], case["specificity"]) == (3, None, 1)
