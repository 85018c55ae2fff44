"""The server's part in a masked sum: what it sends to whom, and how it removes the masks."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from fedapp.protocol.messages import Announcement, OpenedShare, Sealed, SumAnswer
from fedapp.protocol.secure_aggregation.context import MaskError, SumContext
from fedapp.protocol.secure_aggregation.fixed_point import Words
from fedapp.protocol.secure_aggregation.keys import mask_key, own_mask_digest, public
from fedapp.protocol.secure_aggregation.masking import add_pairs, remove_own
from fedapp.protocol.secure_aggregation.neighbour_graph import neighbour_graph
from fedapp.protocol.secure_aggregation.secret_sharing import SHARE_BYTES, combine_shares
from fedapp.protocol.secure_aggregation.site_session import announcements_digest


@dataclass(frozen=True)
class Unmasked:
    """The sum of the survivors' words [D], and the sites that opened wrong shares."""

    words: Words
    wrong: tuple[int, ...] = ()


def announcements_for(
    context: SumContext,
    site: int,
    members: tuple[int, ...],
    announcements: Mapping[int, Announcement],
) -> tuple[Announcement, ...]:
    """Return the announcements that a site needs: those of its neighbours and its own."""
    return tuple(announcements[other] for other in neighbour_graph(context, members).holders(site))


def boxes_by_receiver(sealed: Iterable[Sealed]) -> dict[int, tuple[Sealed, ...]]:
    """Return the boxes by receiver, each receiver's ascending by sender."""
    found: dict[int, list[Sealed]] = {}
    for box in sorted(sealed, key=lambda box: box.sender):
        found.setdefault(box.receiver, []).append(box)
    return {site: tuple(boxes) for site, boxes in found.items()}


def unmask(
    context: SumContext,
    question: str,
    members: tuple[int, ...],
    survivors: tuple[int, ...],
    total: Words,
    announcements: Mapping[int, Announcement],
    opened: Mapping[int, SumAnswer],
) -> Unmasked:
    """Return the sum of the survivors' words without masks.

    question: digest of what all were asked (`question_digest`). total: the sum of their masked
    words [D], which are random numbers where some were asked something else. announcements: those
    of all members. opened: the survivors' answers to the last step by site; enough to reconstruct
    every secret suffice. A wrong share is detected, since the reconstructed secret does not fit the
    announcement. Raises MaskError if too few shares came or too many were wrong.
    """
    links = neighbour_graph(context, members)
    links.check(frozenset(survivors))
    announced = announcements_digest(context, (announcements[site] for site in members))
    cohort, words, wrong = context.cohort(members, announced), total.copy(), set[int]()
    own = _shares_by_owner(opened, lambda answer: answer.own)
    pairs = _shares_by_owner(opened, lambda answer: answer.pairs)
    for site in members:
        survives = site in survivors
        holders = set(links.holders(site))
        received = (own if survives else pairs).get(site, {})
        shares = {holder: share for holder, share in received.items() if holder in holders}
        announcement = announcements[site]
        expected = (
            (own_mask_digest, announcement.own)
            if survives
            else (_public_mask_key, announcement.mask)
        )
        seed, bad = _reconstruct(site, shares, links.threshold, *expected)
        wrong |= bad
        if survives:
            remove_own(words, seed, cohort)
        else:
            others = {k: announcements[k].mask for k in holders.intersection(survivors)}
            # The lost site would have subtracted what the survivors added, and the reverse.
            named = context.masks(cohort, question)
            add_pairs(words, site, mask_key(seed), others, named)
    return Unmasked(words, tuple(sorted(wrong)))


def _public_mask_key(seed: bytes) -> str:
    return public(mask_key(seed))


def _reconstruct(
    site: int,
    shares: Mapping[int, bytes],
    threshold: int,
    announced_form: Callable[[bytes], str],
    announced: str,
) -> tuple[bytes, set[int]]:
    """Return a secret of this site, and the holders who opened a wrong share of it.

    announced_form: computes from a secret what a site announces of it. announced: what the site
    announced. One wrong share can be detected and left out if there is one more than needed.
    """
    usable = {holder: share for holder, share in shares.items() if len(share) == SHARE_BYTES}
    if len(usable) < threshold:
        raise MaskError(
            f"{len(usable)} of {threshold} shares of site {site}'s secret came: repeat it when "
            "more sites are online"
        )
    bad = shares.keys() - usable.keys()
    first = list(usable)[: threshold + 1]
    for suspect in (None, *reversed(first)) if len(first) > threshold else (None,):
        asked = [holder for holder in first if holder != suspect][:threshold]
        secret = combine_shares({holder: usable[holder] for holder in asked})
        if announced_form(secret) == announced:
            return secret, bad if suspect is None else bad | {suspect}
    raise MaskError(
        f"the shares of site {site}'s secret do not fit what it announced: it, or several of those "
        "who opened them, sent wrong ones; repeat the sum without that site"
    )


def _shares_by_owner(
    opened: Mapping[int, SumAnswer], of: Callable[[SumAnswer], Iterable[OpenedShare]]
) -> dict[int, dict[int, bytes]]:
    """Return shares by owner and by holder; of two shares from one holder the first counts."""
    found: dict[int, dict[int, bytes]] = {}
    for holder, answer in sorted(opened.items()):
        for one in of(answer):
            found.setdefault(one.site, {}).setdefault(holder, bytes.fromhex(one.share))
    return found
