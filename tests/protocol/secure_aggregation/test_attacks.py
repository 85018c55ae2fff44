"""What a hostile server and hostile sites try, and what comes of it."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from fedapp.protocol.messages import Announcement, OpenedShare, SumAnswer
from fedapp.protocol.secure_aggregation.context import MaskError
from fedapp.protocol.secure_aggregation.fixed_point import from_words, max_number, to_words
from fedapp.protocol.secure_aggregation.keys import SumSecrets, mask_key, own_mask_digest
from fedapp.protocol.secure_aggregation.masking import add_own, add_pairs, remove_own
from fedapp.protocol.secure_aggregation.neighbour_graph import quorum
from fedapp.protocol.secure_aggregation.secret_sharing import combine_shares, split_secret
from fedapp.protocol.secure_aggregation.server_session import boxes_by_receiver
from fedapp.protocol.secure_aggregation.simulated_keys import (
    simulated_agreed,
    simulated_secret,
    simulated_signer,
)
from fedapp.protocol.secure_aggregation.site_session import (
    MaskSite,
    check_announcement,
    check_confirmation,
)
from tests.protocol.secure_aggregation.sums import (
    CONTEXT,
    QUESTION,
    SEED,
    Sum,
    site,
    total,
    with_share,
)


def rows(sites: int, numbers: int = 4) -> np.ndarray:
    return np.random.default_rng(sites).normal(size=(sites, numbers)).round(3)


def secrets_of(k: int) -> SumSecrets:
    return SumSecrets(simulated_secret(SEED, k), CONTEXT, k)


def refused(match: str):
    return pytest.raises(MaskError, match=match)


# --- the overlap: a site named as survivor to some, as lost to others -----------------------------


def gathered(
    one: Sum, victim: int, shown: Mapping[int, bool], colluding: set[int]
) -> dict[str, bytes | None]:
    """Both secrets of a victim as far as a server can put them together from what sites open.

    shown: whether an honest site is shown the victim as a survivor. It opens one share accordingly;
    a colluding one gives both. Signatures are left aside.
    """
    shares: dict[str, dict[int, bytes]] = {"own": {}, "pairs": {}}
    cohort, threshold = one.cohort, quorum(len(one.members))
    secrets = secrets_of(victim)
    for which, secret in (("own", secrets.own), ("pairs", secrets.pairs)):
        coefficients = secrets.coefficients(which, cohort, threshold - 1)
        for holder, share in split_secret(secret, coefficients, one.members).items():
            if holder in colluding or shown[holder] == (which == "own"):
                shares[which][holder] = share
    return {
        which: combine_shares(dict(list(of.items())[:threshold])) if len(of) >= threshold else None
        for which, of in shares.items()
    }


@pytest.mark.parametrize("sites", [4, 5, 7, 9, 10])
def test_no_way_of_showing_it_gives_both_secrets_of_a_site(sites):
    """c < n / 3 collude: n - c honest give one share each, c give both; 2 t of them are needed."""
    one = Sum(rows(sites))
    colluding = set(range(sites - (sites - 1) // 3, sites))
    honest = [k for k in one.members if k not in colluding]
    secrets = secrets_of(0)
    for told in range(len(honest) + 1):
        shown = {k: place < told for place, k in enumerate(honest)}
        found = gathered(one, 0, shown, colluding)
        right = (found["own"] == secrets.own) + (found["pairs"] == secrets.pairs)
        assert right <= 1


def test_a_third_that_colludes_has_both_and_the_numbers():
    """The border of what is proven: n = 6, c = 2. Where c < n / 3 does not hold, nothing does."""
    one = Sum(rows(6))
    found = gathered(one, 0, {0: True, 1: True, 2: False, 3: False}, {4, 5})
    secrets = secrets_of(0)
    assert found == {"own": secrets.own, "pairs": secrets.pairs}


def test_two_lists_of_survivors_cannot_both_be_confirmed():
    """Honest sites sign one list each; colluding ones any. Some list always lacks signatures."""
    for sites in range(3, 400):
        colluding, needed = (sites - 1) // 3, quorum(sites)
        honest = sites - colluding
        for first in range(honest + 1):
            assert first + colluding < needed or honest - first + colluding < needed


def test_a_site_opens_only_the_list_that_was_confirmed():
    one = Sum(rows(6))
    others = one.survivors[1:]
    with refused(r"site 1: its confirmation is not signed for this sum"):
        one.open(1, survivors=others, confirmations=one.confirmations[1:])
    with refused(r"^3 of 6 survivors confirmed .* 4 must: no site opens"):
        one.open(1, confirmations=one.confirmations[:3])
    with refused(r"^5 of 5 survivors confirmed"):  # site 0 signed, and is not in the list
        one.open(1, survivors=others)
    with refused("confirmations of a masked sum must be ascending, each once"):
        one.open(1, confirmations=(one.confirmations[0],) * 4)
    forged = [replace(one.confirmations[2], site=k) for k in range(4)]
    with refused("site 0: its confirmation came under a key that is not the agreed one"):
        one.open(1, confirmations=tuple(forged))


def test_without_confirmations_a_server_could_part_the_survivors():
    """Why there is a fifth step: of 100 sites, 33 colluding, 65 of 67 honest could be named lost.

    Each honest site is shown a list of 67 survivors. A site counts as lost where 34 honest ones
    were shown so, beside the 33 that collude. Lists are dealt so that this holds for 65 of them.
    """
    needed, colluding, honest = quorum(100), 33, 67
    left_out = np.zeros((honest, honest), bool)  # by whom, whom
    for whom in range(65):
        freest = np.argsort(left_out.sum(1), kind="stable")
        by = [k for k in freest if k != whom][: needed - colluding]
        left_out[by, whom] = True
    assert left_out.sum(1).max() <= 100 - needed  # every list has survivors enough
    lost = left_out.sum(0) + colluding >= needed
    assert lost.sum() == 65


# --- keys -----------------------------------------------------------------------------------------


def hostile(one: Announcement, number: int) -> Announcement:
    """An announcement of a site by a key that the server made."""
    agreed = {number: ""}
    signer = simulated_signer(99, number)
    agreed |= simulated_agreed(99, number + 1)
    made = MaskSite(number, bytes(32), signer, agreed, 3).announce(CONTEXT).announcement
    assert made is not None and made.box != one.box
    return made


CHANGED = {
    "another key": (lambda one: hostile(one, 2), "site 2: .* came under a key that is not"),
    "another mask": (lambda one: replace(one, mask=one.box), "site 2: its .* is not signed"),
    "another box": (lambda one: replace(one, box=one.mask), "site 2: its .* is not signed"),
    "another own": (lambda one: replace(one, own="0" * 64), "site 2: its .* is not signed"),
    "another signature": (lambda one: replace(one, signature="00" * 64), "site 2: .* not signed"),
    "no signature": (lambda one: replace(one, signature=""), "site 2: .* not signed"),
    "no key": (lambda one: replace(one, signer=""), "site 2: .* not the agreed one"),
    "another's": (lambda one: replace(site(1, 4).announce(CONTEXT).announcement, site=2),
                  "site 2: its announcement came under a key"),
    "another round's": (lambda one: of_context(round=3), "site 2: .* not signed for this sum"),
    "another number's": (lambda one: of_context(number=0), "site 2: .* not signed for this sum"),
    "another run's": (lambda one: of_context(identity="run-0"), "site 2: .* not signed for this"),
    "another name's": (lambda one: of_context(run="other"), "site 2: .* not signed for this sum"),
    "another attempt's": (lambda one: of_context(attempt=1), "site 2: .* is for attempt 1, this"),
    "other settings'": (lambda one: of_context(experiment="f"), "site 2: .* not signed for this"),
}  # fmt: skip


def of_context(**other: object) -> Announcement:
    made = site(2, 4).announce(replace(CONTEXT, **other)).announcement  # type: ignore[arg-type]
    assert made is not None
    return made


@pytest.mark.parametrize("stage", ["share", "add", "open"])
@pytest.mark.parametrize("kind", CHANGED)
def test_changed_and_replayed_keys_are_refused_at_every_step(kind, stage):
    change, words = CHANGED[kind]
    one = Sum(rows(4))
    step = one.step(stage, 0)
    if stage == "open":
        step = replace(step, survivors=one.survivors, confirmations=one.confirmations)
    wrong = list(step.announcements)
    wrong[2] = change(wrong[2])
    step = replace(step, announcements=tuple(wrong))
    here = one.sites[0]
    does = {"share": here.share, "open": here.open_shares}
    with refused(words) as error:
        if stage == "add":
            here.add_masks(CONTEXT, step, one.words(0), QUESTION)
        else:
            does[stage](CONTEXT, step)
    assert "\n" not in str(error.value)


def test_an_announcement_of_its_own_that_is_out_of_date_is_refused():
    """The server keeps the first of two: others would mask with keys that the site has no more."""
    one = Sum(rows(4))
    step = one.step("share", 1)
    anew = MaskSite(1, b"\1" * 32, one.sites[1].signer, one.sites[1].agreed, 3)
    with refused("site 1: has other keys by now"):
        anew.share(CONTEXT, step)


def test_a_site_that_copies_anothers_key_does_not_cancel_its_masks():
    """Site 0 announces the key of site 2: site 1 adds a mask with 2 and subtracts one with 0."""
    one = Sum(rows(4))
    copied = replace(one.announcements[0], mask=one.announcements[2].mask)
    text = CONTEXT.bind("announce", 0, copied.box, copied.mask, copied.own)
    one.announcements[0] = replace(copied, signature=simulated_signer(SEED, 0).sign(text))
    words = one.masked(1)
    cancelled = one.words(1).copy()
    cohort, key = one.cohort, mask_key(secrets_of(1).pairs)
    add_own(cancelled, secrets_of(1).own, cohort)
    add_pairs(cancelled, 1, key, {3: one.announcements[3].mask}, one.named)
    assert not np.array_equal(words, cancelled)


def test_keys_whose_masks_everybody_knows_are_refused_by_name():
    """The site itself signs them; the server finds it out before it sends them on."""
    one = Sum(rows(4))
    for which in ("box", "mask"):
        low = replace(one.announcements[2], **{which: "00" * 32})
        text = CONTEXT.bind("announce", 2, low.box, low.mask, low.own)
        low = replace(low, signature=simulated_signer(SEED, 2).sign(text))
        with refused("^site 2: announced what is no key of X25519; leave it out"):
            check_announcement(CONTEXT, low, one.sites[0].agreed)
        four = tuple(low if k == 2 else one.announcements[k] for k in one.members)
        with refused("^site 2: announced what is no key"):
            one.sites[0].share(CONTEXT, replace(one.step("share", 0), announcements=four))


def test_a_server_sorts_out_what_would_stop_all_sites():
    one = Sum(rows(4))
    agreed, named = one.sites[0].agreed, one.step("confirm", 0, survivors=one.survivors)
    for k in one.members:
        check_announcement(CONTEXT, one.announcements[k], agreed)
        check_confirmation(CONTEXT, named, one.confirmations[k], agreed)
    with refused("site 2: .* not signed for this sum"):
        check_announcement(CONTEXT, replace(one.announcements[2], own="0" * 64), agreed)
    with refused("site 2: .* not signed for this sum"):
        fewer = replace(named, survivors=one.survivors[1:])
        check_confirmation(CONTEXT, fewer, one.confirmations[2], agreed)
    with refused("site 9: .* not the agreed one"):
        check_announcement(CONTEXT, replace(one.announcements[2], site=9), agreed)


def test_a_site_with_another_registered_key_does_not_begin():
    agreed = simulated_agreed(SEED, 4)
    with refused("site 1: its registered key is not the one that was agreed on"):
        MaskSite(1, bytes(32), simulated_signer(SEED, 2), agreed, 3)


# --- a question of its own (Pasquini, Francati and Ateniese 2022) --------------------------------


@pytest.mark.parametrize("alone", [{0}, {1, 3}, {0, 1, 2, 3}], ids=str)
@pytest.mark.parametrize("late", [set(), {4}], ids=str)
def test_sites_that_are_asked_something_else_hide_in_masks_that_do_not_cancel(alone, late):
    """Whatever the server takes off: between the two groups masks stay, a stream of AES.

    Of 64,000 bits the share of ones strays by 5 deviations once in 1.7 million.
    """
    numbers = np.ones((6, 1000))
    one = Sum(numbers, late=late, asked=dict.fromkeys(alone, "8" * 64))
    left = one.unmasked().words - total(one.words(k) for k in one.survivors)
    bits = np.unpackbits(left.view(np.uint8))
    assert abs(bits.mean() - 0.5) < 5 * 0.5 / len(bits) ** 0.5


def test_sites_that_are_all_asked_the_same_are_added_whatever_it_is():
    """Where nobody is lost the server need not even say what it was."""
    one = Sum(rows(6), asked=dict.fromkeys(range(6), "8" * 64))
    assert np.allclose(one.result(), rows(6).sum(0), atol=1e-8)


# --- who takes part -------------------------------------------------------------------------------


def test_a_cohort_of_two_is_refused_by_every_setting():
    with refused("masked sums of 2 sites: must be of 3 or more"):
        site(0, 4, least=2)


def shares(one: Sum, members: tuple[int, ...], number: int = 0) -> SumAnswer:
    announcements = tuple(one.announcements[k] for k in members if k in one.announcements)
    step = replace(one.step("share", 0), members=members, announcements=announcements)
    return one.sites[number].share(CONTEXT, step)


@pytest.mark.parametrize(("members", "words"), [
    ((0, 1), "2 members of a masked sum: site 0 takes part from 5 on; wait"),
    ((0,), "1 members .* from 5 on"),
    ((), "site 0 is asked, and is not among the members"),
    ((0, 6, 7, 8), "4 members"),  # all honest ones but one are left out
    ((1, 2, 3, 4, 5), "site 0 is asked, and is not among the members"),
    ((0, 1, 2, 3, 3, 4), "members of a masked sum must be ascending, each once"),
    ((0, 2, 1, 3, 4), "members of a masked sum must be ascending"),
    ((0, 1, 2, 3, 4, 77), "site 77 is a member .*: no key of it was agreed on"),
])  # fmt: skip
def test_members_that_no_site_accepts(members, words):
    one = Sum(rows(9), least=5)
    with refused(words):
        shares(one, members)
    masks = replace(one.step("add", 0), members=members)
    with refused(words):
        one.sites[0].add_masks(CONTEXT, masks, one.words(0), QUESTION)


@pytest.mark.parametrize(("survivors", "words"), [
    ((0, 1, 2, 3, 4), "5 of 9 sites are left in a masked sum, 6 must be"),
    ((0, 1, 2, 3), "4 survivors of a masked sum: site 0 takes part from 5 on"),
    ((0,), "1 survivors"),
    ((1, 2, 3, 4, 5, 6), "site 0 is asked, and is not among the survivors"),
    ((0, 1, 2, 3, 4, 5, 77), "site 77 is named as a survivor .* it is no member"),
    ((0, 1, 2, 3, 4, 5, 5), "survivors of a masked sum must be ascending, each once"),
    ((1, 0, 2, 3, 4, 5), "survivors of a masked sum must be ascending"),
])  # fmt: skip
def test_survivors_that_no_site_confirms_or_opens(survivors, words):
    one = Sum(rows(9), least=5)
    with refused(words):
        one.confirm(0, survivors=survivors)
    with refused(words):
        one.open(0, survivors=survivors)


def test_steps_keep_their_order_and_number():
    one = Sum(rows(4))
    with refused("step 'add' of sum 1, attempt 2: sum 1, attempt 2, is at 'share'"):
        one.sites[0].share(CONTEXT, one.step("add", 0))
    for other in {"number": 0}, {"attempt": 1}:
        with refused("step 'share' of sum .* sum 1, attempt 2, is at 'share'"):
            one.sites[0].share(CONTEXT, replace(one.step("share", 0), **other))


@pytest.mark.parametrize("chosen", [(0, 1, 2), (0, 1, 2, 3, 3), (1, 0, 2, 3), ()])
def test_announcements_are_those_of_all_neighbours(chosen):
    one = Sum(rows(4))
    announcements = tuple(one.announcements[k] for k in chosen)
    with refused("must be those of the 4 sites that share secrets with site 0"):
        one.sites[0].share(CONTEXT, replace(one.step("share", 0), announcements=announcements))


def test_other_members_to_each_site_leave_noise():
    """Site 0 is told that 3 is no member: its masks do not cancel, and nothing is learned."""
    one, fewer = Sum(rows(4)), Sum(rows(4)[:3])
    fewer.sites[0] = one.sites[0]
    words = total([fewer.masked(0), *(one.masked(k) for k in (1, 2, 3))])
    one.total = words  # type: ignore[misc]
    with refused("can give at most"):
        from_words(one.unmasked().words, 4, largest=10)


# --- boxes and shares -----------------------------------------------------------------------------


def test_boxes_of_strangers_for_others_and_twice_are_refused():
    one = Sum(rows(4))
    mine = boxes_by_receiver(one.sealed)[0]
    assert [box.sender for box in mine] == [0, 1, 2, 3]
    with refused("from site 1 for site 2: must be from a neighbour of site 0, for it"):
        one.open(0, sealed=(mine[0], *boxes_by_receiver(one.sealed)[2][1:]))
    with refused("from site 9 for site 0: must be from a neighbour"):
        one.open(0, sealed=(*mine, replace(mine[3], sender=9)))
    with refused("senders of sealed boxes of a masked sum must be ascending, each once"):
        one.open(0, sealed=(mine[0], mine[1], mine[1]))


def test_a_box_that_cannot_be_opened_is_left_out():
    one, elsewhere = Sum(rows(4)), Sum(rows(4), context=replace(CONTEXT, round=3))
    mine = boxes_by_receiver(one.sealed)[0]
    for wrong in (mine[2].box, "", mine[1].box[:-2], boxes_by_receiver(elsewhere.sealed)[0][1].box):
        answer = one.open(0, sealed=(mine[0], replace(mine[1], box=wrong), *mine[2:]))
        assert [share.site for share in answer.own] == [0, 2, 3]


@pytest.mark.parametrize("bad", [2, 3])
def test_a_site_that_seals_rubbish_for_some_does_not_stop_the_sum(bad):
    """Site 3 of seven; five boxes of it are needed. With one more it is named."""
    one = Sum(rows(7))
    rubbish = {0, 1, 2} if bad == 3 else {0, 1}
    one.sealed = [
        replace(box, box="00" * 80) if box.sender == 3 and box.receiver in rubbish else box
        for box in one.sealed
    ]  # type: ignore[misc]
    if bad == 2:
        assert np.array_equal(one.unmasked().words, total(map(one.words, one.members)))
    else:
        with refused("^4 of 5 shares of site 3's secret came"):
            one.unmasked()


def test_a_wrong_share_is_found_out_and_the_sum_is_right():
    one = Sum(rows(7), late={6})
    good = one.unmasked()
    for holder, which, of in ((0, "own", 3), (5, "own", 3), (2, "pairs", 6)):
        for share in ("00" * 32, "ff" * 32, "00", ""):
            answer = with_share(one.opened[holder], of, share, which)
            found = one.unmasked({**one.opened, holder: answer})
            assert np.array_equal(found.words, good.words)
            # Shares beyond those that open a secret are not looked at, but for their size.
            assert found.wrong == ((holder,) if holder < 5 or len(share) < 64 else ())


def test_several_wrong_shares_spoil_the_sum_and_their_owner_is_named():
    one = Sum(rows(7))
    changed = {k: with_share(one.opened[k], 3, "00" * 32) for k in (0, 1)}
    with refused("shares of site 3's secret do not fit what it announced: it, or several"):
        one.unmasked({**one.opened, **changed})
    few = {k: one.opened[k] for k in range(5)}  # as many as needed: none to spare
    with refused("shares of site 3's secret do not fit"):
        one.unmasked({**few, 0: changed[0]})


def test_a_share_that_is_sent_twice_counts_once():
    one = Sum(rows(7))
    few = {k: one.opened[k] for k in range(4)}
    twice = replace(few[0], own=few[0].own + few[0].own)
    with refused("^4 of 5 shares of site 0's secret came"):
        one.unmasked({**few, 0: twice})
    more = replace(one.opened[0], own=(*one.opened[0].own, OpenedShare(3, "00" * 32)))
    assert np.array_equal(
        one.unmasked({**one.opened, 0: more}).words, total(map(one.words, one.members))
    )


def test_shares_of_those_who_are_no_members_are_not_counted():
    one = Sum(rows(7))
    few = {k: one.opened[k] for k in range(4)}
    with refused("^4 of 5 shares"):
        one.unmasked({**few, 50: one.opened[4]})


def test_a_lost_sites_own_mask_and_a_survivors_key_are_never_opened():
    one = Sum(rows(7), late={6})
    for answer in one.opened.values():
        assert {share.site for share in answer.own} == set(range(6))
        assert {share.site for share in answer.pairs} == {6}


# --- numbers --------------------------------------------------------------------------------------


def test_a_wrong_mask_makes_noise_that_the_range_shows():
    """A site that leaves its masks out, or adds some: the sum is noise over all 2^64 words.

    A noisy number is within ±30 by chance in one of 10^8 cases: four are missed in one of 10^32.
    """
    one = Sum(rows(3))
    for wrong in (one.words(1), one.masked(1) + np.uint64(12345678901234567890)):
        spoilt = Sum(rows(3))
        spoilt.total = total([one.masked(0), wrong, one.masked(2)])  # type: ignore[misc]
        words = spoilt.unmasked().words
        assert not np.array_equal(words, one.unmasked().words)
        with refused("3 sites can give at most 30.*a site broke the sum"):
            from_words(words, 3, largest=10)


def test_an_honest_site_sends_no_huge_number():
    with refused("number 2 of 4 of a masked sum: must be within"):
        Sum(np.array([[0.0, 0, 2 * max_number(3), 0]] * 3)).masked(0)


def test_what_a_hostile_site_can_do_with_a_huge_number():
    """It moves the sum as it likes, up to what all sites together may give, and no further."""
    honest = rows(2)
    limit = 10.0
    for pushes, passes in ((3 * limit - 5, True), (-25.0, True), (1e6, False), (-1e9, False)):
        row = np.full((1, 4), pushes)
        words = Sum(np.concatenate([honest, row])).unmasked().words
        if passes:
            expected = honest.sum(0) + pushes
            assert from_words(words, 3, limit) == pytest.approx(expected, abs=1e-8)
        else:
            with refused("3 sites can give at most 30"):
                from_words(words, 3, limit)


def test_a_hostile_site_can_wrap_around_and_that_is_another_way_to_the_same():
    """Adding 2^64 - 1 words is adding minus one step: no way past the range."""
    words = [to_words(row, 3) for row in rows(3)]
    words[2] = words[2] + np.uint64(2**64 - 1)
    one = Sum(np.stack(words))
    expected = rows(3).sum(0)
    assert from_words(one.unmasked().words, 3, 10.0) == pytest.approx(expected, abs=5e-9)


def test_a_site_may_announce_what_it_likes_of_its_own_mask_and_spoils_the_sum_by_name():
    one = Sum(rows(4))
    lied = replace(one.announcements[1], own=own_mask_digest(bytes(32)))
    assert len(one.opened) == len(one.members) and one.total.size == 4  # both as they should be
    one.announcements[1] = lied
    with refused("shares of site 1's secret do not fit what it announced"):
        one.unmasked()


# --- what the journal is for ----------------------------------------------------------------------


def test_two_cohorts_under_one_set_of_keys_would_show_a_row():
    """Why a site shares its secrets once: six sites, site 5 in league, `least_members` four.

    Sites 0 and 1 are asked to share among all six, then anew among 0, 1, 4, 5, as if 2 and 3 were
    gone; to that sum they add. There 0, 1 and 5 confirm, and open the seed of site 0's own mask. In
    the sum of six, 2, 3, 4 and 5 confirm that 0 and 1 are lost, and open site 0's key for masks. No
    honest site opens both, and yet nothing hides the row: t + t' = 4 + 3 <= 6 + 1. The journal
    (`fedapp.site.masked_sums`) refuses the second sharing.
    """
    all_six, four = Sum(rows(6), least=4), Sum(rows(6), least=4, silent={4})
    four.sites, four.members = all_six.sites, (0, 1, 4, 5)  # type: ignore[misc]
    assert four.announcements[0] == all_six.announcements[0]  # one set of keys
    words = four.masked(0)

    all_six.survivors = (2, 3, 4, 5)  # type: ignore[misc]
    four.survivors = four.members  # type: ignore[misc]
    pairs = {k: opened(all_six.open(k).pairs, of=0) for k in all_six.responding}
    own = {k: opened(four.open(k).own, of=0) for k in four.responding}
    assert len(pairs) == quorum(6) and len(own) == quorum(4)

    seen = words.copy()
    remove_own(seen, combine_shares(own), four.cohort)
    negative = np.zeros_like(seen)
    others = {k: four.announcements[k].mask for k in (1, 4, 5)}
    add_pairs(negative, 0, mask_key(combine_shares(pairs)), others, four.named)
    assert np.array_equal(seen - negative, four.words(0))


def opened(shares: tuple[OpenedShare, ...], of: int) -> bytes:
    [share] = [one.share for one in shares if one.site == of]
    return bytes.fromhex(share)


def test_a_confirmation_of_another_attempt_or_other_keys_opens_nothing():
    """Finding 25 h: a list for each of two sets of keys, and both were opened under the second."""
    one = Sum(rows(4))
    for other in (
        Sum(rows(4), context=replace(CONTEXT, attempt=1)),
        Sum(rows(4), context=replace(CONTEXT, run="other")),
        Sum(rows(4), seed=SEED),
    ):
        if other.context == CONTEXT:  # the same attempt, and another announcement in it
            made = MaskSite(3, bytes(32), other.sites[3].signer, other.sites[3].agreed, 3)
            other.sites[3] = made
        with refused("site 0: its confirmation is not signed for this sum"):
            one.open(1, confirmations=other.confirmations)
