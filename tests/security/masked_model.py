"""A model of masked sums that a program searches: the state machine of docs/MASKED_SUMS.md.

No code of the project is in it. Honest sites keep their rules. The server and the attacker's sites
may send what they like: ask in any order, say anything in their own name, show each site other
members and other survivors, ask each a question of its own, repeat any message that was ever sent,
stop a site at any step, begin further attempts under other run names, and put an older copy of a
site's folder back. The search walks through all states that can be reached so and asks of each
whether a promise is broken. What the server has learned is computed from the secrets that it can
put together, not from the rules. States that sites keep between sums are not in it.

Each rule can be taken away (`without`): then the search must find how the promises fall.

python -m tests.security.masked_model    # prints every search, and of each fall the steps to it
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import combinations, permutations, product
from random import Random
from typing import NamedTuple

RULES = {
    "proof": "who added to an earlier attempt adds again only with the proof that it is dead",
    "final": "who confirmed a sum never announces it, or an earlier one, again",
    "pays": "a row is paid for before it leaves, not when it is confirmed",
    "noise": "each attempt has noise of its own",
    "announcements": "what is signed names the digest of all announcements",
    "run": "what is signed names the run",
    "attempt": "what is signed names the attempt",
    "journal": "one journal for all runs of an identity",
    "head": "an older copy of the folder is found by the head that lies outside of it",
    "cohort": "secrets are shared with the members of one list in an attempt",
    "list": "one list of survivors is confirmed in an attempt",
    "row": "one row is added in an attempt",
    "question": "the masks between two members are of what each of them was asked",
    "quorum": "twice the quorum is more than members and insiders together",
    "durable": "the journal is written before an answer leaves",
    "added": "which attempt was added to last is kept when a new one is announced",
}


class Announced(NamedTuple):
    """An announcement of keys. drawn: which draw of the nonce it was; it makes the keys others."""

    sum: int
    run: int
    attempt: int
    drawn: int


class Cohort(NamedTuple):
    """With whom a site does an attempt. members: a set of bits. keys: of each honest member."""

    sum: int
    run: int
    attempt: int
    members: int
    keys: tuple[Announced | None, ...]


class Journal(NamedTuple):
    """What a site keeps of masked sums. added: sum, attempt and members of the last row added."""

    newest: Announced | None = None
    cohort: Cohort | None = None
    row: int | None = None
    survivors: int | None = None
    added: tuple[int, int, int] | None = None
    final: int = -1


class Site(NamedTuple):
    """An honest site. sent: all that ever left it. past: older copies of its folder."""

    journals: tuple[Journal, ...]
    paid: frozenset[int] = frozenset()
    sent: frozenset[tuple] = frozenset()
    back: int = 0
    past: tuple[tuple, ...] = ()
    stopped: bool = False


State = tuple[Site, ...]


@dataclass(frozen=True)
class Found:
    """A broken promise, and the steps that lead to it."""

    promise: str
    trace: tuple[str, ...]

    def __str__(self) -> str:
        steps = "\n".join(f"  {at:2} {step}" for at, step in enumerate(self.trace, 1))
        return f"{self.promise}\n{steps}"


@dataclass(frozen=True)
class Result:
    """What a search came to. depth: of the deepest states. whole: all states were searched."""

    found: Found | None
    states: int
    depth: int
    whole: bool


@dataclass(frozen=True)
class Model:
    """A small federation. The honest sites come first, then the attacker's.

    least: members of a sum at least. sums: rounds and numbers, in their order. attempts, runs: how
    many the server tries. contents: questions that it can ask a site; each has a row of its own.
    backs: how often a folder may be put back; others_only: promises are then asked of the sites to
    which it did not happen.
    kills: a site can also be stopped after the journal was written and before its answer left.
    cohorts: lists of members that the server tries; empty: all. without: rules that are taken away.
    eager: a sum is opened as soon as it can be, which a server does anyway.
    """

    honest: int = 3
    attackers: int = 1
    least: int = 4
    sums: int = 1
    attempts: int = 2
    runs: int = 1
    contents: int = 1
    backs: int = 0
    others_only: bool = False
    kills: bool = False
    cohorts: tuple[int, ...] = ()
    without: frozenset[str] = frozenset()
    eager: bool = True
    promises: frozenset[str] = frozenset()
    """Which promises are asked; empty: all."""
    _quorums: dict[int, int] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        assert self.without <= RULES.keys()

    def lacks(self, rule: str) -> bool:
        return rule in self.without

    def quorum(self, members: int) -> int:
        """How many must confirm, of a set of members; the same number of shares opens a secret."""
        if members not in self._quorums:
            n = members.bit_count()
            third = -(-2 * n // 3)
            strict = (n + max(self.attackers, 1)) // 2 + 1
            self._quorums[members] = third if self.lacks("quorum") else max(third, strict)
        return self._quorums[members]

    @cached_property
    def hostile(self) -> int:
        return ((1 << self.attackers) - 1) << self.honest

    @cached_property
    def lists(self) -> tuple[int, ...]:
        """All lists of members that a site accepts."""
        every = range(self.honest + self.attackers)
        sizes = range(self.least, len(every) + 1)
        found = (sum(1 << k for k in some) for n in sizes for some in combinations(every, n))
        return self.cohorts or tuple(m for m in found if self.quorum(m) <= m.bit_count())

    def start(self) -> State:
        journals = (Journal(),) * (self.runs if self.lacks("journal") else 1)
        return (Site(journals),) * self.honest

    # --- what is bound ----------------------------------------------------------------------------

    def binds(self, cohort: Cohort) -> tuple:
        """Return what signatures, masks and boxes of a cohort are bound to."""
        return (
            cohort.sum,
            None if self.lacks("run") else cohort.run,
            None if self.lacks("attempt") else cohort.attempt,
            cohort.members,
            None if self.lacks("announcements") else cohort.keys,
        )

    def same_sum(self, one: Announced, other: Announced) -> bool:
        """Whether an announcement passes as one of the other's attempt."""
        return (
            one.sum == other.sum
            and (self.lacks("run") or one.run == other.run)
            and (self.lacks("attempt") or one.attempt == other.attempt)
        )

    # --- an honest site's steps -------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[tuple[tuple, State]]:
        """Return all that can happen next: what it is, and the state after it."""
        for i, site in enumerate(state):
            if site.stopped:
                continue
            for at, journal in enumerate(site.journals):
                for what, after, message, paid in self._asked(state, i, at, journal):
                    yield from self._done(state, i, at, what, after, message, paid)
                if self.kills or not self.eager:
                    yield from self._again(state, i, journal)
            yield from self._put_back(state, i)

    def _asked(
        self, state: State, i: int, at: int, journal: Journal
    ) -> Iterator[tuple[tuple, Journal, tuple, int | None]]:
        yield from self._announce(state[i], at, journal)
        if journal.newest is None:
            return
        if journal.cohort is None or (self.lacks("cohort") and journal.row is None):
            for members in self.lists:
                if members >> i & 1:
                    for cohort in self._cohorts(state, i, journal.newest, members):
                        if cohort != journal.cohort:
                            after = journal._replace(cohort=cohort)
                            yield ("share", members), after, ("B", cohort), None
        if (cohort := journal.cohort) is None:
            return
        if journal.row is None or self.lacks("row"):
            for row in range(self.contents):
                if row != journal.row and self._dead(state, i, journal):
                    added = (cohort.sum, cohort.attempt, cohort.members)
                    after = journal._replace(row=row, added=added)
                    message = ("R", cohort, row, self._noise(cohort))
                    paid = None if self.lacks("pays") else cohort.sum
                    yield ("add", row), after, message, paid
        yield from self._confirm(i, journal, cohort)

    def _confirm(
        self, i: int, journal: Journal, cohort: Cohort
    ) -> Iterator[tuple[tuple, Journal, tuple, int]]:
        if journal.row is not None and (journal.survivors is None or self.lacks("list")):
            for survivors in self._survivors(cohort.members, i):
                if survivors != journal.survivors:
                    final = max(journal.final, cohort.sum)
                    after = journal._replace(survivors=survivors, final=final)
                    yield ("confirm", survivors), after, ("C", cohort, survivors), cohort.sum

    def _announce(
        self, site: Site, at: int, journal: Journal
    ) -> Iterator[tuple[tuple, Journal, tuple, None]]:
        newest = (-1, 0) if journal.newest is None else (journal.newest.sum, journal.newest.attempt)
        for s, a, run in product(range(self.sums), range(1, self.attempts + 1), range(self.runs)):
            if (s, a) <= newest or (s <= journal.final and not self.lacks("final")):
                continue
            if self.lacks("journal") and run != at:
                continue
            if journal.added and journal.added[0] == s and run != journal.newest.run:
                continue  # what was added under one name is gone on with under that name
            one = Announced(s, run, a, site.back)
            keeps = journal.added and journal.added[0] == s and not self.lacks("added")
            added = journal.added if keeps else None
            after = Journal(one, added=added, final=journal.final)
            yield ("announce", s, run, a), after, ("A", one), None

    def _cohorts(self, state: State, i: int, mine: Announced, members: int) -> Iterator[Cohort]:
        """Return the cohorts of these members that site i can be shown, by its announcement."""
        choices: list[list[Announced | None]] = []
        for j, other in enumerate(state):
            if not members >> j & 1:
                choices.append([None])
            elif j == i:
                choices.append([mine])
            else:
                said = sorted(m[1] for m in other.sent if m[0] == "A")
                choices.append([one for one in said if self.same_sum(one, mine)])
        for keys in product(*choices):
            yield Cohort(mine.sum, mine.run, mine.attempt, members, keys)

    def _dead(self, state: State, i: int, journal: Journal) -> bool:
        """Whether enough members of the attempt that was added to before have abandoned it."""
        assert journal.cohort is not None
        if self.lacks("proof") or journal.added is None:
            return True
        s, before, members = journal.added
        if (s, before) >= (journal.cohort.sum, journal.cohort.attempt):
            return True
        run = journal.cohort.run
        gone = (members & self.hostile).bit_count()
        for j, other in enumerate(state):
            if members >> j & 1:
                gone += any(
                    m[0] == "A"
                    and m[1].sum == s
                    and m[1].attempt > before
                    and (m[1].run == run or self.lacks("run"))
                    for m in other.sent
                )
        return gone >= self.quorum(members)

    def _noise(self, cohort: Cohort) -> tuple:
        return ("noise", cohort.sum) if self.lacks("noise") else ("noise", cohort)

    def _survivors(self, members: int, i: int) -> list[int]:
        return _parts(members, self.quorum(members), i)

    # --- what becomes of a step -------------------------------------------------------------------

    def _done(
        self,
        state: State,
        i: int,
        at: int,
        what: tuple,
        after: Journal,
        message: tuple,
        paid: int | None,
    ) -> Iterator[tuple[tuple, State]]:
        site = state[i]
        journals = (*site.journals[:at], after, *site.journals[at + 1 :])
        past = site.past
        if self.backs:
            older = site.journals, site.paid
            past = past if older in past else (*past, older)
        there = site.paid if paid is None else site.paid | {paid}
        sent = site.sent | {message}
        done = site._replace(journals=journals, paid=there, sent=sent, past=past)
        yield (*what[:1], i, *what[1:]), self._settled(_with(state, i, done))
        if self.kills:
            silent = done._replace(sent=site.sent)
            yield ("stop after", i, *what), self._settled(_with(state, i, silent))
        if self.lacks("durable"):
            lost = site._replace(sent=sent)
            yield ("stop before", i, *what), self._settled(_with(state, i, lost))

    def _again(self, state: State, i: int, journal: Journal) -> Iterator[tuple[tuple, State]]:
        """A request comes again: the site gives the answer that its journal stands for."""
        site, cohort, sent = state[i], journal.cohort, []
        if journal.newest is not None:
            sent.append(("A", journal.newest))
        if cohort is not None:
            sent.append(("B", cohort))
            if journal.row is not None:
                sent.append(("R", cohort, journal.row, self._noise(cohort)))
            if journal.survivors is not None:
                sent.append(("C", cohort, journal.survivors))
                if self._opens(state, i, cohort, journal.survivors):
                    sent.append(("O", cohort, journal.survivors))
        for message in sent:
            if message not in site.sent:
                done = site._replace(sent=site.sent | {message})
                yield ("again", i, message[0]), self._settled(_with(state, i, done))

    def _put_back(self, state: State, i: int) -> Iterator[tuple[tuple, State]]:
        site = state[i]
        if sum(one.back for one in state) >= self.backs:
            return
        if self.lacks("head"):
            for journals, paid in site.past:
                older = site._replace(journals=journals, paid=paid, back=site.back + 1, past=())
                yield ("put back", i), self._settled(_with(state, i, older))
        elif site.past:  # the head outside is newer: the site stops, for good
            stopped = site._replace(stopped=True, back=site.back + 1, past=())
            yield ("put back", i), _with(state, i, stopped)

    def _opens(self, state: State, i: int, cohort: Cohort, survivors: int) -> bool:
        """Whether the server has the confirmations that make this site open its shares."""
        bound, count = self.binds(cohort), (survivors & self.hostile).bit_count()
        for j, other in enumerate(state):
            if survivors >> j & 1:
                count += any(
                    m[0] == "C" and m[2] == survivors and self.binds(m[1]) == bound
                    for m in other.sent
                )
        return count >= self.quorum(cohort.members)

    def _settled(self, state: State) -> State:
        """Have every site open what it would open if it were asked now."""
        if not self.eager:
            return state
        for i, site in enumerate(state):
            if site.stopped:
                continue
            for journal in site.journals:
                if journal.survivors is None or journal.cohort is None:
                    continue
                message = ("O", journal.cohort, journal.survivors)
                if message in site.sent:
                    continue
                if self.kills and ("C", *message[1:]) not in site.sent:
                    continue
                if self._opens(state, i, *message[1:]):
                    site = site._replace(sent=site.sent | {message})
                    state = _with(state, i, site)
        return state

    # --- what the server has learned --------------------------------------------------------------

    def broken(self, state: State) -> str | None:
        """Return which promise is broken in a state; None: none is."""
        for promise, names in self._broken(state):
            if not self.promises or promise in self.promises:
                return f"{promise}: {names}"
        return None

    def _broken(self, state: State) -> Iterator[tuple[str, str]]:
        for i, site in enumerate(state):
            if self.others_only and site.back:
                continue
            yield from self._said(i, site)
        if not any(m[0] == "O" for site in state for m in site.sent):
            return
        own, pairs = self._secrets(state)
        for j, of in sorted(own & pairs):
            if not (self.others_only and state[j].back):
                yield "both secrets", f"both secrets of {self.name(j)} in {_named(of)} are known"
        sums: dict[tuple[int, int], set[frozenset]] = {}
        for rows in self._learned(state, own, pairs):
            yield from self._judged(state, rows)
            for j, (_, cohort, _, _) in rows:
                sums.setdefault((j, cohort.sum), set()).add(rows)
        for (j, s), found in sums.items():
            if len(found) > 1 and not (self.others_only and state[j].back):
                yield (
                    "paid twice",
                    f"{self.name(j)}'s row of sum {s} is in {len(found)} opened sums",
                )

    def _said(self, i: int, site: Site) -> Iterator[tuple[str, str]]:
        """What a site says must not contradict itself."""
        confirmed: dict[tuple, set] = {}
        rows: dict[tuple, set] = {}
        for m in site.sent:
            if m[0] == "C":
                confirmed.setdefault((m[1].sum, m[1].attempt), set()).add(m[1:])
            elif m[0] == "R":
                rows.setdefault((m[1].keys[i], self.binds(m[1])), set()).add(m[2])
        for (s, attempt), lists in confirmed.items():
            if len(lists) > 1:
                yield "two lists", f"{self.name(i)} confirmed {len(lists)} lists of one attempt"
            for m in site.sent:
                if m[0] == "A" and m[1].sum == s and m[1].attempt > attempt:
                    yield "confirmed, abandoned", f"{self.name(i)} did both to attempt {attempt}"
        for contents in rows.values():
            if len(contents) > 1:
                yield "two rows", f"{self.name(i)} added {len(contents)} rows under one set of keys"

    def _secrets(self, state: State) -> tuple[set[tuple], set[tuple]]:
        """Return of whom the own mask's seed, and the key for masks, can be put together.

        Shares are of one polynomial for each owner, its keys, and what the cohort is bound to.
        """
        opened = [(i, m) for i, site in enumerate(state) for m in site.sent if m[0] == "O"]
        shares: tuple[dict[tuple, set[int]], dict[tuple, set[int]]] = ({}, {})
        for j, site in enumerate(state):
            for message in site.sent:
                if message[0] != "B":
                    continue
                cohort = message[1]
                bound = self.binds(cohort)
                which = (j, cohort.keys[j], bound)
                for kind in shares:
                    of = kind.setdefault(which, set())
                    of |= {
                        -1 - k
                        for k in range(self.attackers)
                        if cohort.members >> (self.honest + k) & 1
                    }
                for i, (_, theirs, survivors) in opened:
                    fits = theirs.keys[j] == cohort.keys[j] and theirs.keys[i] == cohort.keys[i]
                    if fits and self.binds(theirs) == bound:
                        kind = shares[0] if survivors >> j & 1 else shares[1]
                        kind[which].add(i)
        own, pairs = (
            {
                (j, keys)
                for (j, keys, bound), holders in kind.items()
                if len(holders) >= self.quorum(bound[3])
            }
            for kind in shares
        )
        return own, pairs

    def _learned(
        self, state: State, own: set[tuple], pairs: set[tuple]
    ) -> set[frozenset[tuple[int, tuple]]]:
        """Return the sums of honest rows that are left when all known masks are taken off.

        A row whose own mask is known still has a mask with each honest member where the server has
        neither one's key; it cancels against that member's row alone, the answer to the same.
        """
        bare = [
            (j, m)
            for j, site in enumerate(state)
            for m in site.sent
            if m[0] == "R" and (j, m[1].keys[j]) in own
        ]
        found = set()
        for first in bare:
            group, wanted, closed = {first[0]: first[1]}, [first], True
            while wanted and closed:
                j, (_, cohort, asked, _) = wanted.pop()
                if (j, cohort.keys[j]) in pairs:
                    continue
                for k, keys in enumerate(cohort.keys):
                    if keys is None or k in group or (k, keys) in pairs:
                        continue
                    fitting = [
                        (k, m)
                        for i, m in bare
                        if i == k
                        and (self.lacks("question") or m[2] == asked)
                        and self.binds(m[1]) == self.binds(cohort)
                        and m[1].keys[k] == keys
                        and m[1].keys[j] == cohort.keys[j]
                    ]
                    if not fitting:
                        closed = False
                        break
                    group[k] = fitting[0][1]
                    wanted.append(fitting[0])
            if closed:
                found.add(frozenset(group.items()))
        return found

    def _judged(
        self, state: State, rows: frozenset[tuple[int, tuple]]
    ) -> Iterator[tuple[str, str]]:
        """What must hold of every sum that was opened."""
        members = next(iter(rows))[1][1].members
        spoilt = self.hostile
        if self.others_only:
            spoilt |= sum(1 << j for j, site in enumerate(state) if site.back)
        promised = self.quorum(members) - (members & spoilt).bit_count()
        if sum(1 for j, _ in rows if not spoilt >> j & 1) < promised:
            names = ", ".join(self.name(j) for j, _ in sorted(rows))
            yield "too few rows", f"the sum of {names} alone is known, {promised} are promised"
        if len({row[2] for _, row in rows}) > 1:
            yield "two questions", "the rows of an opened sum answer different questions"
        for j, row in rows:
            if self.others_only and state[j].back:
                continue
            if row[1].sum not in state[j].paid:
                yield "not paid", f"{self.name(j)}'s row of sum {row[1].sum} is in an opened sum"
            if any(m[0] == "R" and m != row and m[3] == row[3] for m in state[j].sent):
                yield "noise again", f"{self.name(j)}'s opened row has the noise of an earlier row"

    # --- names ------------------------------------------------------------------------------------

    def name(self, k: int) -> str:
        return "ABCDEFGH"[k] if k < self.honest else "XYZ"[k - self.honest]

    def names(self, members: int) -> str:
        every = range(self.honest + self.attackers)
        return "".join(self.name(k) for k in every if members >> k & 1)

    def told(self, what: tuple) -> str:
        """Return a step in words."""
        verb, i, *rest = what
        if verb in ("stop after", "stop before"):
            said = self.told((rest[0], i, *rest[1:]))
            where = "before the answer leaves" if verb == "stop after" else "before the journal"
            return f"{said}; it is killed {where}"
        said = {
            "announce": "announces keys for sum {}, run {}, attempt {}",
            "share": "shares its secrets with {}",
            "add": "adds row {}",
            "confirm": "confirms the survivors {}",
            "again": "gives its answer {} again",
            "put back": "has an older copy of its folder put back",
        }[verb]
        if verb in ("share", "confirm"):
            rest = [self.names(rest[0])]
        return f"{self.name(i)} {said.format(*rest)}"


