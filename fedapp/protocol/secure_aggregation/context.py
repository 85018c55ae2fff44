"""Which masked sum it is: what every key, signature and box of it is bound to."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from fedapp.core.errors import ProtocolError


class MaskError(ProtocolError):
    """A step of a masked sum breaks a rule that keeps it private or right."""


@dataclass(frozen=True)
class SumContext:
    """One masked sum of one run.

    run: its name. identity: of the run (`run.id`). experiment: digest of its settings. round: from
    0. number: of the sum within the round, from 0. attempt: which try at this sum it is, from 1;
    each has keys of its own.
    """

    run: str
    identity: str
    experiment: str
    round: int
    number: int
    attempt: int = 1

    def bind(self, purpose: str, *parts: object) -> bytes:
        """Return bytes that stand for this purpose in this sum: to be signed, or to derive from.

        Parts keep their type and their borders, since they are written as JSON.
        """
        which = [self.run, self.identity, self.experiment, self.round, self.number, self.attempt]
        return json.dumps(["um-pfssl masked sum", *which, purpose, *parts]).encode()

    def digest(self, purpose: str, *parts: object) -> str:
        """Return the SHA-256 of `bound`, in hex."""
        return hashlib.sha256(self.bind(purpose, *parts)).hexdigest()

    def cohort(self, members: Sequence[int], announced: str) -> str:
        """Return the digest of this list of members, and of what all of them announced.

        announced: as `site_session.announcements_digest` returns it.
        """
        return self.digest("cohort", list(members), announced)
