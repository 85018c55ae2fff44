"""Clipping and Gaussian noise on what a site uploads, and the epsilon that they buy.

The uploaded model is w' = a + clip_C(w - a) + N(0, (z C)^2 I), where w is what the site trained, C
is `privacy.clip`, z is `privacy.noise`, and a is a model that the server knows already: the
server's own where a method has one, else the site's last upload. Every start that depends on data
the server has not seen (a mean weighted by relations) is thereby part of what is clipped.

Why not Flower's mods: they want the same arrays in request and reply, as numbers; ours carry whole
models as bytes (docs/SECURITY.md). Why not `ground.rng`: its draws follow from the experiment's
seed, which everybody knows; noise that the server can draw again protects nothing.
"""

import hashlib
import logging
import math
import secrets
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from fedapp.ground.disk import write_atomic
from fedapp.ground.errors import StoreError
from fedapp.ground.settings import PrivacySettings
from fedapp.learn.params import Params, digest_of, to_bytes
from fedapp.learn.privacy.draws import normal
from fedapp.messages.codec import encode
from fedapp.messages.protocol import EPSILON, Task
from fedapp.methods.base import SiteContext, SiteReport
from fedapp.site.heads import ABSENT, Head

log = logging.getLogger(__name__)

RELEASED = "releases.txt"
"""File of the list of releases."""
_KEY_BYTES = 32
_LEAST_VARIANCE = 0.1
"""Share of a's variance that a batch norm keeps, whatever the noise: a variance is above 0."""


class Releases:
    """A site's key to its noise, and which noisy models it has made, in a folder of its own."""

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

    def count(self, key: bytes) -> int:
        """Note a release before it leaves; return how many different ones there are."""
        name = hashlib.sha256(key).hexdigest()
        with self._alone():
            known = self._known()
            if name not in known:
                self._note(name)
        return len(known | {name})

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


def privately(
    task: Task, report: SiteReport, site: SiteContext, settings: PrivacySettings, releases: Releases
) -> SiteReport:
    """Return the report with its model clipped and noisy, and measured again as it now is.

    Tensors that never leave the site (`site.kept`) stay as they are.
    """
    assert report.params is not None
    ref = task.models["server"][0] if "server" in task.models else task.own
    shared = {n: t for n, t in report.params.items() if n not in site.kept}
    trained = to_bytes(shared)
    key = releases.key(encode(task) + digest_of(trained).encode() + repr(settings).encode())
    count = max(releases.count(key), task.own.version + 1)  # a lost disk forgets, the server knows
    known = site.contents(ref)
    noisy = upload(shared, known, settings, key)
    params = {**report.params, **noisy}
    site.model.load_state_dict(params)
    parts = set(report.evaluations) - {"test_before"} if report.personal is None else set()
    cost = epsilon(settings.noise, count, settings.delta)
    log.info(
        "site %d, round %d: change of length %.3g, clip %g; %d models sent, epsilon %.4g",
        task.site, task.round, length(shared, known), settings.clip, count, cost,
    )  # fmt: skip
    told = {EPSILON: cost} if math.isfinite(cost) else {}
    return replace(
        report,
        params=params,
        metrics={**report.metrics, **told},
        evaluations={**report.evaluations, **site.evaluate(*sorted(parts))},
    )


def upload(params: Params, known: Params, settings: PrivacySettings, key: bytes) -> Params:
    """Return a + clip_C(w - a) + noise for w = `params` and a = `known`, tensor by name.

    The norm is over all floating tensors together, batch-norm statistics included. Integer tensors
    are a's. Variances stay above a tenth of a's, which only the noisy model and a decide.
    """
    change, norm = _change(params, known), length(params, known)
    scale = min(1.0, settings.clip / norm) if norm else 1.0
    out = dict(known)
    for name in change:
        noise = normal(key + name.encode(), params[name].numel()).reshape(params[name].shape)
        noisy = known[name].double() + scale * change[name]
        noisy += settings.noise * settings.clip * torch.from_numpy(noise)
        out[name] = noisy.to(params[name].dtype)
        if name.endswith("running_var"):
            out[name] = torch.maximum(out[name], _LEAST_VARIANCE * known[name])
    return out


def length(params: Params, known: Params) -> float:
    """Return the L2 norm of what is clipped, over all floating tensors together.

    It depends on the site's images: it is for the site's own log.
    """
    change = _change(params, known).values()
    return math.sqrt(sum(float(delta.square().sum()) for delta in change))


def _change(params: Params, known: Params) -> Params:
    floating = [name for name in sorted(params) if params[name].is_floating_point()]
    return {name: params[name].double() - known[name].double() for name in floating}


def epsilon(noise: float, uploads: int, delta: float) -> float:
    """Return the epsilon of (epsilon, delta)-differential privacy of a site's uploads.

    Neighbours are any two contents of a site: all its data are exchanged. Two clipped changes are
    at most 2 C apart, so one upload is mu-GDP with mu = 2 / noise. Several uploads, each made in
    knowledge of those before, are sqrt(uploads) mu (Dong, Roth, Su 2022). Then
    delta = Phi(mu / 2 - eps / mu) - e^eps Phi(-mu / 2 - eps / mu) (Balle, Wang 2018, Theorem 8),
    which falls in eps. Exact; nothing is gained by who was sampled, which the server knows.
    """
    if uploads == 0:
        return 0.0
    if noise == 0:
        return math.inf
    mu = 2 * math.sqrt(uploads) / noise
    low, high = 0.0, 1.0
    while _delta(high, mu) > delta:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _delta(middle, mu) > delta else (low, middle)
    return high


def _delta(eps: float, mu: float) -> float:
    first, second = _log_phi(mu / 2 - eps / mu), eps + _log_phi(-mu / 2 - eps / mu)
    return math.exp(first) - math.exp(second)


def _log_phi(x: float) -> float:
    value: Tensor = torch.special.log_ndtr(torch.tensor(x, dtype=torch.float64))
    return value.item()