class Symmetry:
    """States by number, and one for all that differ by the names of honest sites alone."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.sites: list[Site] = []
        self._numbers: dict[Site, int] = {}
        self._orders = list(permutations(range(model.honest)))
        self._renamed: dict[tuple[int, int], int] = {}
        self._alike: dict[int, int] = {}
        self._sorting: dict[tuple[int, ...], list[int]] = {}

    def number(self, site: Site) -> int:
        found = self._numbers.setdefault(site, len(self.sites))
        if found == len(self.sites):
            self.sites.append(site)
        return found

    def state(self, numbers: tuple[int, ...]) -> State:
        return tuple(self.sites[k] for k in numbers)

    def canonical(self, state: State) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the state's one form, and where each site went in it."""
        numbers = [self.number(site) for site in state]
        kinds = tuple(self._kind(k) for k in numbers)
        best = None
        for order in self._sorted(kinds):
            places, form = self._orders[order], [0] * len(numbers)
            for k, place in zip(numbers, places, strict=True):
                form[place] = self._rename(k, order)
            if best is None or tuple(form) < best[0]:
                best = tuple(form), places
        assert best is not None
        return best

    def _sorted(self, kinds: tuple[int, ...]) -> list[int]:
        """Return the orders that put sites of lower kind first."""
        if kinds not in self._sorting:

            def sorts(places: tuple[int, ...]) -> bool:
                by_place = [kinds[places.index(at)] for at in range(len(kinds))]
                return by_place == sorted(by_place)

            self._sorting[kinds] = [k for k, of in enumerate(self._orders) if sorts(of)]
        return self._sorting[kinds]

    def _kind(self, number: int) -> int:
        if number not in self._alike:
            every = (self._rename(number, order) for order in range(len(self._orders)))
            self._alike[number] = min(every)
        return self._alike[number]

    def _rename(self, number: int, order: int) -> int:
        found = self._renamed.get((number, order))
        if found is None:
            found = self.number(self._other(self.sites[number], self._orders[order]))
            self._renamed[number, order] = found
        return found

    def _other(self, site: Site, places: tuple[int, ...]) -> Site:
        def of(what: object) -> object:
            if isinstance(what, Cohort):
                keys: list[Announced | None] = [None] * len(places)
                for k, place in enumerate(places):
                    keys[place] = what.keys[k]
                return what._replace(members=moved(what.members, places), keys=tuple(keys))
            if isinstance(what, Journal):
                added = what.added and (*what.added[:2], moved(what.added[2], places))
                lists = what.survivors and moved(what.survivors, places)
                return what._replace(cohort=of(what.cohort), survivors=lists, added=added)
            if isinstance(what, tuple) and what and what[0] in ("C", "O"):
                return (what[0], of(what[1]), moved(what[2], places))
            if isinstance(what, tuple) and not isinstance(what, Announced):
                return tuple(of(one) for one in what)
            return what

        return site._replace(
            journals=tuple(of(one) for one in site.journals),
            sent=frozenset(of(one) for one in site.sent),
            past=tuple((tuple(of(one) for one in js), paid) for js, paid in site.past),
        )


