"""What does a masked sum cost, in seconds and bytes, step by step?

`python -m bench.masks [CASE ...] [--quick]`: 10, 100 and 1,000 sites, a third of them lost after
they shared their secrets, or nobody (not at 1,000). Their numbers would be 1 MB as float32 (100 kB
at 1,000 sites). All sites are in this process, with keys of the kind that SuperNodes have (P-384),
and do their real steps. What one takes is the median over 20, in CPU time; bytes are those of
messages and words. The case `sharing` is Shamir's alone, of 100 sites, by this project and by two
libraries, in turns, in CPU time too.
"""

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from statistics import median
from typing import Annotated

import numpy as np
import shamirs
import typer
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.hazmat.primitives.asymmetric import ec

from bench.command import Quick, Turns, carry_out
from bench.measure import Times, beside, in_turns
from bench.record import Cells, save
from fedapp.ground.rng import numpy_stream
from fedapp.messages.codec import encode
from fedapp.messages.masks.context import SumContext
from fedapp.messages.masks.graph import graph, quorum
from fedapp.messages.masks.keys import Signer, fingerprint
from fedapp.messages.masks.opening import announcements_for, by_receiver, unmask
from fedapp.messages.masks.session import MaskSite, all_announced, check_announced, check_signed
from fedapp.messages.masks.shares import WIDE, combine, element, split
from fedapp.messages.masks.simulated import simulated_secret
from fedapp.messages.masks.words import from_words, to_words
from fedapp.messages.protocol import ModelRef, Reply, SumAnswer, SumStep, Task

CASES = {10: 250_000, 100: 250_000, 1000: 25_000}
"""Numbers, by sites."""
CONTEXT = SumContext("bench", "0" * 64, "0" * 64, 0, 0)
TIMED = 20
"""Sites whose steps are timed; the others remember what was checked before, by any site."""
SHARING = "sharing"
"""The case that compares sharing alone."""
PRIME = 2**127 - 1
"""Of shamirs: its own choice."""

Answers = dict[int, SumAnswer]


@dataclass
class Run:
    """One sum of so many sites: what each step takes, in seconds and in bytes down and up."""

    sites: int
    numbers: int
    lost: int
    seen: dict[str, list[tuple[float, int, int]]] = field(default_factory=dict)

    @cached_property
    def who(self) -> list[MaskSite]:
        """Return the sites."""
        signers = [Signer(ec.generate_private_key(ec.SECP384R1())) for _ in range(self.sites)]
        agreed = {k: fingerprint(signer.public) for k, signer in enumerate(signers)}
        return [MaskSite(k, simulated_secret(0, k), of, agreed, 3) for k, of in enumerate(signers)]

    def ask(self, steps: dict[int, SumStep], does: Callable[[int, SumStep], SumAnswer]) -> Answers:
        """Have sites do a step each; note what it took."""
        answers: Answers = {}
        for place, (k, step) in enumerate(steps.items()):
            if place < TIMED:
                forget(step.stage)
            began = time.process_time()
            answers[k] = does(k, step)
            took = time.process_time() - began
            if place < TIMED:
                own = ModelRef(k, 0, "0" * 64)
                down = encode(Task(k, 0, "train", own, sum=step))
                up = encode(Reply(k, 0, own.digest, sum=answers[k]))
                self.seen.setdefault(step.stage, []).append((took, len(down), len(up)))
        return answers

    def rows(self) -> Iterator[Cells]:
        """Go through the sum; return a row for each step, and for the server's own work."""
        every, who = tuple(range(self.sites)), self.who
        order = numpy_stream(0, "lost", self.sites).permutation(self.sites)
        survivors = tuple(sorted(order[self.lost :].tolist()))
        said = self.ask(
            {k: SumStep(0, "announce") for k in every}, lambda k, step: who[k].announce(CONTEXT)
        )
        announced = {k: one.announcement for k, one in said.items() if one.announcement}
        around = {k: announcements_for(CONTEXT, k, every, announced) for k in every}
        digest = all_announced(CONTEXT, announced.values())
        linked = {k: SumStep(0, "share", 1, every, digest, around[k]) for k in every}
        said = self.ask(linked, lambda k, step: who[k].share(CONTEXT, step))
        boxes = by_receiver(box for answer in said.values() for box in answer.sealed)
        del said
        rows = {k: numpy_stream(0, "numbers", k).normal(size=self.numbers) for k in survivors}
        total = np.zeros(self.numbers, np.uint64)

        def add(k: int, step: SumStep) -> SumAnswer:
            np.add(total, who[k].masked(CONTEXT, step, to_words(rows[k], self.sites)), out=total)
            return SumAnswer()

        self.ask({k: replace(linked[k], stage="add") for k in survivors}, add)
        named = SumStep(0, "confirm", 1, every, digest, survivors=survivors)
        said = self.ask(
            dict.fromkeys(survivors, named), lambda k, step: who[k].confirm(CONTEXT, step)
        )
        confirmed = tuple(one.confirmation for one in said.values() if one.confirmation)
        named = replace(named, stage="open", confirmations=confirmed)
        opened = self.ask(
            {k: replace(named, announcements=around[k], sealed=boxes[k]) for k in survivors},
            lambda k, step: who[k].opened(CONTEXT, step),
        )
        began = time.process_time()
        words = unmask(CONTEXT, every, survivors, total, announced, opened).words
        took = time.process_time() - began
        plain = np.sum(list(rows.values()), axis=0)
        assert np.abs(from_words(words, self.sites) - plain).max() < 1e-6
        links = len(graph(CONTEXT, every).holders(0)) - 1
        same: Cells = {"sites": self.sites, "lost": self.lost, "neighbours": links}
        for stage, seen in self.seen.items():
            took_here, down, up = (median(each) for each in zip(*seen, strict=True))
            sent = up + (total.nbytes if stage == "add" else 0)
            kilo = {"down_kB": round(down / 1000, 1), "up_kB": round(sent / 1000, 1)}
            yield {**same, "step": stage, "ms": round(1000 * took_here, 2), **kilo}
        yield {**same, "step": "server: unmask", "ms": round(1000 * took, 2)}


