"""Real sites beside the model that was searched: at every step they accept and refuse the same.

Four `Summing` objects with journals on disk, real keys, masks and signatures. A server asks at
random: any site for any step of any attempt, under two run names, with other members, other
survivors, other numbers; it loses answers, asks again, and sites are killed in between.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from fedapp.core.errors import ProtocolError
from fedapp.protocol.messages import ModelRef, SumStep, Task
from fedapp.protocol.secure_aggregation.context import SumContext
from fedapp.protocol.secure_aggregation.neighbour_graph import quorum
from fedapp.protocol.secure_aggregation.server_session import boxes_by_receiver
from fedapp.protocol.secure_aggregation.simulated_keys import simulated_agreed, simulated_signer
from fedapp.protocol.secure_aggregation.site_session import announcements_digest
from fedapp.site.masked_sums import Membership, Summing
from tests.security.masked_model import Announced, Cohort, Model, State

SITES, LEAST = 4, 3
FIRST = Announced(0, 0, 1, 0)
STAGES = ("announce", "share", "add", "confirm", "open")
MODEL = Model(honest=SITES, attackers=0, least=LEAST, sums=2, attempts=3, runs=2, contents=2)


def site_of(root, site: int, run: str = "a", sites: int = SITES, least: int = LEAST) -> Summing:
    """A real site in a run of this name: all runs of an identity have one folder."""
    signer, agreed = simulated_signer(1, site), simulated_agreed(1, sites)
    return Summing(
        Membership(site, signer, agreed, least, run, "identity", "settings"), root / str(site)
    )


@dataclass
class Walk:
    """A server that asks at random, and what it knows: announcements, boxes, confirmations."""

    root: Path
    random: Random
    model: Model = MODEL
    state: State = field(default_factory=MODEL.start)
    announced: dict = field(default_factory=dict)  # (Announced, site) -> Announcement
    boxes: dict = field(default_factory=dict)  # (Cohort, site) -> Sealed
    confirmed: dict = field(default_factory=dict)  # (Cohort, survivors, site) -> Confirmation
    aim: Announced = FIRST
    members: int = 0b1111
    asked: dict = field(default_factory=dict)  # stage -> [accepted, refused]
    refusal: str = ""

    def __post_init__(self) -> None:
        self.sites = {(k, run): site_of(self.root, k, "ab"[run])
                      for k in range(SITES) for run in range(2)}  # fmt: skip

    def step(self) -> None:
        """Ask one site for one step, of the model and of the real one, and compare."""
        k, draw = self.random.randrange(SITES), self.random.random
        if draw() < 0.03:  # another attempt, mostly a later one
            later = Announced(self.aim.sum, self.aim.run, self.aim.attempt + 1, 0)
            any_one = Announced(self.random.randrange(2), self.random.randrange(2), 1, 0)
            self.aim = later if later.attempt <= 3 and draw() < 0.8 else any_one
            self.members = self.random.choice([0b1111, 0b1111, 0b0111, 0b1110, 0b1011])
        journal = self.state[k].journals[0]
        where = journal.newest if journal.newest and draw() < 0.1 else self.aim
        natural = self.natural(journal, where)
        stage = natural if draw() < 0.6 else self.random.choice(STAGES)
        members = self.members if draw() < 0.9 else self.random.choice([0b1111, 0b1101, 0b0011])
        keys = tuple(where if members >> j & 1 else None for j in range(SITES))
        cohort = journal.cohort if draw() < 0.2 else Cohort(*where[:3], members, keys)
        cohort = cohort or Cohort(*where[:3], members, keys)
        survivors = self.random.choice([journal.survivors, members, members, 0b0111, 0b0011])
        survivors = survivors or members
        what = journal.row or 0
        what = what if draw() < 0.9 else 1 - what
        after = self.expected(k, stage, where, cohort, survivors, what)
        self.refusal = "accepted"
        answer = self.real(k, stage, where, cohort, survivors, what)
        told = f"site {k}, {stage} of {where}, {cohort}, survivors {survivors:b}, row {what}"
        assert (answer is not None) == (after is not None), f"{told}: {self.refusal}"
        self.asked.setdefault(stage, [0, 0])[after is None] += 1
        if after is not None:
            self.state = (*self.state[:k], after, *self.state[k + 1 :])
            if self.random.random() < 0.9:  # else the answer is lost
                self.told(k, stage, where, cohort, survivors, answer)
        if self.random.random() < 0.05:  # killed: all that is not on the disk is forgotten
            self.sites[k, where.run] = site_of(self.root, k, "ab"[where.run])

    def natural(self, journal, where) -> str:
        """Return the stage that is the site's next."""
        if journal.newest != where:
            return "announce"
        if journal.cohort is None:
            return "share"
        if journal.row is None:
            return "add"
        return "confirm" if journal.survivors is None else "open"

    # --- the model --------------------------------------------------------------------------------

    def expected(self, k, stage, where, cohort, survivors, what):
        """Return the site after this step as the model says; None: it refuses."""
        site, journal = self.state[k], self.state[k].journals[0]
        if stage == "announce":
            if where == journal.newest and journal.row is None:
                return site if journal.final < where.sum else None
            return self.done(site, self.model._announce(site, 0, journal), ("announce", *where[:3]))
        if journal.newest != where:
            return None
        if any(cohort.members >> j & 1 and not self.knows(where, j) for j in range(SITES)) and (
            stage != "confirm" or journal.cohort != cohort
        ):
            return None
        if stage == "share" and journal.cohort == cohort:
            return site
        if stage != "share" and journal.cohort != cohort:
            return None
        return self.gone_on(k, stage, cohort, survivors, what)

    def gone_on(self, k, stage, cohort, survivors, what):
        """As `expected`, for a step in the attempt and the cohort that the site is in."""
        site, journal = self.state[k], self.state[k].journals[0]
        steps = self.model._asked(self.state, k, 0, journal)
        if stage == "share":
            return self.done(site, steps, ("share", cohort.members))
        if stage == "add":
            if journal.row == what:
                return site if journal.survivors or self.dead(k) else None
            return self.done(site, steps, ("add", what)) if self.dead(k) else None
        if survivors.bit_count() < LEAST:  # stricter than the model, which asks for a quorum alone
            return None
        if stage == "confirm" and journal.survivors != survivors:
            return self.done(site, steps, ("confirm", survivors))
        if stage == "confirm":
            return site
        if journal.survivors != survivors:
            return None
        count = sum((cohort, survivors, j) in self.confirmed for j in range(SITES))
        return site if count >= quorum(cohort.members.bit_count()) else None

    def done(self, site, steps, wanted):
        found = (after for what, after, _, _ in steps if what == wanted)
        after = next(found, None)
        return None if after is None else site._replace(journals=(after,))

    def knows(self, where, j) -> bool:
        return (where, j) in self.announced

    def dead(self, k) -> bool:
        return self.model._dead(self.state, k, self.state[k].journals[0])

    # --- the real site ----------------------------------------------------------------------------

    def context(self, where: Announced) -> SumContext:
        return SumContext("ab"[where.run], "identity", "settings", where.sum, 0, where.attempt)

    def real(self, k, stage, where, cohort, survivors, what):
        """Return what the real site answers; None: it refuses."""
        members = tuple(j for j in range(SITES) if cohort.members >> j & 1)
        step = SumStep(0, stage, where.attempt)
        if stage != "announce":
            known = [self.announced.get((where, j)) for j in members]
            keys = tuple(one for one in known if one is not None)
            step = replace(
                step, members=members, announced=announcements_digest(self.context(where), keys)
            )
            if stage != "confirm":
                step = replace(step, announcements=keys)
            if stage == "add":
                step = replace(step, earlier=self.earlier(where))
            if stage in ("confirm", "open"):
                lists = tuple(j for j in range(SITES) if survivors >> j & 1)
                step = replace(step, survivors=lists)
            if stage == "open":
                said = [self.confirmed.get((cohort, survivors, j)) for j in members]
                boxes = [
                    box for (of, _), some in self.boxes.items() if of == cohort for box in some
                ]
                step = replace(
                    step,
                    sealed=boxes_by_receiver(boxes).get(k, ()),
                    confirmations=tuple(one for one in said if one is not None),
                )
        task = Task(k, where.sum, "train", ModelRef(k, 0, "0" * 64), sum=step)
        site = self.sites[k, where.run]
        try:
            if stage == "add":
                return site.masked(task, np.array([1.5 + what, k]))
            return site.step(task)
        except ProtocolError as error:
            self.refusal = str(error)
            return None

    def earlier(self, where):
        """The newest announcement of every site in this sum and run."""
        found = {}
        for (one, j), said in sorted(self.announced.items(), key=lambda item: item[0][0].attempt):
            if one.sum == where.sum and one.run == where.run:
                found[j] = said
        return tuple(found[j] for j in sorted(found))

    def told(self, k, stage, where, cohort, survivors, answer) -> None:
        """The answer came: the server knows it, and so does the model."""
        if stage == "announce":
            message = ("A", where)
            self.announced[where, k] = answer.announcement
        elif stage == "share":
            message = ("B", cohort)
            self.boxes[cohort, k] = answer.sealed
        elif stage == "confirm":
            message = ("C", cohort, survivors)
            self.confirmed[cohort, survivors, k] = answer.confirmation
        else:
            return
        site = self.state[k]
        done = site._replace(sent=site.sent | {message})
        self.state = (*self.state[:k], done, *self.state[k + 1 :])