def moved(members: int, places: tuple[int, ...]) -> int:
    """Return a set of sites in which the honest ones have other places."""
    found = members >> len(places) << len(places)
    for k, place in enumerate(places):
        found |= (members >> k & 1) << place
    return found


def search(model: Model, depth: int = 99, most: int = 10_000_000) -> Result:
    """Walk breadth first through all states up to a depth; stop at the first broken promise.

    States that differ by the names of honest sites alone are one. most: states.
    """
    names = Symmetry(model)
    start, _ = names.canonical(model.start())
    seen: dict[tuple[int, ...], tuple | None] = {start: None}
    layer = [start]
    for at in range(depth):
        following = []
        for kept in layer:
            for what, after in model.steps(names.state(kept)):
                form, places = names.canonical(after)
                if form in seen:
                    continue
                seen[form] = (kept, what, places)
                following.append(form)
                if promise := model.broken(names.state(form)):
                    found = Found(promise, _trace(model, seen, form))
                    return Result(found, len(seen), at + 1, False)
                if len(seen) >= most:
                    return Result(None, len(seen), at, False)
        if not following:
            return Result(None, len(seen), at, True)
        layer = following
    return Result(None, len(seen), depth, False)


_LATER = {"confirm": 1, "add": 2, "share": 4, "announce": 8}
"""Which steps `dive` tries later: it finishes what is begun before it begins more."""


