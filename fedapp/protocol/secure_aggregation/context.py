"""The identity of a masked sum, to which all its keys, signatures and boxes are bound."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from fedapp.core.errors import ProtocolError
from fedapp.protocol.codec import encode
from fedapp.protocol.messages import Task


class MaskError(ProtocolError):
    """A step of a masked sum breaks a rule that keeps it private or correct."""


@dataclass(frozen=True)
class SumContext:
    """One attempt at one masked sum of one run.

    run: name of the run. identity: identity of the run (`run.id`). experiment: digest of its
    settings. round: from 0. number: number of the sum within the round, from 0. attempt: number of
    the attempt at this sum, from 1; each attempt has keys of its own.
    """

    run: str
    identity: str
    experiment: str
    round: int
    number: int
    attempt: int = 1

    def bind(self, purpose: str, *parts: object) -> bytes:
        """Return bytes that are unique to this purpose in this sum, to sign or to derive keys from.

        The parts are written as JSON, so that their types and the boundaries between them count.
        """
        which = [self.run, self.identity, self.experiment, self.round, self.number, self.attempt]
        return json.dumps(["um-pfssl masked sum", *which, purpose, *parts]).encode()

    def digest(self, purpose: str, *parts: object) -> str:
        """Return the SHA-256 of `bound`, in hex."""
        return hashlib.sha256(self.bind(purpose, *parts)).hexdigest()

    def cohort(self, members: Sequence[int], announced: str) -> str:
        """Return the digest of a list of members and of what all of them announced.

        announced: what `site_session.announcements_digest` returns.
        """
        return self.digest("cohort", list(members), announced)

    def masks(self, cohort: str, question: str) -> str:
        """Return the digest that names the masks between two members of a cohort.

        They cancel only among members that were asked the same question. Otherwise a server could
        ask all but one of them something to which it knows the answer, and read the answer of that
        one off the sum (Pasquini, Francati and Ateniese 2022, doi:10.1145/3548606.3560557).

        cohort: as `cohort` returns it. question: as `question_digest` returns it.
        """
        return self.digest("masks", cohort, question)


def question_digest(task: Task, computing: str) -> str:
    """Return the digest, in hex, of what a task asks of every member of a masked sum.

    It covers the action, the round, all numbers and the digests of all models. computing: as of
    `config.computing_settings`.
    """
    return hashlib.sha256(encode(task.common_question) + computing.encode()).hexdigest()
