"""The identity of a masked sum, to which all its keys, signatures and boxes are bound."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from fedapp.core.errors import ProtocolError


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