def dive(model: Model, seed: int = 0, most: int = 300_000) -> Found | None:
    """Walk depth first, in an order that the seed draws; return a broken promise in few steps.

    For searches that are meant to find something: it is deep there sooner than `search`, and of the
    steps to it those are dropped without which it breaks just so.
    """
    random = Random(seed)
    seen = {model.start()}
    path: list[tuple[tuple | None, Iterator[tuple[tuple, State]]]] = []

    def ahead(state: State) -> Iterator[tuple[tuple, State]]:
        following = list(model.steps(state))
        return iter(sorted(following, key=lambda one: random.random() * _LATER.get(one[0][0], 1)))

    path.append((None, ahead(model.start())))
    while path and len(seen) < most:
        step = next(path[-1][1], None)
        if step is None:
            path.pop()
            continue
        what, after = step
        if after in seen:
            continue
        seen.add(after)
        path.append((what, ahead(after)))
        if promise := model.broken(after):
            return _shortest(model, [one for one, _ in path if one is not None], promise)
    return None


def _shortest(model: Model, steps: list[tuple], promise: str) -> Found:
    at = len(steps) - 1
    while at >= 0:
        fewer = steps[:at] + steps[at + 1 :]
        broken = _replayed(model, fewer)
        if broken and broken.split(":")[0] == promise.split(":")[0]:
            steps, promise = fewer, broken
            at = min(at, len(steps))
        at -= 1
    return Found(promise, tuple(model.told(one) for one in steps))