def forget(stage: str) -> None:
    """Leave what a site remembers by then: a signature that it has not seen is checked anew."""
    if stage == "share":
        check_announced.cache_clear()
    check_signed.cache_clear()


def main(
    cases: Annotated[list[str] | None, typer.Argument(metavar="[CASE]...")] = None,
    repetitions: Turns = 5,
    quick: Quick = False,
) -> None:
    """Run all cases or those named; save milliseconds and kB by step, and how fast one shares."""
    for case in ["4", SHARING] if quick else cases or [*map(str, CASES), SHARING]:
        if case == SHARING:
            sharing(1 if quick else repetitions, 6 if quick else 100)
        else:
            sites, numbers = int(case), CASES.get(int(case), 1000)
            rows = [
                row
                for lost in ([] if sites >= 1000 else [0]) + [sites // 3]
                for row in Run(sites, numbers, lost).rows()
            ]
            save(f"masks-{sites}", rows, {"numbers": numbers}, quick=quick)


def sharing(repetitions: int, sites: int) -> None:
    """Save what sharing takes, by this project and by two libraries."""
    ways = {"this project": _ours, "pycryptodome": _pycryptodome, "shamirs": _shamirs}
    runs = {name: partial(way, sites, quorum(sites)) for name, way in ways.items()}
    taken = in_turns({name: partial(_cpu, way) for name, way in runs.items()}, repetitions, 1)
    times = {name: Times(tuple(seconds)) for name, seconds in taken.items()}
    what = {"sites": sites, "what": "one site's two secrets shared, one put together"}
    save("masks-sharing", beside(times, "this project"), what, quick=repetitions == 1)


def _cpu(run: Callable[[], None]) -> float:
    began = time.process_time()
    run()
    return time.process_time() - began


def _ours(sites: int, threshold: int) -> None:
    some = [element(secrets.token_bytes(WIDE)) for _ in range(threshold)]
    for _ in range(2):
        shares = split(some[0], some[1:], range(sites))
    assert combine(dict(list(shares.items())[:threshold])) == some[0]


def _pycryptodome(sites: int, threshold: int) -> None:
    secret = secrets.token_bytes(16)
    for _ in range(2):
        shares = Shamir.split(threshold, sites, secret, False)
    assert Shamir.combine(shares[:threshold], False) == secret


def _shamirs(sites: int, threshold: int) -> None:
    secret = secrets.randbelow(PRIME)
    for _ in range(2):
        shares = shamirs.shares(secret, quantity=sites, modulus=PRIME, threshold=threshold)
    assert shamirs.interpolate(shares[:threshold], threshold=threshold) == secret


if __name__ == "__main__":
    carry_out(main)
