"""Masked sums at the server: one task for all sites becomes five steps, and one answer: the sum.

A method of such a run has one site, `ALL_SITES`, and a cohort that is one, `COHORT`. What it asks
of these is asked of every site that they stand for, in the steps of docs/MASKED_SUMS.md; what comes
back is the sum of what all said. What was opened is written down: a run that is resumed does not
ask for it again, since no site would open it for others.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import torch
from pydantic import TypeAdapter
from pydantic_core import to_json
from safetensors import SafetensorError
from safetensors.torch import load

from fedapp.core.disk import write_atomic
from fedapp.core.errors import ProtocolError, RunError, StoreError
from fedapp.learn.model_caches import PARSED_MODELS
from fedapp.learn.params import Params, digest_of, to_bytes
from fedapp.methods._summed import ADDED, TRAINED, WORDS, Added, Layout, facts_of
from fedapp.methods.base import Arrived
from fedapp.protocol.messages import (
    ALL_SITES,
    COHORT,
    IMAGES,
    MASKED,
    MODEL,
    STEPS,
    Announcement,
    Confirmation,
    ModelRef,
    Reply,
    Sealed,
    SiteFacts,
    SumAnswer,
    SumStep,
    Task,
)
from fedapp.protocol.secure_aggregation.context import SumContext
from fedapp.protocol.secure_aggregation.fixed_point import Words, from_words
from fedapp.protocol.secure_aggregation.neighbour_graph import quorum
from fedapp.protocol.secure_aggregation.server_session import (
    announcements_for,
    boxes_by_receiver,
    unmask,
)
from fedapp.protocol.secure_aggregation.site_session import (
    announcements_digest,
    check_announcement,
    check_confirmation,
)
from fedapp.server.phases import Phases

log = logging.getLogger(__name__)


Signed = TypeVar("Signed", Announcement, Confirmation)


@dataclass(frozen=True)
class Opening:
    """All that is needed to open a sum: written down before anybody is asked to.

    attempt: at the sum. members, survivors: sites. private: of the survivors, digest of what each
    keeps to itself.
    """

    attempt: int
    members: tuple[int, ...]
    survivors: tuple[int, ...]
    announcements: tuple[Announcement, ...]
    sealed: tuple[Sealed, ...]
    private: dict[int, str]


@dataclass(frozen=True)
class Attempts:
    """How far the attempts at a sum are: written down before an attempt is asked for.

    attempt: the newest; 0: none. announced: each site's newest announcement. It proves to those who
    added their numbers to an earlier attempt that nobody can open that one any more.
    """

    attempt: int = 0
    announced: tuple[Announcement, ...] = ()


class TooFewSites(ProtocolError):
    """An attempt at a sum failed before anybody was asked to confirm it: another may be begun."""


MAX_REPEATS = 1
"""How often all sites are asked again, in a round, for a sum whose attempts failed. A run that ends
for want of it is resumed with further attempts."""
_OPENING, _BEGUN = TypeAdapter(Opening), TypeAdapter(Attempts)


@dataclass
class SummedPhases:
    """In the place of `Phases` where sums are masked.

    phases: those to the sites. run_name, identity, experiment: the run's, and the digest of its
    settings, which all keys are bound to. agreed: fingerprints of the members' keys. least: members
    of a sum at least. root: folder of what was opened.
    facts: what is known of all sites, and of the cohort, from the newest sum of each; it is shared
    with the round. cohort: of the round.
    """

    phases: Phases
    run_name: str
    identity: str
    experiment: str
    agreed: Mapping[int, str]
    least: int
    like: SiteFacts
    root: Path
    facts: dict[int, SiteFacts] = field(default_factory=dict)
    cohort: frozenset[int] = frozenset()
    server_learned: bool = False
    _round: int = -1
    _number: int = 0

    def __post_init__(self) -> None:
        for site in (ALL_SITES, COHORT):
            self.facts[site] = facts_of(self.like, site, Added())
            self.phases.pool.join(site)

    def run(self, tasks: Sequence[Task], skipped: dict[int, str]) -> list[Reply]:
        """Ask all sites that the task's site stands for; return the sum as one site's reply.

        Nothing where it cannot be opened; skipped then says why, under that site.
        """
        replies = []
        for task in tasks:
            try:
                replies.append(self._summed(task, skipped))
            except ProtocolError as error:
                skipped[task.site] = str(error)
                self.phases.progress.note(f"round {task.round}: no sum of {task.action}: {error}")
        return replies

    def check_turnout(
        self, tasks: Sequence[Task], replies: Collection[int], failed: Mapping[int, str]
    ) -> None:
        """Check that every sum could be opened that the method needs. Raises RunError."""
        optional = self.phases.experiment.method.optional
        for task in tasks:
            if task.site not in replies and task.action not in optional:
                raise RunError(
                    f"round {task.round}: {failed[task.site].rstrip('.')}. Mend the sites and "
                    f"{self.phases.going_on()}"
                )

    def forget(self, before: int) -> None:
        """Remove what was opened in rounds before this one: their checkpoint is written."""
        for path in self.root.glob("*-*") if self.root.exists() else ():
            if int(path.name.split("-")[0]) < before:
                path.unlink()

    # --- one sum ----------------------------------------------------------------------------------

    def _summed(self, task: Task, skipped: dict[int, str]) -> Reply:
        number = self._next_number(task.round)
        said = self.phases.experiment
        classes, finds = len(self.like.classes), bool(said.data.findings)
        scored = said.rounds.pooled_auroc
        layout = Layout.of(said.method, task, self.phases.schemas, classes, finds, scored)
        place = self.root / f"{task.round}-{number}"
        found = self._read(place)
        if found is None:
            # From here on sites may have confirmed, which is final: no other attempt is begun.
            closed = self._read(place.with_suffix(".closed"))
            if closed is None:
                closed = self._closed(task, number, layout, skipped)
                self._keep(place.with_suffix(".closed"), *closed)
            found = self._opened(task, number, *closed, skipped), closed[1]
            self._keep(place, *found)
        words, opening = found
        self.phases.state.private |= {k: of for k, of in opening.private.items() if of}
        return self._reply(task, layout.read(from_words(words, len(opening.survivors))))

    def _next_number(self, round: int) -> int:
        self._number = 0 if round != self._round else self._number + 1
        self._round = round
        return self._number

    def _closed(
        self, task: Task, number: int, layout: Layout, skipped: dict[int, str]
    ) -> tuple[Words, Opening]:
        """Make attempts until one has all numbers; return the masked sum, and how it can be opened.

        Who fails is left out of the next attempt; where too few are left, all are asked again, and
        no more than `MAX_REPEATS` times. Raises ProtocolError.
        """
        every = sorted(self.phases.here if task.site == ALL_SITES else self.cohort)
        self._enough(every, every, "are here")
        asked, repeats = every, 0
        reasons: dict[int, str] = {}
        while True:
            failed: dict[int, str] = {}
            try:
                total, opening = self._attempt(task, number, layout, every, asked, failed)
            except TooFewSites as error:
                reasons |= failed
                left = [k for k in asked if k not in failed]
                if left == asked or len(left) < self._least(len(every)):
                    if repeats == MAX_REPEATS:
                        skipped |= reasons
                        raise
                    left, repeats = every, repeats + 1
                self.phases.progress.note(f"round {task.round}: {error}: it is tried once more")
                asked = left
            else:  # who failed at first may be there now
                there = opening.survivors
                skipped |= {k: why for k, why in (reasons | failed).items() if k not in there}
                return total, opening

    def _attempt(
        self,
        task: Task,
        number: int,
        layout: Layout,
        every: Sequence[int],
        asked: Sequence[int],
        skipped: dict[int, str],
    ) -> tuple[Words, Opening]:
        """Go through an attempt's steps with these sites, to where its numbers are added.

        Raises TooFewSites where another attempt may do better.
        """
        before = self._begun(task, number)
        self._begin(task, number, replace(before, attempt=before.attempt + 1))
        context = self._context(task, number, before.attempt + 1)
        step = SumStep(number, "announce", context.attempt)
        announced = self._stage(task, {k: step for k in asked}, skipped)
        announcements = {
            k: one
            for k, of in announced.items()
            if (one := of.announcement)
            and self._good(k, one, partial(check_announcement, context), skipped)
        }
        newest = {one.site: one for one in before.announced} | announcements
        self._begin(task, number, Attempts(context.attempt, tuple(newest.values())))
        members = tuple(sorted(announcements))
        self._enough(members, every, "announced keys")
        used = tuple(announcements[k] for k in members)
        shared = self._stage(task, self._linked(context, "share", used), skipped)
        self._enough(tuple(shared), every, "shared their secrets")
        if set(shared) != set(members):  # the others have shared theirs with those who did not
            raise TooFewSites(f"{len(shared)} of {len(members)} sites shared their secrets")
        sealed = tuple(box for of in shared.values() for box in of.sealed)
        # Whoever added to an earlier attempt wants to see that it is over.
        steps = self._linked(context, "add", used, before.announced and newest.values())
        total, private = self._added(task, steps, layout, skipped)
        survivors = tuple(sorted(private))
        self._enough(survivors, members, "added their numbers")
        return total, Opening(context.attempt, members, survivors, used, sealed, private)

    def _good(
        self,
        site: int,
        one: Signed,
        check: Callable[[Signed, Mapping[int, str]], None],
        skipped: dict[int, str],
    ) -> bool:
        """Whether what a site signed is good; else it alone is left out, and it is said why."""
        try:
            if one.site != site:
                raise ProtocolError(f"signed as site {one.site}")
            check(one, self.agreed)
        except ProtocolError as error:
            skipped[site] = str(error)
            self.phases.progress.note(f"site {site} is left out of a masked sum: {error}")
            return False
        return True

    def _linked(
        self,
        context: SumContext,
        stage: Literal["share", "add"],
        announcements: Sequence[Announcement],
        newest: Collection[Announcement] = (),
    ) -> dict[int, SumStep]:
        """Return a step for every member, with the keys of its neighbours.

        announcements: of all members, ascending. newest: of all sites in all attempts at this sum.
        """
        by_site = {one.site: one for one in announcements}
        members, announced = tuple(by_site), announcements_digest(context, announcements)
        step = SumStep(context.number, stage, context.attempt, members, announced)
        steps = {}
        for k in members:
            near = announcements_for(context, k, members, by_site)
            there = {one.site for one in near}
            others = tuple(one for one in newest if one.site not in there)
            steps[k] = replace(step, announcements=near, earlier=others)
        return steps

    def _added(
        self, task: Task, steps: Mapping[int, SumStep], layout: Layout, skipped: dict[int, str]
    ) -> tuple[Words, dict[int, str]]:
        """Return the sum of the masked numbers, and what each survivor keeps to itself."""
        phases, pool = self.phases, self.phases.pool
        before, schema = phases.schemas, {WORDS: ((layout.size,), torch.int64)}
        phases.schemas = {**before, MASKED: schema}
        transport = phases.experiment.transport
        try:
            tasks = [self._of_site(task, k, step, task.models) for k, step in steps.items()]
            failed: dict[int, str] = {}
            replies = phases.run(tasks, failed)
            skipped |= failed
            total = np.zeros(layout.size, np.uint64)
            private = {}
            for reply in replies:
                who, named = f"site {reply.site}'s masked numbers", reply.contents[MASKED]
                words = PARSED_MODELS.get(named, pool.get, schema, who, transport)[WORDS]
                total += words.numpy().view(np.uint64)
                private[reply.site] = reply.private
        finally:
            phases.schemas = before
            pool.forget(MASKED)
        return total, private

    def _opened(
        self, task: Task, number: int, total: Words, opening: Opening, skipped: dict[int, str]
    ) -> Words:
        """Have the survivors confirm and open the sum, and return it."""
        context = self._context(task, number, opening.attempt)
        members, survivors = opening.members, opening.survivors
        announcements = {one.site: one for one in opening.announcements}
        announced = announcements_digest(context, opening.announcements)
        confirm = SumStep(
            number, "confirm", opening.attempt, members, announced, survivors=survivors
        )
        said = self._stage(task, {k: confirm for k in survivors}, skipped)
        check = partial(check_confirmation, context, confirm)
        confirmed = {
            k: one
            for k, of in said.items()
            if (one := of.confirmation) and self._good(k, one, check, skipped)
        }
        self._enough(tuple(confirmed), members, "confirmed who is left")
        boxes = boxes_by_receiver(opening.sealed)
        steps = {
            k: replace(
                confirm,
                stage="open",
                announcements=announcements_for(context, k, members, announcements),
                sealed=boxes.get(k, ()),
                confirmations=tuple(confirmed[one] for one in sorted(confirmed)),
            )
            for k in sorted(confirmed)
        }
        opened = self._stage(task, steps, skipped)
        found = unmask(context, members, survivors, total, announcements, opened)
        for site in found.wrong:
            skipped[site] = "opened wrong shares of a masked sum"
            self.phases.progress.note(f"site {site} {skipped[site]}: the sum is right without them")
        return found.words

    def _stage(
        self, task: Task, steps: Mapping[int, SumStep], skipped: dict[int, str]
    ) -> dict[int, SumAnswer]:
        """Ask for a step that is no work on the images; return the answers by site."""
        tasks = [self._of_site(task, k, step, {}) for k, step in steps.items()]
        failed: dict[int, str] = {}
        replies = self.phases.run(tasks, failed)
        skipped |= failed
        return {reply.site: reply.sum for reply in replies if reply.sum is not None}

    def _of_site(
        self, task: Task, site: int, step: SumStep, models: Mapping[str, tuple[ModelRef, ...]]
    ) -> Task:
        """Return a site's task: its model and what it keeps to itself are its own."""
        own, private = self.phases.pool.latest(site), self.phases.state.private.get(site, "")
        return replace(task, site=site, own=own, models=models, private=private, sum=step)

    def _enough(self, found: Sequence[int], of: Sequence[int], what: str) -> None:
        """Check that sites suffice to go on. Raises TooFewSites."""
        least = self._least(len(of))
        if len(found) < least:
            raise TooFewSites(
                f"{len(found)} of {len(of)} sites {what}; a masked sum needs {least}: a third of "
                f"them may be lost, but {self.least} must be left (privacy.least_members)"
            )

    def _least(self, sites: int) -> int:
        """Return how many of so many sites must be left."""
        return max(self.least, quorum(sites))

    def _context(self, task: Task, number: int, attempt: int) -> SumContext:
        run = self.run_name, self.identity, self.experiment
        return SumContext(*run, task.round, number, attempt)

    # --- what came of it --------------------------------------------------------------------------

    def _reply(self, task: Task, added: Added) -> Reply:
        """Return the sum as the reply of the site that stands for all. Raises ProtocolError."""
        phases, site = self.phases, task.site
        facts = self.facts[site] = facts_of(self.like, site, added)
        blobs = {
            role: to_bytes(of, phases.experiment.transport) for role, of in added.contents.items()
        }
        digests = {role: digest_of(blob) for role, blob in blobs.items()}
        everybody = max(len(phases.state.standings.sites), 1)
        means = {name: of / everybody for name, of in added.metrics.items() if name in _BY_SITE}
        reply = Reply(
            site=site,
            round=task.round,
            model=digests.pop(MODEL, task.own.digest),
            contents=digests,
            learned=added.learned > 0,
            metrics={**added.metrics, **means, TRAINED: added.learned, ADDED: added.sites},
            evaluations=added.evaluations,
        )
        arrived = {role: _arrived(of) for role, of in added.contents.items()}
        phases.experiment.method.check_reply(task, reply, facts)
        phases.experiment.method.check_contents(task, reply, arrived, facts)
        for role, digest in reply.new_contents(task.own.digest).items():
            phases.pool.upload(site, digest, blobs[role], task.round, role)
        return reply

    # --- written down -----------------------------------------------------------------------------

    def _read(self, place: Path) -> tuple[Words, Opening] | None:
        """Return a sum that was opened before the run was cut; None: there is none."""
        if not place.exists():
            return None
        try:
            head, _, blob = place.read_bytes().partition(b"\n")
            words = load(blob)[WORDS].numpy().view(np.uint64)
            return words, _OPENING.validate_json(head)
        except (SafetensorError, KeyError, ValueError, OSError) as error:
            raise StoreError(f"{place}: the sum of a round is damaged: start anew") from error

    def _begun(self, task: Task, number: int) -> Attempts:
        place = self._attempts(task, number)
        try:
            return _BEGUN.validate_json(place.read_bytes()) if place.exists() else Attempts()
        except (OSError, ValueError) as error:
            raise StoreError(f"{place}: the attempts of a sum are damaged: start anew") from error

    def _begin(self, task: Task, number: int, begun: Attempts) -> None:
        durable = bool(self.experiment)
        write_atomic(self._attempts(task, number), to_json(begun), durable=durable)

    def _attempts(self, task: Task, number: int) -> Path:
        return self.root / f"{task.round}-{number}.attempts"

    def _keep(self, place: Path, words: Words, opening: Opening) -> None:
        tensor = torch.from_numpy(words.view(np.int64).copy())
        write_atomic(
            place,
            to_json(opening) + b"\n" + to_bytes({WORDS: tensor}),
            durable=bool(self.experiment),
        )


_BY_SITE = (STEPS, IMAGES)
"""Metrics that are shown as a mean over sites."""


def as_single_site(facts: SiteFacts) -> SiteFacts:
    """Return facts of all sites as those of one that people can read of."""
    return replace(facts, site=0, name="all-sites")


def _arrived(params: Params) -> Arrived:
    return Arrived(params, frozenset(params))