def _replayed(model: Model, steps: list[tuple]) -> str | None:
    """Return what is broken after these steps; None: nothing is, or they cannot be done."""
    state = model.start()
    for wanted in steps:
        after = next((after for what, after in model.steps(state) if what == wanted), None)
        if after is None:
            return None
        state = after
    return model.broken(state)


def _trace(model: Model, seen: dict, form: tuple[int, ...]) -> tuple[str, ...]:
    """Return the steps to a state, in the names that the sites have in that state."""
    steps, names = [], tuple(range(model.honest))  # of each site of the form
    while (before := seen[form]) is not None:
        form, what, places = before
        names = tuple(names[place] for place in places)
        steps.append(model.told(_renamed(what, names)))
    return tuple(reversed(steps))


def _renamed(what: tuple, names: tuple[int, ...]) -> tuple:
    verb, i, *rest = what
    if verb in ("stop after", "stop before"):
        verb, *rest = rest
        inner = _renamed((verb, i, *rest), names)
        return (what[0], inner[1], inner[0], *inner[2:])
    if verb in ("share", "confirm"):
        rest = [moved(rest[0], names)]
    return (verb, names[i], *rest)


def _with(state: State, i: int, site: Site) -> State:
    return (*state[:i], site, *state[i + 1 :])


@lru_cache(maxsize=4096)
def _parts(members: int, least: int, of: int) -> list[int]:
    """Return the parts of a set of at least so many, this one among them."""
    every = [k for k in range(members.bit_length()) if members >> k & 1]
    sizes = range(least, len(every) + 1)
    found = (sum(1 << k for k in some) for n in sizes for some in combinations(every, n))
    return [one for one in found if one >> of & 1]


