"""What the server demands of sums and votes: what no images have is refused, the others go on."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load

from fedapp.core.errors import ProtocolError
from fedapp.learn.features.patches import PATCHES_PER_IMAGE, Patches
from fedapp.learn.params import digest_of, to_bytes
from fedapp.methods.base import Arrived
from fedapp.methods.closed_form._contents import (
    COUNT,
    FEW,
    FEW_OTHERS,
    FILTERS,
    FIRST,
    GRID,
    GUESSES,
    LEARN,
    LOGLIK,
    MIN_LOGLIK,
    NEXT,
    OF_OTHERS,
    OTHERS,
    OWN_VOTES,
    ROUNDED,
    ROUNDED_OTHERS,
    SOLUTION,
    SUM_ROLES,
    SUMS,
    VOTE,
    VOTERS,
    VOTES,
    check_closed,
    check_role_asked_for,
    form_of,
    role_asked_for,
    sums_role,
)
from fedapp.methods.closed_form._discriminant import (
    BY_CLASS,
    COUNTS,
    IMAGES,
    SECOND,
    TOTAL,
    Guesses,
    Sums,
)
from fedapp.methods.closed_form._rounded import DIRECTIONS, FACTOR, FEW_IMAGES, STEPS
from fedapp.methods.closed_form.one_round import OneRound
from fedapp.methods.recommended._calibration import Fit
from fedapp.methods.recommended._stack import FITTED, NUMBERS, STACK, check_fitted
from fedapp.protocol.messages import Incoming, ModelRef, Reply, SiteFacts, Task
from tests.methods.conformance import Deal, play, toy

FACTS = SiteFacts(0, (1, 8, 8), ("a", "b"), 6, 4, 5, 4, "0" * 64)
REPLY = Reply(0, 0, "b" * 64)


def drawn(count, size=4, seed=0):
    x = torch.rand(count, size, generator=torch.Generator().manual_seed(seed))
    return x / x.norm(dim=1, keepdim=True).clamp_min(1)


def honest(labelled=6, size=4):
    labels = torch.arange(labelled) % 2
    return Sums.of(drawn(labelled, size), labels, 2).to_params()


def check(role, params, facts=FACTS):
    check_closed({role: Arrived(params, frozenset(params))}, facts)


def refused(role, params, facts=FACTS):
    with pytest.raises(ProtocolError) as found:
        check(role, params, facts)
    assert "\n" not in str(found.value)
    return str(found.value)


# --- sums -----------------------------------------------------------------------------------------


def test_honest_sums_are_taken():
    check(SUMS, honest())
    check(SUMS, honest(), replace(FACTS, unlabelled=0))
    check(SUMS, honest(0), replace(FACTS, labelled=0))


def test_sums_of_many_images_are_rounded_and_taken():
    labels = torch.arange(60_000) % 2
    x = torch.full((60_000, 50), 0.9999 / 50**0.5) + 1e-4 * drawn(60_000, 50)
    x = 0.99999 * x / x.norm(dim=1, keepdim=True)
    check(SUMS, Sums.of(x, labels, 2).to_params(), replace(FACTS, labelled=60_000))


def changed(name, change):
    return {**honest(), name: change(honest()[name])}


def moved(tensor, place, by):
    tensor = tensor.clone()
    tensor[place] += by
    return tensor


@pytest.mark.parametrize(("params", "says"), [
    (changed(COUNTS, lambda t: moved(t, 0, 1)), "counts adds up to 7, the site has 6 labelled"),
    (changed(COUNTS, lambda t: t * 0), "counts adds up to 0, the site has 6 labelled"),
    (changed(COUNTS, lambda t: torch.tensor([-1, 7])), "counts adds up to 6"),
    (changed(COUNTS, lambda t: torch.tensor([2**62, 2**62])), "labelled images"),
    (changed(IMAGES, lambda t: t + 1), "of 7 images, the site has 6"),
    (changed(IMAGES, lambda t: t * 0), "of 0 images, the site has 6"),
    (changed(BY_CLASS, lambda t: t * 3), "longer than the number of its images allows"),
    (changed(BY_CLASS, lambda t: t + 1e30), "longer than the number of its images allows"),
    (changed(TOTAL, lambda t: t + 5), "longer than the number of its images allows"),
    (changed(SECOND, lambda t: t * 3), "has trace"),
    (changed(SECOND, lambda t: t * 0), "not positive semi-definite"),
    (changed(SECOND, lambda t: -t), "not positive semi-definite"),
    (changed(SECOND, lambda t: moved(t, 1, 1e30)), "not positive semi-definite"),
    (changed(SECOND, lambda t: moved(t, 1, 4)), "not positive semi-definite"),
    (changed(SECOND, lambda t: t / 2), "not positive semi-definite"),
    (changed(TOTAL, lambda t: -t), "longer than the number of its images allows"),
], ids=range(16))  # fmt: skip
def test_sums_that_no_images_have_are_refused(params, says):
    found = refused(SUMS, params)
    assert says in found and "the site must send what this version" in found


def test_the_sum_of_all_images_is_that_of_the_classes():
    sums = Sums.of(drawn(6), torch.arange(6) % 2, 2)
    bent = replace(sums, total=sums.total + torch.tensor([0.9, 0, 0, 0]))
    assert "longer than the number" in refused(SUMS, bent.to_params())


def test_sums_of_unlabelled_images_are_of_as_many_as_the_site_has():
    found = Sums.of(drawn(4), torch.full((4,), -1), 0)
    for role in OF_OTHERS:
        params = found.to_params(**form_of(role))
        check(role, params)
        assert "of 4 images, the site has 3" in refused(role, params, replace(FACTS, unlabelled=3))
        longer = {**params, TOTAL: params[TOTAL] * 3}
        assert "longer than the number of its images allows" in refused(role, longer)
    assert "not positive semi-definite" in refused(
        OTHERS, found.to_params() | {SECOND: torch.zeros(10)}
    )
    nothing = Sums.of(drawn(0), torch.empty(0).long(), 0)
    check(OTHERS, nothing.to_params(), replace(FACTS, unlabelled=0))


def rounded(labelled=6, size=4, few=False):
    labels = torch.arange(labelled) % 2
    sums = Sums.of(drawn(labelled, size), labels, 2)
    return sums.to_params(rounded=True, few=few)


@pytest.mark.parametrize("size", [1, 4, 200])
def test_honest_rounded_sums_are_taken(size):
    check(ROUNDED, rounded(size=size))
    check(ROUNDED, rounded(0, size), replace(FACTS, labelled=0))
    check(ROUNDED, rounded(5_000, size), replace(FACTS, labelled=5_000))
    for images in (0, 1, 2, FEW_IMAGES):
        check(FEW, rounded(images, size, few=True), replace(FACTS, labelled=images))


def test_sums_are_of_few_images_up_to_as_many_as_they_have_rows():
    every = (0, FEW_IMAGES, FEW_IMAGES + 1)
    assert [sums_role(False, True, images) for images in every] == [FEW, FEW, ROUNDED]
    assert [sums_role(True, True, images) for images in every] == [
        *(FEW_OTHERS, FEW_OTHERS, ROUNDED_OTHERS)
    ]
    assert [sums_role(others, False, 5) for others in (False, True)] == [SUMS, OTHERS]


@pytest.mark.parametrize("role", [ROUNDED, FEW])
@pytest.mark.parametrize("turn", [0.0, 0.3, 0.7853981634])
def test_honest_rounded_sums_are_taken_where_all_images_of_a_class_are_alike(turn, role):
    """There nothing is left within classes: what rounding takes goes below 0."""
    rows = torch.eye(300)[:3]
    rows[1] = turn * rows[0] + (1 - turn**2) ** 0.5 * rows[1]
    x = torch.repeat_interleave(0.99999 * rows, 50, 0)
    labels = torch.arange(2).repeat_interleave(50)
    params = Sums.of(x[:100], labels, 2).to_params(**form_of(role))
    check(role, params, replace(FACTS, labelled=100))


@pytest.mark.parametrize("role", [ROUNDED, FEW])
@pytest.mark.parametrize("by", [1 / STEPS, 0.01, 1.0])
def test_rounded_sums_whose_classes_lie_farther_apart_than_all_images_are_refused(by, role):
    """Impossible by no more than rounding they are taken, as are possible ones."""
    apart = torch.zeros(6, 4)
    apart[:, 0] = torch.tensor([0.5, -0.5]).repeat(3)
    sums = Sums.of(apart, torch.arange(6) % 2, 2)
    less = replace(sums, second=(1 - by) * sums.second)
    if by > 1 / STEPS:
        assert "not positive semi-definite" in refused(role, less.to_params(**form_of(role)))
    else:
        check(role, less.to_params(**form_of(role)))


@pytest.mark.parametrize("role", [ROUNDED, FEW])
@pytest.mark.parametrize(("change", "says"), [
    (lambda p: p | {COUNTS: p[COUNTS] + 1}, "the site has 6 labelled"),
    (lambda p: p | {IMAGES: p[IMAGES] * 0}, "of 0 images, the site has 6"),
    (lambda p: p | {BY_CLASS: 3 * p[BY_CLASS]}, "longer than the number of its images allows"),
    (lambda p: p | {"deviations": 2 * p["deviations"] + 1}, "has trace"),
    (lambda p: p | {"deviations": p["deviations"] + 3e38}, "has trace"),
    (lambda p: p | {"deviations": 0 * p["deviations"]}, "not positive semi-definite"),
    (lambda p: p | {TOTAL: 0 * p[TOTAL]}, "longer than the number of its images allows"),
    (lambda p: p | {FACTOR: p[FACTOR] * 0}, "not positive semi-definite"),
], ids=range(8))  # fmt: skip
def test_rounded_sums_that_no_images_have_are_refused(change, says, role):
    assert says in refused(role, change(rounded(few=role == FEW)))


@pytest.mark.parametrize("role", [SOLUTION, GRID, FILTERS, DIRECTIONS])
def test_what_the_server_alone_makes_is_refused(role):
    assert f"sent a {role}, which the server alone makes" in refused(role, {})


# --- guesses ------------------------------------------------------------------------------------


def guesses(answers=((0.5, 0.5), (1.0, 0.0), (0.0, 1.0), (0.2, 0.8))):
    return Guesses.of(drawn(4, seed=1), torch.tensor(answers)).to_params()


def test_guesses_are_of_the_sites_unlabelled_images():
    check(GUESSES, guesses())
    lacking = replace(FACTS, unlabelled=5)
    assert "adds up to 4, the site has 5 unlabelled images" in refused(GUESSES, guesses(), lacking)
    less = guesses(((1.5, -0.5),) * 4)
    assert "unlabelled images" in refused(GUESSES, less)
    check(
        GUESSES, Guesses.of(drawn(0), torch.empty(0, 2)).to_params(), replace(FACTS, unlabelled=0)
    )


def test_guesses_no_longer_than_their_images():
    params = guesses()
    longer = {**params, BY_CLASS: 4 * params[BY_CLASS]}
    assert "longer than its images allow" in refused(GUESSES, longer)


# --- votes ----------------------------------------------------------------------------------------


def votes(*loglik, images=0.0):
    return {LOGLIK: torch.tensor(loglik), VOTERS: torch.tensor([images])}


@pytest.mark.parametrize("role", [VOTES, OWN_VOTES])
def test_votes_are_of_the_sites_validation_images(role):
    check(role, votes(-1.0, 0.0, 5 * MIN_LOGLIK))
    for loglik in ((0.1, -1.0), (5 * MIN_LOGLIK - 1, -1.0), (-3e38, -1.0)):
        assert "of the site's 5 validation images" in refused(role, votes(*loglik))
    nobody = replace(FACTS, val=0)
    check(role, votes(0.0, 0.0), nobody)
    assert "of the site's 0 validation" in refused(role, votes(-1.0, 0.0), nobody)
    check(role, votes(-1.0, 0.0, images=5.0))
    for images in (5.5, -1.0, float("nan")):
        assert "the site has 5 for validation" in refused(role, votes(-1.0, images=images))


# --- what was asked for ---------------------------------------------------------------------------


@pytest.mark.parametrize(("action", "named", "role"), [
    (COUNT, FILTERS, SUMS), (VOTE, GRID, VOTES), (VOTE, SOLUTION, OWN_VOTES),
    (LEARN, FILTERS, FIRST),
])  # fmt: skip
def test_an_answer_holds_what_was_asked_for_and_no_more(action, named, role):
    ref = ModelRef(0, 0, "b" * 64)
    task = Task(0, 0, action, ref, {named: (ref,)}, numbers={"step": 0.0})
    check_role_asked_for(task, replace(REPLY, contents={role: "c" * 64}))
    for contents in ({}, {NEXT: "c" * 64}, {role: "c" * 64, NEXT: "d" * 64}):
        with pytest.raises(ProtocolError, match=f"asked for its {role}, it sent"):
            check_role_asked_for(task, replace(REPLY, contents=contents))
    check_role_asked_for(replace(task, action="evaluate"), REPLY)


def test_the_task_says_which_sums_it_asks_for():
    ref = ModelRef(0, 0, "b" * 64)
    task = Task(0, 0, COUNT, ref, {FILTERS: (ref,)})
    assert role_asked_for(task) == SUMS
    for role in SUM_ROLES:
        assert role_asked_for(replace(task, numbers={role: 1.0})) == role


# --- sums of patches ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def learning():
    """Filters and honest sums of 7 images: of the first exchange, and of a later one."""
    features, x = Patches((1, 10, 10), 0, 6), torch.randn(7, 1, 10, 10)
    first = features.sums(0, x)
    features.learned(0, first)
    return features, first, features.sums(1, x)


def test_honest_sums_of_patches_are_taken(learning):
    features, first, later = learning
    fresh = Patches((1, 10, 10), 0, 6)
    assert not fresh.impossible(0, first, 7) and not features.impossible(1, later, 7)
    nothing = torch.empty(0, 1, 10, 10)
    for step in (0, 1):
        assert not features.impossible(step, features.sums(step, nothing), 0)
        even = features.sums(step, torch.ones(3, 1, 10, 10))
        assert not features.impossible(step, even, 3)
    strong = 1e3 * torch.randn(200, 1, 10, 10).sign()
    for step in (0, 1):
        assert not features.impossible(step, features.sums(step, strong), 200)


@pytest.mark.parametrize(("change", "says"), [
    (lambda s: s | {"count": s["count"] + 1}, "patches, 7 images have"),
    (lambda s: s | {"count": -s["count"]}, "patches, 7 images have"),
    (lambda s: s | {"products": s["products"] * 40}, "products of patches add up to"),
    (lambda s: s | {"products": -s["products"]}, "products of patches add up to"),
    (lambda s: s | {"products": s["products"] * 0}, "semi-definite"),
    (lambda s: s | {"products": s["products"].tril()}, "semi-definite"),
    (lambda s: s | {"products": s["products"].flip(0)}, ""),
    (lambda s: s | {"sum": s["sum"] + 40}, "semi-definite"),
    (lambda s: s | {"sum": s["sum"] + 1e200}, "semi-definite"),
    (lambda s: s | {"products": s["products"] + 1e300}, ""),
], ids=range(10))  # fmt: skip
def test_first_sums_of_patches_that_no_images_have(learning, change, says):
    features, first, _ = learning
    found = features.impossible(0, change(first), 7)
    assert found and says in found and "\n" not in found


@pytest.mark.parametrize("change", [
    lambda s: s | {"weight": s["weight"] + 1e6},
    lambda s: s | {"weight": s["weight"] * -1e6},
    lambda s: s | {"sum": s["sum"] * 1e6},
    lambda s: s | {"sum": s["sum"] + 1e200},
], ids=range(4))  # fmt: skip
def test_later_sums_of_patches_that_no_images_have(learning, change):
    features, _, later = learning
    assert "more than 7 images have" in features.impossible(1, change(later), 7)


def test_more_images_have_more_patches(learning):
    features, first, later = learning
    assert float(first["count"]) == 7 * min(PATCHES_PER_IMAGE, features.places)
    assert features.impossible(0, first, 8) and features.impossible(0, first, 6)
    assert features.impossible(1, later, 0)


# --- fitted sums ----------------------------------------------------------------------------------


def fit(**changes):
    stream = torch.Generator().manual_seed(0)
    logits = [2 * torch.randn(5, 2, generator=stream) for _ in range(2)]
    halves = torch.tensor([0.5, 0.5]).double()
    found = Fit.of(logits, torch.tensor([0, 1, 1, 0, 1]), torch.tensor([0.3, 0.7]), halves)
    return replace(
        found, **{name: change(getattr(found, name)) for name, change in changes.items()}
    )


def check_fit(found, facts=FACTS):
    params = {NUMBERS: found.to_numbers()}
    check_fitted({FITTED: Arrived(params, frozenset(params))}, facts)


def test_honest_fitted_sums_are_taken():
    check_fit(fit())
    nothing = Fit.of([torch.empty(0, 2)] * 2, torch.empty(0).long(), torch.ones(2) / 2,
                     torch.ones(2))  # fmt: skip
    check_fit(nothing, replace(FACTS, val=0))
    check_fitted({}, FACTS)


@pytest.mark.parametrize(("changes", "says"), [
    ({"images": lambda n: n + 1}, "the site has 5 validation images"),
    ({"images": lambda n: -1.0}, "the site has 5 validation images"),
    ({"right": lambda n: 6.0}, "the site has 5 validation images"),
    ({"right": lambda n: -1.0}, "the site has 5 validation images"),
    ({"loglik": lambda n: 0.5}, "the site has 5 validation images"),
    ({"curvature": lambda t: -t}, "not positive semi-definite"),
    ({"curvature": lambda t: t.tril()}, "not positive semi-definite"),
    ({"curvature": lambda t: t.triu() + 9 * torch.ones_like(t).triu(1)}, "semi-definite"),
    ({"images": lambda n: 0.0, "right": lambda n: 0.0}, "of 0 images"),
], ids=range(9))  # fmt: skip
def test_fitted_sums_that_no_images_have_are_refused(changes, says):
    with pytest.raises(ProtocolError) as found:
        check_fit(fit(**changes))
    assert says in str(found.value) and "\n" not in str(found.value)


def test_a_stack_is_the_servers():
    with pytest.raises(ProtocolError, match="sent a stack, which the server alone makes"):
        check_fitted({STACK: SimpleNamespace()}, FACTS)


# --- in a run -------------------------------------------------------------------------------------


def spoil(asked, change, site=1):
    """Let one site's answers have other contents: role -> bytes. asked: the role, or the action."""

    def tamper(task, incoming):
        if (
            asked not in (role_asked_for(task), task.action)
            or task.site != site
            or not isinstance(incoming.answer, Reply)
        ):
            return incoming
        reply = incoming.answer
        [(role, digest)] = reply.contents.items()
        blobs = change(role, load(incoming.payloads[digest]))
        contents = {role: digest_of(blob) for role, blob in blobs.items()}
        answer = replace(reply, contents=contents)
        return Incoming(answer, {digest_of(blob): blob for blob in blobs.values()})

    return tamper


