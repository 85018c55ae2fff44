"""Test vectors of masked sums, for other implementations: one sum of four sites, one of them lost.

`python -m tests.protocol.secure_aggregation.vectors` makes `vectors.json` anew, which is needed
only where the protocol changes: `FORMAT` then goes up with `protocol.SCHEMA`. All bytes are in hex,
words of 64 bits as decimal numbers. The registered keys are Ed25519, whose signatures are no matter
of chance.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedapp.protocol.secure_aggregation.context import SumContext
from fedapp.protocol.secure_aggregation.fixed_point import from_words
from fedapp.protocol.secure_aggregation.keys import Signer, SumSecrets, fingerprint
from fedapp.protocol.secure_aggregation.neighbour_graph import quorum
from fedapp.protocol.secure_aggregation.site_session import MaskSite, confirmation_text
from tests.protocol.secure_aggregation.sums import QUESTION, Sum

FORMAT = 11
FILE = Path(__file__).with_name("vectors.json")
CONTEXT = SumContext("study-1", "1f" * 32, "2e" * 32, 7, 1, 3)
ROWS = np.array([[1.5, -2.0, 0.25], [2.0, 1e6, 0.0], [-4.0, 0.5, 8.0], [0.125, -1.0, 3.0]])
LOST = 2


def made() -> dict[str, Any]:
    """Return all that the sites and the server of this sum compute."""
    signers = [bytes([16 + k]) * 32 for k in range(4)]
    secrets = [bytes([32 + k]) * 32 for k in range(4)]
    keys = [Signer(Ed25519PrivateKey.from_private_bytes(one)) for one in signers]
    agreed = {k: fingerprint(key.public) for k, key in enumerate(keys)}
    one = Sum(ROWS, late={LOST}, context=CONTEXT)
    one.sites = [MaskSite(k, secrets[k], keys[k], agreed, 3) for k in range(4)]
    sites = []
    for k in one.members:
        own, told = SumSecrets(secrets[k], CONTEXT, k), one.announcements[k]
        bound = CONTEXT.bind("announce", k, told.box, told.mask, told.own)
        sites.append({
            "site": k,
            "signing_key": signers[k].hex(),
            "secret": secrets[k].hex(),
            "own_seed": own.own.hex(),
            "pairs_seed": own.pairs.hex(),
            "announced_text": bound.decode(),
            "announcement": vars(told),
            "boxes": {box.receiver: box.box for box in one.sealed if box.sender == k},
            "numbers": ROWS[k].tolist(),
            "words": one.words(k).tolist(),
            "masked": one.masked(k).tolist(),
        })  # fmt: skip
    step = one.step("confirm", 0, survivors=one.survivors)
    words = one.unmasked().words
    return {
        "format": FORMAT,
        "context": vars(CONTEXT),
        "threshold": quorum(4),
        "sites": sites,
        "announced": one.announced,
        "cohort": one.cohort,
        "question": QUESTION,
        "masks": CONTEXT.masks(one.cohort, QUESTION),
        "survivors": list(one.survivors),
        "confirmed_text": confirmation_text(CONTEXT, step).decode(),
        "confirmations": {said.site: said.signature for said in one.confirmations},
        "opened": {
            k: {which: {of.site: of.share for of in getattr(answer, which)}
                for which in ("own", "pairs")}
            for k, answer in one.opened.items()
        },
        "masked_sum": one.total.tolist(),
        "sum": words.tolist(),
        "sum_as_numbers": from_words(words, 4).tolist(),
    }  # fmt: skip


def text() -> str:
    return json.dumps(made(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
