"""What leaves a site that protects single images or patients: sums with noise, and nothing else.

The numbers of a site's images count as public; nothing else of a task's report leaves. A task is
paid for by what it asks for (`pay`), before any image is read. Every error after that becomes one
and the same message to the server (`errors_withheld`), and an evaluation is answered even if it
failed. In a simulation evaluations do leave, since a study must measure its sites. A site is
simulated if it has hidden labels (`SiteData.audit`), which no real site has.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedapp.core.errors import ConfigError, FedAppError, WithheldError, one_line
from fedapp.evaluation.verdict import PAIRS
from fedapp.learn.params import Params, digest_of, to_bytes
from fedapp.methods._summed import Layout, Row
from fedapp.methods.base import ImageLevel, Method, SiteContext, SiteReport
from fedapp.privacy.noise import Integers, draw_noise_share, honest_members
from fedapp.protocol.codec import encode
from fedapp.protocol.messages import EPSILON, EPSILON_OF_PATIENTS, EVALUATE, MODEL, Task
from fedapp.protocol.secure_aggregation.fixed_point import FRACTION, max_number
from fedapp.site.privacy_budget import Releases

log = logging.getLogger(__name__)

FIXED_POINT_STEP = 2.0**-FRACTION
"""The distance of two neighbouring numbers of the fixed point in which noise is added."""


@contextmanager
def errors_withheld(protects: bool) -> Iterator[None]:
    """If `protects`, turn every error inside into `WithheldError`, which tells nothing."""
    try:
        yield
    except Exception as error:
        if not protects:
            raise
        if not isinstance(error, FedAppError):
            log.exception("what the server is told nothing of")
        raise WithheldError(one_line(error) or type(error).__name__) from error


def pay(task: Task, site: SiteContext, method: Method[Any], releases: Releases) -> None:
    """Note the releases that a task asks for; the same question a second time costs nothing.

    Raises ConfigError if the task asks for a content that gets no noise, or for more releases than
    the run's epsilon pays for. Whether it raises depends on the question alone and on no image: a
    server cannot learn of an image by sending one network after another and looking which of them
    is refused.
    """
    image_level = _image_level(method)
    added = image_level.sensitivity(task, site)
    released = image_level.released(task, site)
    if unknown := sorted(released - {*added, *([MODEL] if image_level.noisy_training else [])}):
        raise _unprotected(unknown)
    asked = task.question
    if released and task.sum is not None:
        which = f"{task.round}.{task.sum.number}.asked"
        if not releases.pays(which, releases.key(encode(asked)), 1):
            raise ConfigError(
                f"masked sum {task.sum.number} of round {task.round} was asked of other models "
                "before: privacy.epsilon pays for one request"
            )
    for role in sorted(released):
        if role != MODEL:  # it is asked for once in a run, in whichever round
            _pay(f"{role}.asked", encode(replace(asked, round=0)), site, releases)
        elif role not in added:  # else the sum is paid for
            _pay(role, encode(asked), site, releases, image_level.steps(task, site))


def protected(
    task: Task, report: SiteReport, site: SiteContext, method: Method[Any], releases: Releases
) -> SiteReport:
    """Return a report as it may leave: its contents have all of their noise.

    If sums are masked, the contents have no noise yet: each site adds its share to the masked row
    (`row_noise`). Raises ConfigError if the method sends a content that was not paid for (`pay`).
    """
    assert site.protection is not None
    image_level = _image_level(method)
    allowed = image_level.sensitivity(task, site)
    leaving = {*report.contents, *([MODEL] if report.params is not None else [])}
    if unknown := sorted(leaving - image_level.released(task, site)):
        raise _unprotected(unknown)
    contents = dict(report.contents)
    for role, sensitivity in allowed.items():
        if role in contents and task.sum is None:
            contents[role] = _noisy(contents[role], role, sensitivity, site, releases)
    told = {EPSILON: site.protection.settings.epsilon} if leaving else {}
    if leaving and site.data.by_patient:
        told[EPSILON_OF_PATIENTS] = 1.0
    real, holds = site.data.audit is None, report.holds
    if real and task.action == EVALUATE:  # the same whether the evaluation worked or failed
        holds = tuple(ref for refs in task.models.values() for ref in refs)
    return replace(
        report,
        contents=contents,
        metrics=told if real else {n: v for n, v in report.metrics.items() if n in PAIRS} | told,
        evaluations={} if real else report.evaluations,
        holds=holds,
        helpers=(),
        pseudo=None,
    )


def _image_level(method: Method[Any]) -> ImageLevel:
    """Return how a method protects single images. Raises ConfigError if it cannot."""
    if method.image_level is None:
        raise ConfigError(
            f"privacy.epsilon: {method.name} has no form in which single images are protected: "
            "choose another method"
        )
    return method.image_level


def _unprotected(roles: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"privacy.epsilon: {', '.join(roles)} has no noise and may not leave: choose another method"
    )


def noise_for(
    digest: str, role: str, sensitivity: float, site: SiteContext, releases: Releases, count: int
) -> Integers:
    """Return all of the noise of a content of `count` numbers, int64 [count], in their order.

    digest: the content's digest. It is noted as released, and the same content gets the same noise
    whenever it is asked for. Raises ConfigError if the run's epsilon does not pay for it.
    """
    protection = site.protection
    assert protection is not None
    said = "\n".join([role, digest, repr(protection.settings), "1"]).encode()  # 1: of one site
    _pay(role, said, site, releases)
    key = releases.key(b"share " + said)
    return draw_noise_share(key, count, sensitivity, _multiplier(role, site), FIXED_POINT_STEP)


def _multiplier(role: str, site: SiteContext) -> float:
    assert site.protection is not None
    return site.protection.step_multiplier if role == MODEL else site.protection.release_multiplier


def _pay(
    role: str, what: bytes, site: SiteContext, releases: Releases, steps: int | None = None
) -> None:
    """Note a release. Raises ConfigError if the run's epsilon does not pay for it.

    steps: the number of steps by which a model was trained; None: the content is no model. The plan
    pays for a number of trainings of each length, and the server chooses which of them it asks for.
    """
    assert site.protection is not None
    plan, epsilon = site.protection.plan, site.protection.settings.epsilon
    most = plan.releases if steps is None else plan.trainings.count(steps)
    kind = role if steps is None else f"{role}-{steps}"
    if not releases.pays(kind, releases.key(what), most):
        raise ConfigError(
            f"privacy.epsilon = {epsilon:g} pays for {most} release(s) of a site's {role}, and "
            "this would be one more: begin another run"
        )


def row_noise(
    task: Task,
    key: bytes,
    counted: int,
    layout: Layout,
    site: SiteContext,
    method: Method[Any],
    releases: Releases,
) -> Integers:
    """Return a site's shares of the noise for a row of a masked sum, int64 [layout.size].

    key: names the attempt at the sum and its cohort (`Summing.masked`). Each of them has noise of
    its own, so that the difference of two sums has noise too. counted: how many members the site
    expects to add noise. The sum is paid for once, by its round and number: at most one of its
    attempts is opened. A site without a contribution, for instance without labels, adds its share
    of the noise too, since the others rely on it. Counts of images and of sites are public and get
    no noise. Raises ConfigError if the run's epsilon does not pay for it.
    """
    assert task.sum is not None and site.protection is not None
    row = np.zeros(layout.size, np.int64)
    makers, image_level = _makers(counted, site), _image_level(method)
    for role, sensitivity in image_level.sensitivity(task, site).items():
        place, which = layout.places[role], f"masked sum {task.round} {task.sum.number} {role}"
        steps = image_level.steps(task, site) if role == MODEL else None
        _pay(role, which.encode(), site, releases, steps)
        row[place] = draw_noise_share(
            releases.key(f"share {role} ".encode() + key),
            place.stop - place.start,
            sensitivity,
            _multiplier(role, site),
            FIXED_POINT_STEP,
            makers,
        )
    return row


def noise_share(counted: int, site: SiteContext) -> float:
    """Return the variance of a site's noise (`row_noise`) over that of the account, in (0, 1].

    It follows from the site's terms and the number of members, and from no image. Sites may expect
    different numbers of members to add noise, so the server cannot know it from the sum alone.
    """
    return 1 / _makers(counted, site)


def _makers(counted: int, site: SiteContext) -> int:
    assert site.protection is not None
    return honest_members(counted, site.protection.settings.colluding)


def within_bound(task: Task, row: Row) -> Row:
    """Return a row with each number cut to the range that a masked sum can hold.

    Without protection a number beyond the range is an error. Here the server could choose weights
    so near to the bound that one image decides whether there is an error, so numbers are cut. That
    never increases the distance of two rows, which the noise hides.
    """
    assert task.sum is not None
    most = max_number(len(task.sum.members))
    return np.nan_to_num(row, nan=0.0).clip(-most, most)


def _noisy(
    params: Params, role: str, sensitivity: float, site: SiteContext, releases: Releases
) -> Params:
    size = sum(tensor.numel() for tensor in params.values())
    noise = noise_for(digest_of(to_bytes(params)), role, sensitivity, site, releases, size)
    found, at = {}, 0
    for name, tensor in params.items():
        part = noise[at : at + tensor.numel()]
        whole = (
            np.rint(tensor.double().flatten().numpy() / FIXED_POINT_STEP).astype(np.int64) + part
        )
        found[name] = (
            torch.from_numpy(whole * FIXED_POINT_STEP).reshape(tensor.shape).to(tensor.dtype)
        )
        at += tensor.numel()
    return found
