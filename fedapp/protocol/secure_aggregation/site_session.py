"""A site's five steps in a masked sum: announce, share, add, confirm, open.

Each step is a pure function of the request and the site's secret, so that a site that was restarted
can continue. What must be remembered is in the site's journal (`fedapp/site`): with one set of keys
a site shares its secrets among one cohort (members and all that they announced), adds one row of
numbers, and confirms and opens one list of survivors. Otherwise a server that asks twice would see
the difference of two sums.

All refusals are MaskError, one line with the remedy.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise

from fedapp.protocol.messages import (
    Announcement,
    Confirmation,
    OpenedShare,
    Sealed,
    SumAnswer,
    SumStep,
)
from fedapp.protocol.secure_aggregation.context import MaskError, SumContext
from fedapp.protocol.secure_aggregation.fixed_point import Words
from fedapp.protocol.secure_aggregation.keys import (
    Signer,
    SumSecrets,
    fingerprint,
    is_signed,
    is_usable_key,
    seal,
    unseal,
)
from fedapp.protocol.secure_aggregation.masking import add_own, add_pairs
from fedapp.protocol.secure_aggregation.neighbour_graph import Graph, neighbour_graph, quorum
from fedapp.protocol.secure_aggregation.secret_sharing import SHARE_BYTES, split_secret

MIN_MEMBERS = 3
"""Minimum number of members of a sum: of two, each would know the other's numbers."""