def _named(one: Announced) -> str:
    return f"attempt {one.attempt} of sum {one.sum}, run {one.run}"


_FOUR_AND_THREE = (0b10111, 0b11001)
"""Of four honest sites and one of the attacker's: A, B, C and X; A, D and X."""

HOLDS: dict[str, Model] = {
    "two attempts": Model(attempts=2),
    "two attempts under two run names": Model(attempts=2, runs=2),
    "two sums": Model(sums=2, attempts=1),
    "one attempt, killed at any step": Model(attempts=1, kills=True),
    "two attempts, two questions": Model(contents=2),
    "two attempts, a folder put back": Model(attempts=2, backs=1),
    "two attempts, nothing taken together": Model(attempts=2, eager=False),
    "three members, one of them the attacker's": Model(honest=2, least=3, attempts=3),
    "of the others, where one folder is put back unseen and nobody is in league": Model(
        honest=4, attackers=0, attempts=1, backs=1, others_only=True, without=frozenset({"head"})
    ),
}
"""Searches that end, and find nothing."""

DEEPER: dict[str, Model] = {
    "three attempts": Model(attempts=3),
    "five sites, members and survivors as the server likes": Model(honest=4, attempts=1),
    "two attempts, killed at any step": Model(attempts=2, kills=True),
}

