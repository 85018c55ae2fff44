"""The list of what a site has released with noise, and the clipping of the model that it uploads.

With clipping the site uploads w' = a + clip_C(w - a). Here w is the model that the site trained, C
is `privacy.clip`, and a is a model that the server already knows: the server's own model if the
method has one, else the site's last upload. If training starts from a model that depends on data
unknown to the server (such as a mean weighted by relations), that difference is clipped too.
Clipping bounds how far one upload moves an average. It hides no image: `privacy.epsilon` does
(`protected_sums`).

Noise is not drawn by `core.rng`: those draws follow from the experiment's seed, which everybody
knows, and noise that the server can draw again protects nothing.
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
from fedapp.core.rng import numpy_stream
from fedapp.learn.params import Params
from fedapp.methods.base import SiteContext, SiteReport
from fedapp.protocol.messages import Task
from fedapp.site.rollback_guard import ABSENT, Head

log = logging.getLogger(__name__)

RELEASED = "releases.txt"
"""Name of the file with the list of releases."""
_KEY_BYTES = 32


class Releases:
    """A site's secret key of its noise, and the list of its releases, in a folder of its own."""

    def __init__(self, root: Path, secret: bytes | None = None, head: Head | None = None) -> None:
        """Open the folder `root`.

        secret: 32 bytes for a simulation, which everybody may know; None: they are drawn at random
        and kept. head: recognises an older copy of the list, with which releases would be made a
        second time; None: any list is accepted.
        """
        self._key, self._list = root / "noise.key", root / RELEASED
        self._secret, self._head = secret, head

    def key(self, what: bytes) -> bytes:
        """Return 32 bytes that only this site can compute; equal for equal `what`.

        So a round that is repeated after a crash gives the same upload again. With other noise it
        would be a second look at the same model. Raises StoreError.
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
            raise StoreError(f"{self._key}: cannot be read ({error.strerror}): fix that") from error
        if len(secret) != _KEY_BYTES:  # an empty file would be a key that everybody knows
            raise StoreError(
                f"{self._key}: {len(secret)} bytes, must be {_KEY_BYTES}: remove it; the next "
                "upload makes another key"
            )
        return secret

    def pays(self, kind: str, key: bytes, most: int) -> bool:
        """Whether a release is one of the first `most` of its kind; if it is, it is noted.

        key: identifies the release, so that the same one a second time counts once. Raises
        RecordError if the list is not the newest one.
        """
        name = f"{kind}-{hashlib.sha256(key).hexdigest()}"
        with self._locked():
            known = self._known()
            if name not in known:
                if sum(one.startswith(f"{kind}-") for one in known) >= most:
                    return False
                self._note(name)
        return True

    def made(self) -> int:
        """Return how many different releases were noted. Raises RecordError as `pays` does."""
        with self._locked():
            return len(self._known())

    def _locked(self) -> AbstractContextManager[None]:
        return self._head.locked() if self._head else nullcontext()

    def _note(self, name: str) -> None:
        self._list.parent.mkdir(parents=True, exist_ok=True)
        before = self._text()
        after = (before or b"") + f"{name}\n".encode()
        change = _digest(before), _digest(after)
        with self._head.advance(*change) if self._head else nullcontext():
            # Atomically: after a power cut, half a line would end the site's part in the run.
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


def simulated_secret(seed: int, site: int) -> bytes:
    """Return the secret of a simulated site. Who knows the seed can subtract the noise."""
    return numpy_stream(seed, "noise", site).bytes(32)


def clipped(task: Task, report: SiteReport, site: SiteContext, bound: float) -> SiteReport:
    """Return a report whose model is clipped, with evaluations of the clipped model.

    bound: C. Tensors that never leave the site (`site.kept`) stay as they are.
    """
    assert report.params is not None
    ref = task.models["server"][0] if "server" in task.models else task.own
    shared = {n: t for n, t in report.params.items() if n not in site.kept}
    known = site.contents(ref)
    params = {**report.params, **clipped_upload(shared, known, bound)}
    site.model.load_state_dict(params)
    parts = set(report.evaluations) - {"test_before"} if report.personal is None else set()
    log.info(
        "site %d, round %d: change of length %.3g, clip %g",
        task.site, task.round, change_norm(shared, known), bound,
    )  # fmt: skip
    measured = site.evaluate(*sorted(parts))
    return replace(report, params=params, evaluations={**report.evaluations, **measured})


def clipped_upload(params: Params, known: Params, bound: float) -> Params:
    """Return a + clip_C(w - a) for w = `params`, a = `known` and C = `bound`, tensor by name.

    The L2 norm is over all floating tensors together, with batch-norm statistics. Integer tensors
    are those of a.
    """
    change, norm = _change(params, known), change_norm(params, known)
    scale = min(1.0, bound / norm) if norm else 1.0
    moved = {name: known[name].double() + scale * delta for name, delta in change.items()}
    return {**known, **{name: of.to(params[name].dtype) for name, of in moved.items()}}


def change_norm(params: Params, known: Params) -> float:
    """Return the L2 norm of the change from `known`, over all floating tensors together.

    It depends on the site's images, so it is only for the site's own log.
    """
    change = _change(params, known).values()
    return math.sqrt(sum(float(delta.square().sum()) for delta in change))


def _change(params: Params, known: Params) -> Params:
    floating = [name for name in sorted(params) if params[name].is_floating_point()]
    return {name: params[name].double() - known[name].double() for name in floating}