@dataclass(frozen=True)
class MaskSite:
    """A site in the masked sums of one run.

    site: its number. secret: 32 bytes that only the site knows, for this attempt only. signer: its
    registered key. agreed: fingerprint of each site's registered key, by number. least: minimum
    number of members, and of survivors, of a sum; `MIN_MEMBERS` or more.
    """

    site: int
    secret: bytes = field(repr=False)
    signer: Signer
    agreed: Mapping[int, str]
    least: int

    def __post_init__(self) -> None:
        if self.least < MIN_MEMBERS:
            raise MaskError(f"masked sums of {self.least} sites: must be of {MIN_MEMBERS} or more")
        if self.agreed.get(self.site) != fingerprint(self.signer.public):
            raise MaskError(
                f"site {self.site}: its registered key is not the one that was agreed on; put the "
                "key's fingerprint into the preset, or the right key to the site"
            )

    def announce(self, context: SumContext) -> SumAnswer:
        """Return the site's public keys for this sum, signed."""
        keys, public = self._secrets(context).announced, self.signer.public.hex()
        signature = self.signer.sign(context.bind("announce", self.site, *keys))
        one = Announcement(self.site, context.attempt, *keys, public, signature)
        return SumAnswer(announcement=one)

    def share(self, context: SumContext, step: SumStep) -> SumAnswer:
        """Return shares of both seeds, sealed for each neighbour and for the site itself."""
        links = self._members(context, step, "share")
        keys = self._announced(context, step, links)
        secrets, cohort = self._secrets(context), context.cohort(step.members, step.announced)
        more = links.threshold - 1
        own, pairs = (
            split_secret(seed, secrets.coefficients(of, cohort, more), list(keys))
            for of, seed in (("own", secrets.own), ("pairs", secrets.pairs))
        )
        sealed = (
            Sealed(
                self.site,
                holder,
                seal(
                    _box_key(secrets, keys[holder], cohort, self.site, holder),
                    own[holder] + pairs[holder],
                ),
            )
            for holder in keys
        )
        return SumAnswer(sealed=tuple(sealed))

    def add_masks(self, context: SumContext, step: SumStep, words: Words, question: str) -> Words:
        """Return the site's words [D] with all its masks added.

        question: digest of what this site was asked (`question_digest`).
        """
        links = self._members(context, step, "add")
        keys = self._announced(context, step, links)
        secrets, cohort = self._secrets(context), context.cohort(step.members, step.announced)
        total = words.copy()
        add_own(total, secrets.own, cohort)
        others = {other: one.mask for other, one in keys.items() if other != self.site}
        add_pairs(total, self.site, secrets.mask, others, context.masks(cohort, question))
        return total

    def confirm(self, context: SumContext, step: SumStep) -> SumAnswer:
        """Return the site's signature under this cohort and these survivors."""
        self._survivors(context, step, self._members(context, step, "confirm"))
        signature = self.signer.sign(confirmation_text(context, step))
        return SumAnswer(confirmation=Confirmation(self.site, self.signer.public.hex(), signature))

    def open_shares(self, context: SumContext, step: SumStep) -> SumAnswer:
        """Return the site's shares: of survivors' own seeds, and of lost sites' pair seeds."""
        links = self._members(context, step, "open")
        survivors = self._survivors(context, step, links)
        self._confirmations(context, step, survivors)
        keys = self._announced(context, step, links)
        senders = [box.sender for box in step.sealed]
        _check_ascending(senders, "senders of sealed boxes")
        secrets, cohort = self._secrets(context), context.cohort(step.members, step.announced)
        own, pairs = [], []
        for box in step.sealed:
            if box.receiver != self.site or box.sender not in keys:
                raise MaskError(
                    f"a sealed box from site {box.sender} for site {box.receiver}: must be from a "
                    f"neighbour of site {self.site}, for it; the server mixed them up"
                )
            key = _box_key(secrets, keys[box.sender], cohort, box.sender, self.site)
            try:
                shares = unseal(key, box.box)
            except ValueError:
                shares = b""
            if len(shares) != 2 * SHARE_BYTES:
                continue  # damaged, or from another sum; the shares of other holders may suffice
            if box.sender in survivors:
                own.append(OpenedShare(box.sender, shares[:SHARE_BYTES].hex()))
            else:
                pairs.append(OpenedShare(box.sender, shares[SHARE_BYTES:].hex()))
        return SumAnswer(own=tuple(own), pairs=tuple(pairs))

    # --- checks -----------------------------------------------------------------------------------

    @cached_property
    def _secrets(self) -> Callable[[SumContext], SumSecrets]:
        """Function that returns the secrets of a sum, and remembers those of the last sum."""
        return lru_cache(maxsize=1)(lambda of: SumSecrets(self.secret, of, self.site))

    def _members(self, context: SumContext, step: SumStep, stage: str) -> Graph:
        """Check stage, number, attempt and members; return the graph of the members."""
        asked, here = (step.stage, step.number, step.attempt), (context.number, context.attempt)
        if asked != (stage, *here):
            raise MaskError(
                f"step {step.stage!r} of sum {step.number}, attempt {step.attempt}: sum {here[0]}, "
                f"attempt {here[1]}, is at {stage!r}; the server must keep the order of steps"
            )
        _check_ascending(step.members, "members")
        strangers = [site for site in step.members if site not in self.agreed]
        if strangers:
            raise MaskError(
                f"site {strangers[0]} is a member of a masked sum: no key of it was agreed on; put "
                "its fingerprint into the preset"
            )
        self._there(step.members, "members")
        return neighbour_graph(context, step.members)

    def _survivors(self, context: SumContext, step: SumStep, links: Graph) -> frozenset[int]:
        _check_ascending(step.survivors, "survivors")
        survivors = frozenset(step.survivors)
        unknown = survivors.difference(step.members)
        if unknown:
            raise MaskError(
                f"site {min(unknown)} is named as a survivor of a masked sum: it is no member; the "
                "server must name members alone"
            )
        self._there(step.survivors, "survivors")
        links.check(survivors)
        return survivors

    def _there(self, sites: Collection[int], what: str) -> None:
        if self.site not in sites:
            raise MaskError(f"site {self.site} is asked, and is not among the {what}: leave it out")
        if len(sites) < self.least:
            raise MaskError(
                f"{len(sites)} {what} of a masked sum: site {self.site} takes part from "
                f"{self.least} on; wait for more sites"
            )

    def _announced(
        self, context: SumContext, step: SumStep, links: Graph
    ) -> dict[int, Announcement]:
        """Check the announcements of all holders of the site's shares; return them by site."""
        holders = links.holders(self.site)
        if [one.site for one in step.announcements] != holders:
            raise MaskError(
                f"the announcements that came must be those of the {len(holders)} sites that "
                f"share secrets with site {self.site}, itself included, ascending"
            )
        for one in step.announcements:
            check_announcement(context, one, self.agreed)
        if not links.half and step.announced != announcements_digest(context, step.announcements):
            raise MaskError(
                "the digest of all announcements is not that of those that came: the server must "
                "send every site what all of them announced"
            )
        keys = {one.site: one for one in step.announcements}
        mine = keys[self.site]
        if (mine.box, mine.mask, mine.own) != self._secrets(context).announced:
            raise MaskError(
                f"site {self.site}: has other keys by now than those that it announced; the server "
                "must ask all sites for new ones"
            )
        return keys

    def _confirmations(self, context: SumContext, step: SumStep, survivors: frozenset[int]) -> None:
        sites = [one.site for one in step.confirmations]
        _check_ascending(sites, "confirmations")
        needed = quorum(len(step.members))
        if len(sites) < needed or not survivors.issuperset(sites):
            raise MaskError(
                f"{len(survivors.intersection(sites))} of {len(survivors)} survivors confirmed the "
                f"list of them, {needed} must: no site opens a sum for a list that few were shown"
            )
        text = confirmation_text(context, step)
        for one in step.confirmations:
            check_signed(one, text, self.agreed.get(one.site), "confirmation")


