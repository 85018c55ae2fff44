"""What a site has released with noise, and the clipping of what it uploads.

Clipped, the uploaded model is w' = a + clip_C(w - a), where w is what the site trained, C is
`privacy.clip`, and a is a model that the server knows already: the server's own where a method has
one, else the site's last upload. Every start that depends on data the server has not seen (a mean
weighted by relations) is thereby part of what is clipped. This bounds how far one upload moves an
average; it hides no image: `privacy.epsilon` does (`site.protected_sums`).

Why not `core.rng` for noise: its draws follow from the experiment's seed, which everybody knows;
noise that the server can draw again protects nothing.
"""

import hashlib
import logging
import math
import secrets
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from fedapp.core.disk import write_atomic
from fedapp.core.errors import StoreError
from fedapp.learn.params import Params
from fedapp.methods.base import SiteContext, SiteReport
from fedapp.protocol.messages import Task
from fedapp.site.rollback_guard import ABSENT, Head

log = logging.getLogger(__name__)

RELEASED = "releases.txt"
"""File of the list of releases."""
_KEY_BYTES = 32


class Releases:
    """A site's key to its noise, and what it has released with noise, in a folder of its own."""

    def __init__(self, root: Path, secret: bytes | None = None, head: Head | None = None) -> None:
        """secret: 32 bytes that everybody may know, for simulations; None: drawn, and kept.

        head: tells an older copy of the list, whose releases would be made once more; None: it is
        taken as it is.
        """
        self._key, self._list = root / "noise.key", root / RELEASED
        self._secret, self._head = secret, head

    def key(self, what: bytes) -> bytes:
        """Return 32 bytes that only this site can compute; equal for equal `what`.

        So a round that is repeated after a crash gives the same upload again, not a second look at
        the same model through other noise. Raises StoreError.
        """
        secret = self._drawn() if self._secret is None else self._secret
        return hashlib.sha256(secret + hashlib.sha256(what).digest()).digest()

    def _drawn(self) -> bytes:
        try:
            secret = self._key.read_bytes()
        except FileNotFoundError:
            secret = secrets.token_bytes(_KEY_BYTES)
            write_atomic(self._key, secret, durable=True, mode=0o600)
        except OSError as error:
            raise StoreError(f"{self._key}: cannot be read ({error.strerror}): mend it") from error
        if len(secret) != _KEY_BYTES:  # an emptied file would be a key that everybody knows
            raise StoreError(
                f"{self._key}: {len(secret)} bytes, must be {_KEY_BYTES}: remove it; the next "
                "upload makes another key"
            )
        return secret

    def pays(self, kind: str, key: bytes, most: int) -> bool:
        """Whether a release is among the first so many of its kind; it is noted if it is.

        Raises RecordError where the list is not the newest one.
        """
        name = f"{kind}-{hashlib.sha256(key).hexdigest()}"
        with self._alone():
            known = self._known()
            if name not in known:
                if sum(one.startswith(f"{kind}-") for one in known) >= most:
                    return False
                self._note(name)
        return True

    def made(self) -> int:
        """Return how many different releases were noted. Raises RecordError as `pays` does."""
        with self._alone():
            return len(self._known())

    def _alone(self) -> AbstractContextManager[None]:
        return self._head.alone() if self._head else nullcontext()

    def _note(self, name: str) -> None:
        self._list.parent.mkdir(parents=True, exist_ok=True)
        before = self._text()
        after = (before or b"") + f"{name}\n".encode()
        change = _digest(before), _digest(after)
        with self._head.advance(*change) if self._head else nullcontext():
            # As a whole: a line that a power cut left half would end the site's part in the run.
            write_atomic(self._list, after, durable=True, mode=0o600)

    def _known(self) -> set[str]:
        text = self._text()
        if self._head:
            self._head.check(_digest(text))
        return set((text or b"").decode().split())

    def _text(self) -> bytes | None:
        return self._list.read_bytes() if self._list.exists() else None


def _digest(text: bytes | None) -> str:
    return ABSENT if text is None else hashlib.sha256(text).hexdigest()


def clipped(task: Task, report: SiteReport, site: SiteContext, bound: float) -> SiteReport:
    """Return the report with its model's change clipped, and measured again as it now is.

    bound: C. Tensors that never leave the site (`site.kept`) stay as they are.
    """
    assert report.params is not None
    ref = task.models["server"][0] if "server" in task.models else task.own
    shared = {n: t for n, t in report.params.items() if n not in site.kept}
    known = site.contents(ref)
    params = {**report.params, **upload(shared, known, bound)}
    site.model.load_state_dict(params)
    parts = set(report.evaluations) - {"test_before"} if report.personal is None else set()
    log.info(
        "site %d, round %d: change of length %.3g, clip %g",
        task.site, task.round, length(shared, known), bound,
    )  # fmt: skip
    measured = site.evaluate(*sorted(parts))
    return replace(report, params=params, evaluations={**report.evaluations, **measured})


def upload(params: Params, known: Params, bound: float) -> Params:
    """Return a + clip_C(w - a) for w = `params`, a = `known` and C = `bound`, tensor by name.

    The norm is over all floating tensors together, batch-norm statistics included. Integer tensors
    are a's.
    """
    change, norm = _change(params, known), length(params, known)
    scale = min(1.0, bound / norm) if norm else 1.0
    moved = {name: known[name].double() + scale * delta for name, delta in change.items()}
    return {**known, **{name: of.to(params[name].dtype) for name, of in moved.items()}}


def length(params: Params, known: Params) -> float:
    """Return the L2 norm of what is clipped, over all floating tensors together.

    It depends on the site's images: it is for the site's own log.
    """
    change = _change(params, known).values()
    return math.sqrt(sum(float(delta.square().sum()) for delta in change))


def _change(params: Params, known: Params) -> Params:
    floating = [name for name in sorted(params) if params[name].is_floating_point()]
    return {name: params[name].double() - known[name].double() for name in floating}