FALLS: dict[str, Model] = {
    "proof": Model(honest=4, least=3, cohorts=_FOUR_AND_THREE),
    "added": Model(honest=4, least=3, cohorts=_FOUR_AND_THREE),
    "final": Model(promises=frozenset({"paid twice", "both secrets"})),
    "pays": Model(),
    "noise": Model(),
    "journal": Model(runs=2, attempts=1, promises=frozenset({"paid twice"})),
    "head": Model(backs=1, attempts=1, promises=frozenset({"paid twice", "both secrets"})),
    "cohort": Model(honest=4, attempts=1, cohorts=(0b10111, 0b11011)),
    "list": Model(attempts=1, promises=frozenset({"both secrets"})),
    "row": Model(attempts=1, contents=2),
    "question": Model(attempts=1, contents=2),
    "quorum": Model(honest=2, least=3, promises=frozenset({"both secrets", "too few rows"})),
    "durable": Model(attempts=1),
}
"""What the search is given to find how the promises fall without a rule."""

SECOND = ("run", "attempt", "announcements")
"""Rules without which nothing is found at this size, since others hold alone; see the page."""


def without(rule: str) -> Model:
    """Return the model in which the search finds what a rule is for."""
    model = FALLS[rule]
    return replace(model, without=model.without | {rule})


def fall(rule: str, seeds: int = 12, most: int = 20_000) -> Found | None:
    """Return how the promises fall without a rule."""
    tries = (dive(without(rule), seed, most) for seed in range(seeds))
    return next((found for found in tries if found), None)


if __name__ == "__main__":
    for title, model in {**HOLDS, **DEEPER}.items():
        print(f"{title}: {search(model)}", flush=True)
    for rule in FALLS:
        print(f"\nWithout the rule that {RULES[rule]}:\n{fall(rule)}", flush=True)