def check_announcement(context: SumContext, one: Announcement, agreed: Mapping[int, str]) -> None:
    """Raise MaskError if a site's announced keys are not valid for this sum.

    The server checks them too before it forwards them: one bad announcement would stop all sites.
    """
    check_announcement_of(context, one, agreed.get(one.site))


@lru_cache(maxsize=2**14)
def check_announcement_of(context: SumContext, one: Announcement, agreed: str | None) -> None:
    """`check_announcement` with a cache, since three steps bring the same announcements."""
    text = context.bind("announce", one.site, one.box, one.mask, one.own)
    if one.attempt != context.attempt:
        raise MaskError(
            f"site {one.site}: its announcement is for attempt {one.attempt}, this is attempt "
            f"{context.attempt}: the server must ask that site for new keys"
        )
    check_signed(one, text, agreed, "announcement")
    if not (is_usable_key(one.box) and is_usable_key(one.mask)):
        raise MaskError(f"site {one.site}: announced what is no key of X25519; leave it out")


def check_confirmation(
    context: SumContext, step: SumStep, one: Confirmation, agreed: Mapping[int, str]
) -> None:
    """Raise MaskError unless a site confirmed what this step names; the server checks it too."""
    check_signed(one, confirmation_text(context, step), agreed.get(one.site), "confirmation")


@lru_cache(maxsize=2**14)
def check_signed(
    one: Announcement | Confirmation, text: bytes, agreed: str | None, what: str
) -> None:
    """Raise MaskError unless a message is signed with the agreed key of its site.

    Results are cached, since in a simulation all sites of a process check the same messages.
    """
    signer = bytes.fromhex(one.signer)
    if agreed != fingerprint(signer):
        raise MaskError(
            f"site {one.site}: its {what} came under a key that is not the agreed one; ask that "
            "site for its fingerprint, and trust no server that changes keys"
        )
    if not is_signed(signer, bytes.fromhex(one.signature), text):
        raise MaskError(
            f"site {one.site}: its {what} is not signed for this sum; the server must send what "
            "the site said in this round and run"
        )


def announcements_digest(context: SumContext, announcements: Iterable[Announcement]) -> str:
    """Return the digest of all members' announcements, signatures included.

    announcements: ascending by site.
    """
    fields = ([k.site, k.box, k.mask, k.own, k.signer, k.signature] for k in announcements)
    return context.digest("announced", *fields)


def confirmation_text(context: SumContext, step: SumStep) -> bytes:
    """Return the bytes that a site signs when it confirms the survivors in a step."""
    cohort = context.cohort(step.members, step.announced)
    return context.bind("confirm", cohort, list(step.survivors))


def _box_key(
    secrets: SumSecrets, of: Announcement, cohort: str, sender: int, receiver: int
) -> bytes:
    return secrets.box_key(of.box, f"box {cohort} {sender} {receiver}".encode())


def _check_ascending(sites: Sequence[int], what: str) -> None:
    if any(a >= b for a, b in pairwise(sites)):
        raise MaskError(f"the {what} of a masked sum must be ascending, each once")