def nothing(role, params):
    return {}


def twice(role, params):
    return {role: to_bytes({name: 2 * tensor for name, tensor in params.items()})}


def not_finite(role, params):
    return {role: to_bytes({n: t / 0 if t.is_floating_point() else t for n, t in params.items()})}


def shorter(role, params):
    return {role: to_bytes({n: t[:-1] if t.dim() else t for n, t in params.items()})}


def another(name):
    return lambda role, params: {name: to_bytes(params)}


DEALS = (Deal(20, 9, 12, 6), Deal(9, 12, 12, 6), Deal(12, 6, 12, 6))


@pytest.mark.parametrize(("asked", "change", "says"), [
    (SUMS, nothing, "asked for its sums, it sent nothing"),
    (SUMS, twice, "of 18 images, the site has 9"),
    (SUMS, not_finite, "holds NaN or infinity"),
    (SUMS, shorter, "tensor"),
    (SUMS, another("solution"), "asked for its sums, it sent solution"),
    (SUMS, another("odd"), "sent odd; its method has"),
    (GUESSES, nothing, "asked for its guesses, it sent nothing"),
    (VOTES, nothing, "asked for its votes, it sent nothing"),
    (VOTES, not_finite, "holds NaN or infinity"),
    (VOTES, shorter, "tensor"),
    (OWN_VOTES, nothing, "asked for its own_votes, it sent nothing"),
    (OWN_VOTES, another("votes"), "asked for its own_votes, it sent votes"),
], ids=lambda value: getattr(value, "__name__", str(value))[:20])  # fmt: skip
def test_a_bad_answer_is_refused_by_name_and_the_others_go_on(
    tmp_path, capsys, asked, change, says
):
    experiment = toy(OneRound(), tmp_path, DEALS, rounds__num_rounds=1)
    played = play(experiment, spoil(asked, change))
    first = played.rows()[0]
    assert first["skipped"].keys() == {"1"} and says in first["skipped"]["1"]
    told = [line for line in capsys.readouterr().out.splitlines() if "site 1 skipped" in line]
    assert told and all(says in line for line in told)  # a line for each time that it was asked
    assert played.rows()[-1]["sites_evaluated"] == 3


