"""Masked sums (secure aggregation) at the server: the method sees sums over sites, and no answer.

In such a run the method sees one site, `ALL_SITES`, and a cohort of one site, `COHORT`. A task for
one of these is given to every site for which it stands, in the five steps of docs/MASKED_SUMS.md,
and the method gets the sum of their answers as one reply. A sum that was opened is written to disk.
A resumed run reads it there, because the sites would not open it a second time.
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
from fedapp.experiment.config import computing_settings
from fedapp.learn.model_caches import PARSED_MODELS
from fedapp.learn.params import Params, digest_of, to_bytes
from fedapp.methods._summed import (
    ADDED,
    MASKED_ROW,
    TRAINED,
    Contribution,
    Layout,
    check_all_added,
    facts_of_all,
)
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
from fedapp.protocol.secure_aggregation.context import SumContext, question_digest
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
    """All that is needed to open a sum. It is written to disk before any site is asked to confirm.

    attempt: number of the attempt at the sum. members: the sites that share secrets for it.
    survivors: those of them whose numbers are in the sum. announcements, sealed: what the members
    sent in the first two steps. private: of each survivor, the digest of what it keeps to itself.
    question: digest of what all members were asked.
    """

    attempt: int
    members: tuple[int, ...]
    survivors: tuple[int, ...]
    announcements: tuple[Announcement, ...]
    sealed: tuple[Sealed, ...]
    private: dict[int, str]
    question: str


@dataclass(frozen=True)
class Attempts:
    """The attempts at a sum so far. It is written to disk before a new attempt is begun.

    attempt: number of the newest attempt; 0: none. announced: each site's newest announcement.
    These prove to sites that added their numbers to an earlier attempt that nobody can open that
    one any more.
    """

    attempt: int = 0
    announced: tuple[Announcement, ...] = ()


class TooFewSites(ProtocolError):
    """An attempt failed before any site was asked to confirm it, so another one may be begun."""


MAX_REPEATS = 1
"""How often, for one sum, all sites are asked again after its attempts have failed. If a run ends
because of this limit, it can be resumed, and then makes further attempts."""
_OPENING, _BEGUN = TypeAdapter(Opening), TypeAdapter(Attempts)


@dataclass
class SummedPhases:
    """Takes the place of `Phases` where sums are masked.

    phases: sends the steps to the sites. run_name, identity, experiment: name and identity of the
    run, and the digest of its settings, to which all keys are bound; empty in a simulation. agreed:
    fingerprints of the sites' keys. least: the smallest number of members of a sum. like: facts of
    one site, for what is equal at all. root: folder of the sums that were opened. facts: what is
    known of all sites and of the cohort, from the newest sum of each; the round shares this
    mapping. cohort: the sites of the round's cohort.
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
            self.facts[site] = facts_of_all(self.like, site, Contribution())
            self.phases.pool.join(site)

    def run(self, tasks: Sequence[Task], skipped: dict[int, str]) -> list[Reply]:
        """Return the sum over the sites for which a task's site stands, as that site's reply.

        A task whose sum cannot be opened has no reply. `skipped` then gets the reason, for the site
        of the task.
        """
        replies = []
        for task in tasks:
            try:
                replies.append(self._sum(task, skipped))
            except ProtocolError as error:
                skipped[task.site] = str(error)
                self.phases.progress.note(f"round {task.round}: no sum of {task.action}: {error}")
        return replies

    def check_turnout(
        self, tasks: Sequence[Task], replies: Collection[int], failed: Mapping[int, str]
    ) -> None:
        """Raise RunError where a sum that the method needs could not be opened."""
        optional = self.phases.experiment.method.optional
        for task in tasks:
            if task.site not in replies and task.action not in optional:
                raise RunError(
                    f"round {task.round}: {failed[task.site].rstrip('.')}. Repair the sites and "
                    f"{self.phases.going_on()}"
                )

    def forget(self, before: int) -> None:
        """Remove the sums of rounds before this one, whose checkpoint has been written."""
        for path in self.root.glob("*-*") if self.root.exists() else ():
            if int(path.name.split("-")[0]) < before:
                path.unlink()

    # --- one sum ----------------------------------------------------------------------------------

    def _sum(self, task: Task, skipped: dict[int, str]) -> Reply:
        number = self._next_number(task.round)
        settings = self.phases.experiment
        classes, finds = len(self.like.classes), bool(settings.data.findings)
        scored = settings.rounds.pooled_auroc
        layout = Layout.of(settings.method, task, self.phases.schemas, classes, finds, scored)
        place = self.root / f"{task.round}-{number}"
        found = self._read_sum(place)
        if found is None:
            # Once an attempt is closed, sites may have confirmed it. A site confirms only one
            # attempt at a sum, so no other attempt may be begun.
            closed = self._read_sum(place.with_suffix(".closed"))
            if closed is None:
                closed = self._closed_attempt(task, number, layout, skipped)
                self._write_sum(place.with_suffix(".closed"), *closed)
            found = self._open_sum(task, number, *closed, skipped), closed[1]
            self._write_sum(place, *found)
        words, opening = found
        self.phases.state.private |= {k: of for k, of in opening.private.items() if of}
        added = layout.read(from_words(words, len(opening.survivors)))
        check_all_added(added, len(opening.survivors))
        return self._reply(task, added)

    def _next_number(self, round: int) -> int:
        self._number = 0 if round != self._round else self._number + 1
        self._round = round
        return self._number

    def _closed_attempt(
        self, task: Task, number: int, layout: Layout, skipped: dict[int, str]
    ) -> tuple[Words, Opening]:
        """Make attempts until one succeeds; return the masked sum, and what is needed to open it.

        A site that fails is left out of the next attempt. Where too few sites are left, all are
        asked again, at most `MAX_REPEATS` times. Raises ProtocolError.
        """
        every = sorted(self.phases.here if task.site == ALL_SITES else self.cohort)
        self._check_enough(every, every, "are here")
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
            else:  # a site that failed in an earlier attempt may have survived this one
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
        """Make one attempt, up to the step that adds the numbers.

        every: all sites that the sum should be of. asked: those that take part in this attempt.
        skipped: the reasons of sites that fail are added to it. Raises TooFewSites where another
        attempt may succeed.
        """
        before = self._read_attempts(task, number)
        self._write_attempts(task, number, replace(before, attempt=before.attempt + 1))
        context = self._context(task, number, before.attempt + 1)
        step = SumStep(number, "announce", context.attempt)
        announced = self._ask(task, {k: step for k in asked}, skipped)
        announcements = {
            k: one
            for k, of in announced.items()
            if (one := of.announcement)
            and self._is_valid(k, one, partial(check_announcement, context), skipped)
        }
        newest = {one.site: one for one in before.announced} | announcements
        self._write_attempts(task, number, Attempts(context.attempt, tuple(newest.values())))
        members = tuple(sorted(announcements))
        self._check_enough(members, every, "announced keys")
        used = tuple(announcements[k] for k in members)
        shared = self._ask(task, self._member_steps(context, "share", used), skipped)
        self._check_enough(tuple(shared), every, "shared their secrets")
        # The others have already shared their secrets with a member that failed: begin anew.
        if set(shared) != set(members):
            raise TooFewSites(f"{len(shared)} of {len(members)} sites shared their secrets")
        sealed = tuple(box for of in shared.values() for box in of.sealed)
        # A site that added numbers to an earlier attempt demands proof that that one is dead.
        steps = self._member_steps(context, "add", used, before.announced and newest.values())
        total, private = self._add_numbers(task, steps, layout, skipped)
        survivors = tuple(sorted(private))
        self._check_enough(survivors, members, "added their numbers")
        question = question_digest(task, computing_settings(self.phases.experiment))
        return total, Opening(context.attempt, members, survivors, used, sealed, private, question)

    def _is_valid(
        self,
        site: int,
        one: Signed,
        check: Callable[[Signed, Mapping[int, str]], None],
        skipped: dict[int, str],
    ) -> bool:
        """Return whether a signed announcement or confirmation is valid.

        If it is not, the site is left out, and the reason is noted in `skipped` and printed.
        """
        try:
            if one.site != site:
                raise ProtocolError(f"signed as site {one.site}")
            check(one, self.agreed)
        except ProtocolError as error:
            skipped[site] = str(error)
            self.phases.progress.note(f"site {site} is left out of a masked sum: {error}")
            return False
        return True

    def _member_steps(
        self,
        context: SumContext,
        stage: Literal["share", "add"],
        announcements: Sequence[Announcement],
        newest: Collection[Announcement] = (),
    ) -> dict[int, SumStep]:
        """Return the step for every member, with the announcements of its neighbours.

        announcements: of all members, sorted by site. newest: the newest announcements of all sites
        in all attempts at this sum; empty: no proof about earlier attempts is needed.
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

    def _add_numbers(
        self, task: Task, steps: Mapping[int, SumStep], layout: Layout, skipped: dict[int, str]
    ) -> tuple[Words, dict[int, str]]:
        """Return the sum of the masked numbers, and by survivor what it keeps to itself."""
        phases, pool = self.phases, self.phases.pool
        before, schema = phases.schemas, {MASKED_ROW: ((layout.size,), torch.int64)}
        phases.schemas = {**before, MASKED: schema}
        transport, kept = phases.experiment.transport, dict(phases.state.private)
        try:
            tasks = [self._task_for(task, k, step, task.models) for k, step in steps.items()]
            failed: dict[int, str] = {}
            replies = phases.run(tasks, failed)
            skipped |= failed
            total = np.zeros(layout.size, np.uint64)
            private = {}
            for reply in replies:
                who, named = f"site {reply.site}'s masked numbers", reply.contents[MASKED]
                words = PARSED_MODELS.get(named, pool.get, schema, who, transport)[MASKED_ROW]
                total += words.numpy().view(np.uint64)
                private[reply.site] = reply.private
        finally:
            phases.schemas = before
            pool.drop_role(MASKED)
            phases.state.private = kept  # as long as the sum is not opened sites begin from there
        return total, private

    def _open_sum(
        self, task: Task, number: int, total: Words, opening: Opening, skipped: dict[int, str]
    ) -> Words:
        """Let the survivors confirm and open the sum; return the unmasked sum."""
        context = self._context(task, number, opening.attempt)
        members, survivors = opening.members, opening.survivors
        announcements = {one.site: one for one in opening.announcements}
        announced = announcements_digest(context, opening.announcements)
        confirm = SumStep(
            number, "confirm", opening.attempt, members, announced, survivors=survivors
        )
        answers = self._ask(task, {k: confirm for k in survivors}, skipped)
        check = partial(check_confirmation, context, confirm)
        confirmed = {
            k: one
            for k, of in answers.items()
            if (one := of.confirmation) and self._is_valid(k, one, check, skipped)
        }
        self._check_enough(tuple(confirmed), members, "confirmed who is left")
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
        opened = self._ask(task, steps, skipped)
        found = unmask(context, opening.question, members, survivors, total, announcements, opened)
        for site in found.wrong:
            skipped[site] = "opened wrong shares of a masked sum"
            self.phases.progress.note(f"site {site} {skipped[site]}: the sum is right without them")
        return found.words

    def _ask(
        self, task: Task, steps: Mapping[int, SumStep], skipped: dict[int, str]
    ) -> dict[int, SumAnswer]:
        """Send a step that needs no work on images; return the answers by site."""
        tasks = [self._task_for(task, k, step, {}) for k, step in steps.items()]
        failed: dict[int, str] = {}
        replies = self.phases.run(tasks, failed)
        skipped |= failed
        return {reply.site: reply.sum for reply in replies if reply.sum is not None}

    def _task_for(
        self, task: Task, site: int, step: SumStep, models: Mapping[str, tuple[ModelRef, ...]]
    ) -> Task:
        """Return the task of one site, with its own model and what it keeps to itself."""
        own, private = self.phases.pool.latest(site), self.phases.state.private.get(site, "")
        return replace(task, site=site, own=own, models=models, private=private, sum=step)

    def _check_enough(self, found: Sequence[int], of: Sequence[int], what: str) -> None:
        """Raise TooFewSites where too few of the sites are left. what: what they did."""
        least = self._least(len(of))
        if len(found) < least:
            raise TooFewSites(
                f"{len(found)} of {len(of)} sites {what}; a masked sum needs {least}: a third of "
                f"them may be lost, but {self.least} must be left (privacy.least_members)"
            )

    def _least(self, sites: int) -> int:
        """Return how many of `sites` sites must be left."""
        return max(self.least, quorum(sites))

    def _context(self, task: Task, number: int, attempt: int) -> SumContext:
        run = self.run_name, self.identity, self.experiment
        return SumContext(*run, task.round, number, attempt)

    # --- what came of it --------------------------------------------------------------------------

    def _reply(self, task: Task, added: Contribution) -> Reply:
        """Return the sum as the reply of the site that stands for all, and store its contents.

        Raises ProtocolError where the method refuses the sum.
        """
        phases, site = self.phases, task.site
        facts = self.facts[site] = facts_of_all(self.like, site, added)
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
        arrived = {role: _as_arrived(of) for role, of in added.contents.items()}
        phases.experiment.method.check_reply(task, reply, facts)
        phases.experiment.method.check_contents(task, reply, arrived, facts)
        for role, digest in reply.new_contents(task.own.digest).items():
            phases.pool.upload(site, digest, blobs[role], task.round, role)
        return reply

    # --- written down -----------------------------------------------------------------------------

    def _read_sum(self, place: Path) -> tuple[Words, Opening] | None:
        """Return a sum that was written before the run was interrupted; None: there is none."""
        if not place.exists():
            return None
        try:
            head, _, blob = place.read_bytes().partition(b"\n")
            words = load(blob)[MASKED_ROW].numpy().view(np.uint64)
            return words, _OPENING.validate_json(head)
        except (SafetensorError, KeyError, ValueError, OSError) as error:
            raise StoreError(f"{place}: the sum of a round is damaged: start again") from error

    def _read_attempts(self, task: Task, number: int) -> Attempts:
        place = self._attempts_path(task, number)
        try:
            return _BEGUN.validate_json(place.read_bytes()) if place.exists() else Attempts()
        except (OSError, ValueError) as error:
            raise StoreError(f"{place}: the attempts of a sum are damaged: start again") from error

    def _write_attempts(self, task: Task, number: int, attempts: Attempts) -> None:
        durable = bool(self.experiment)
        write_atomic(self._attempts_path(task, number), to_json(attempts), durable=durable)

    def _attempts_path(self, task: Task, number: int) -> Path:
        return self.root / f"{task.round}-{number}.attempts"

    def _write_sum(self, place: Path, words: Words, opening: Opening) -> None:
        tensor = torch.from_numpy(words.view(np.int64).copy())
        write_atomic(
            place,
            to_json(opening) + b"\n" + to_bytes({MASKED_ROW: tensor}),
            durable=bool(self.experiment),
        )


_BY_SITE = (STEPS, IMAGES)
"""Metrics of which the mean over sites is reported, not the sum."""


def as_single_site(facts: SiteFacts) -> SiteFacts:
    """Return the facts of all sites as those of a site with a name that reports can show."""
    return replace(facts, site=0, name="all-sites")


def _as_arrived(params: Params) -> Arrived:
    return Arrived(params, frozenset(params))