@pytest.mark.parametrize("seed", range(4))
def test_real_sites_do_what_the_model_does(seed, tmp_path):
    """Some thousand steps; each stage was both accepted and refused."""
    counts: dict[str, list[int]] = {}
    for part in range(8):
        walk = Walk(tmp_path / f"{part}", Random(100 * seed + part))
        for _ in range(120):
            walk.step()
        for stage, (yes, no) in walk.asked.items():
            old = counts.setdefault(stage, [0, 0])
            counts[stage] = [old[0] + yes, old[1] + no]
    assert counts.keys() == {"announce", "share", "add", "confirm", "open"}
    assert min(min(both) for both in counts.values()) >= 1, counts


@pytest.mark.parametrize("rule", ["final", "list"])
def test_sites_that_lacked_a_rule_would_be_found(rule, tmp_path):
    """The walks tell the real sites from a model without the rule: so they can fail."""
    model = replace(MODEL, without=frozenset({rule}))
    with pytest.raises(AssertionError, match="site "):
        for part in range(40):
            walk = Walk(tmp_path / f"{part}", Random(part), model)
            for _ in range(120):
                walk.step()


def test_an_attempt_of_three_is_dead_only_once_all_have_left_it(tmp_path):
    """Of three, one in league with the server: it and another would be a third's two thirds.

    Else: site 1 and the attacker's open attempt 1, site 0 and the attacker's prove it dead, and
    site 0's row is in two opened sums, paid for once.
    """
    walk = Walk(tmp_path, Random(0))

    def keys(attempt, sites):
        one, members = Announced(0, 0, attempt, 0), sum(1 << k for k in sites)
        of = Cohort(*one[:3], members, tuple(one if k in sites else None for k in range(4)))
        for k in sites:
            walk.told(k, "announce", one, of, 0, walk.real(k, "announce", one, of, 0, 0))
        return one, of

    first, cohort = keys(1, (0, 1, 3))
    for stage in ("share", "add"):
        assert walk.real(0, stage, first, cohort, 0, 0) is not None
    second, cohort = keys(2, (0, 2, 3))
    assert walk.real(0, "share", second, cohort, 0, 0) is not None
    assert walk.real(0, "add", second, cohort, 0, 0) is None
    assert "2 of its 3 members have announced keys since, 3 must" in walk.refusal