@pytest.mark.parametrize("role", [VOTES, OWN_VOTES])
def test_an_answer_without_contents_that_is_taken_ends_nothing(tmp_path, monkeypatch, role):
    """The server goes on without it, whoever lets it through."""
    monkeypatch.setattr(
        "fedapp.methods.closed_form.one_round.check_role_asked_for", lambda task, reply: None
    )
    played = play(toy(OneRound(), tmp_path, DEALS, rounds__num_rounds=1), spoil(role, nothing))
    assert played.rows()[-1]["sites_evaluated"] == 3


@pytest.mark.parametrize("step", [0, 3])
def test_bad_sums_of_patches_are_left_out_and_the_others_go_on(tmp_path, capsys, step):
    def huge(role, params):
        return {role: to_bytes({n: t * 1e9 for n, t in params.items()})}

    def tamper(task, incoming):
        if task.numbers.get("step") != step:
            return incoming
        return spoil(NEXT if step else FIRST, huge)(task, incoming)

    method = OneRound(features="patches")
    bad = play(toy(method, tmp_path / "bad", DEALS, rounds__num_rounds=1), tamper)
    told = [line for line in capsys.readouterr().out.splitlines() if "left out" in line]
    assert len(told) == 1 and f"site 1: its {NEXT if step else FIRST} are left out" in told[0]
    assert not any(row["skipped"] for row in bad.rows())
    assert bad.rows()[-1]["sites_evaluated"] == 3
