"""The state machine of masked sums, searched: each rule is needed, and together they hold."""

import pytest

from tests.security.masked_model import (
    DEEPER,
    FALLS,
    HOLDS,
    RULES,
    SECOND,
    Model,
    fall,
    replace,
    search,
)


@pytest.mark.parametrize("title", HOLDS)
def test_no_order_of_steps_breaks_a_promise(title):
    found = search(HOLDS[title])
    assert found.found is None, f"{title}: {found.found}"
    assert found.whole and found.states > 50


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("title", DEEPER)
def test_no_longer_order_of_steps_breaks_a_promise(title):
    found = search(DEEPER[title])
    assert found.found is None, f"{title}: {found.found}"
    assert found.whole


@pytest.mark.parametrize("rule", FALLS)
def test_without_a_rule_the_search_finds_how_a_promise_falls(rule):
    """So the search can fail, and every rule is needed. `-s` shows the steps."""
    found = fall(rule)
    assert found is not None, f"nothing falls without the rule that {RULES[rule]}"
    print(f"\nWithout the rule that {RULES[rule]}:\n{found}")


def test_every_rule_is_taken_away_once():
    assert {*FALLS, *SECOND} == RULES.keys()


@pytest.mark.parametrize(("rule", "model"), [
    ("run", Model(runs=2, attempts=1)),
    ("announcements", Model()),
])  # fmt: skip
def test_what_a_second_lock_holds_alone(rule, model):
    """At this size other rules hold what these hold too: one journal, fresh keys, the head."""
    found = search(replace(model, without=frozenset({rule})))
    assert found.found is None and found.whole
