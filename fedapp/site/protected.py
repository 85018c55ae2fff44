"""What leaves a site that protects single images: sums with noise, and what nobody's image decides.

Numbers of images are taken to be known; what else a task's report says is kept at home. In a
simulation evaluations are told, since somebody must know how well a study's sites answer: the door
to hidden labels (`SiteData.audit`), which no real site has, stands for that.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedapp.ground.errors import ConfigError
from fedapp.ground.rng import numpy_stream
from fedapp.learn.params import Params, digest_of, to_bytes
from fedapp.learn.privacy.discrete import Integers
from fedapp.learn.privacy.shares import share
from fedapp.messages.codec import encode
from fedapp.messages.masks.words import FRACTION
from fedapp.messages.protocol import EPSILON, MODEL, Task
from fedapp.methods._summed import Layout
from fedapp.methods.base import Method, SiteContext, SiteReport
from fedapp.site.privacy import Releases

STEP = 2.0**-FRACTION
"""Of the fixed point in which noise is added."""


def protected(
    task: Task, report: SiteReport, site: SiteContext, method: Method[Any], releases: Releases
) -> SiteReport:
    """Return a report as it may leave: contents have all of the noise.

    Where sums are masked they have none yet: shares are added to the row (`row_noise`). Raises
    ConfigError where the method sends what has no noise, or more than the run's epsilon pays for.
    """
    assert site.protection is not None
    allowed = method.sensitivity(task, site)
    leaving = {*report.contents, *([MODEL] if report.params is not None else [])}
    noisy = {*allowed, *([MODEL] if method.noisy_training else [])}
    if unknown := sorted(leaving - noisy):
        raise ConfigError(
            f"privacy.epsilon: {', '.join(unknown)} has no noise and may not leave: choose another "
            "method"
        )
    if MODEL in leaving - allowed.keys():
        _pay(MODEL, encode(replace(task, sum=None)), site, releases)
    contents = dict(report.contents)
    for role, sensitivity in allowed.items():
        if role in contents and task.sum is None:
            contents[role] = _noisy(contents[role], role, sensitivity, site, releases)
    told = {EPSILON: site.protection.settings.epsilon} if leaving else {}
    return replace(
        report,
        contents=contents,
        metrics=told,
        evaluations=report.evaluations if site.data.audit is not None else {},
        helpers=(),
        pseudo=None,
    )


def simulated_secret(seed: int, site: int) -> bytes:
    """Return the secret of a simulated site: whoever knows the seed can take the noise off."""
    return numpy_stream(seed, "noise", site).bytes(32)


def noise_for(
    digest: str,
    role: str,
    sensitivity: float,
    site: SiteContext,
    releases: Releases,
    count: int,
    members: int = 1,
) -> Integers:
    """Return a site's share of the noise of a content of `count` numbers, int64, in their order.

    digest: of the content. members: sites whose sum is opened; 1: it is opened by itself. It is
    noted as released, and the same content has the same noise whenever it is asked for. Raises
    ConfigError where the run's epsilon does not pay for it.
    """
    protection = site.protection
    assert protection is not None
    multiplier = protection.stepped if role == MODEL else protection.released
    what = [role, digest, repr(protection.settings), str(members)]
    said = "\n".join(what).encode()
    _pay(role, said, site, releases)
    return share(releases.key(b"share " + said), count, sensitivity, multiplier, STEP, members)


def _pay(role: str, what: bytes, site: SiteContext, releases: Releases) -> None:
    """Note a release. Raises ConfigError where the run's epsilon does not pay for it."""
    assert site.protection is not None
    plan, epsilon = site.protection.plan, site.protection.settings.epsilon
    most = plan.trainings if role == MODEL else plan.releases
    if not releases.pays(role, releases.key(what), most):
        raise ConfigError(
            f"privacy.epsilon = {epsilon:g} pays for {most} release(s) of a site's {role}, and "
            "this would be one more: begin another run"
        )


def row_noise(
    task: Task,
    contents: Mapping[str, Params],
    layout: Layout,
    site: SiteContext,
    method: Method[Any],
    releases: Releases,
) -> Integers:
    """Return a site's shares of the noise for a row of a masked sum, int64 [layout.size].

    A site that has nothing to say, without labels say, adds its share too: it is counted upon.
    Counts of images and of sites are taken to be known, and get none. Raises as `noise_for`.
    """
    assert task.sum is not None
    row, members = np.zeros(layout.size, np.int64), len(task.sum.members)
    for role, sensitivity in method.sensitivity(task, site).items():
        said = to_bytes(contents[role]) if role in contents else encode(replace(task, sum=None))
        place = layout.places[role]
        row[place] = noise_for(
            *(digest_of(said), role, sensitivity, site, releases),
            *(place.stop - place.start, members),
        )
    return row


def _noisy(
    params: Params, role: str, sensitivity: float, site: SiteContext, releases: Releases
) -> Params:
    size = sum(tensor.numel() for tensor in params.values())
    noise = noise_for(digest_of(to_bytes(params)), role, sensitivity, site, releases, size)
    found, at = {}, 0
    for name, tensor in params.items():
        part = noise[at : at + tensor.numel()]
        whole = np.rint(tensor.double().flatten().numpy() / STEP).astype(np.int64) + part
        found[name] = torch.from_numpy(whole * STEP).reshape(tensor.shape).to(tensor.dtype)
        at += tensor.numel()
    return found
