"""The product of a network's answer and the closed form's; how far to trust each is fitted by sums.

The logits of both are added, each times a weight. The weights maximise the likelihood of the labels
of all sites' validation images (`_calibration`). The two err on different images, so that the
product is better than either (docs/research/one_round.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fedapp.core.errors import DIVERGED_REMEDY, ProtocolError, RunError
from fedapp.data.sites import VAL
from fedapp.learn.linear_head import HEAD_BIAS, HEAD_WEIGHT, SCALE, FeatureHead, FeatureHeadNetwork
from fedapp.learn.params import Params, Schema, all_finite, tensors_of
from fedapp.learn.predictors import Predictor
from fedapp.learn.uncertainty import features_of, inputs_per_pass, scoring_batches
from fedapp.methods.base import Arrived, Phases, Round, SiteContext
from fedapp.methods.closed_form._contents import REMEDY, SOLUTION
from fedapp.methods.closed_form._discriminant import COUNTS
from fedapp.methods.closed_form._findings import closed_side_of
from fedapp.methods.closed_form._server import contents_sent
from fedapp.methods.closed_form._site import ClosedSite, deciding_images
from fedapp.methods.recommended._calibration import Fit
from fedapp.protocol.messages import ModelRef, SiteFacts, Task

STACK, FITTED = "stack", "fitted"
"""Roles: the weights that the server sends, and the sums that sites reply with."""
FIT = "fit"
"""Action of a task that asks for these sums."""
WEIGHTS, NUMBERS = "weights", "numbers"
START_WEIGHTS = (0.2, 0.8)
"""Initial weights, to which the penalty pulls: of the network, of the closed form."""
ROUND_0_STEPS = 3
"""Newton steps in round 0. Each later round takes one, from where the last one ended."""


def stack_schemas() -> dict[str, Schema]:
    """Return the schemas of what travels for the stack, by role."""
    size = len(START_WEIGHTS)
    return {
        STACK: {WEIGHTS: ((size,), torch.float32)},
        FITTED: {NUMBERS: ((3 + size + size * size,), torch.float64)},
    }


def put_stack(rnd: Round, weights: Sequence[float]) -> ModelRef:
    """Store these weights as the server's newest."""
    return rnd.pool.put({WEIGHTS: torch.tensor(weights)}, STACK)


def fit_weights(
    rnd: Round,
    weights: tuple[float, ...],
    network: ModelRef,
    lent: Mapping[str, Sequence[ModelRef]],
) -> Phases[tuple[float, ...]]:
    """Take Newton steps from these weights for the newest network; return the new weights.

    lent: contents that tasks of the closed form name.
    """
    for _ in range(1 if rnd.number else ROUND_0_STEPS):
        models = {**lent, "server": [network], STACK: [put_stack(rnd, weights)]}
        replies = yield [rnd.task(site, FIT, 0, {}, **models) for site in rnd.sites]
        every = [Fit.from_numbers(of[NUMBERS]) for _, of in contents_sent(rnd, replies, FITTED)]
        if sum(fit.images for fit in every):
            now, start = (torch.tensor(w, dtype=torch.float64) for w in (weights, START_WEIGHTS))
            # As they travel: what the server knows and what sites use are the same numbers.
            weights = tuple(sum(every[1:], every[0]).step(now, start).float().tolist())
    return weights


@dataclass(frozen=True, eq=False)
class Stacked:
    """A site's network and closed form, ready to answer together; the network is the context's."""

    closed: ClosedSite
    network: FeatureHeadNetwork

    @classmethod
    def of(cls, features: str, task: Task, site: SiteContext) -> "Stacked":
        """Load what a task names: the server's network, the solution and the weights."""
        closed = closed_side_of(features, task, site)
        stack = site.contents(task.models[STACK][0])
        weight, bias = closed.head(task)
        site.load(task.models["server"][0])
        joint = (
            FeatureHeadNetwork(closed.map, site.data.num_classes, site.model).to(site.device).eval()
        )
        joint.finds = site.data.finds
        ours = tensors_of(joint)
        with torch.no_grad():
            ours[SCALE].copy_(stack[WEIGHTS][0])
            ours[HEAD_WEIGHT].copy_(stack[WEIGHTS][1] * weight)
            ours[HEAD_BIAS].copy_(stack[WEIGHTS][1] * bias)
        return cls(closed, joint)

    @torch.inference_mode()
    def predicted(self, part: str) -> Tensor:
        """Return the probabilities for a part's images, float32 [n, C], on the CPU.

        They equal, bit for bit, what the whole network answers (`metrics.predict`).
        """
        site, fixed, found = self.closed.site, self.closed.features(part), []
        images = site.data.parts[part].inputs
        step = inputs_per_pass(images.shape[1:])
        for start in range(0, len(images), step):
            batch = slice(start, start + step)
            others = features_of(site.model, images[batch], site.normalise)
            found.append(self.network.answer(self.network.tail((fixed[batch], *others))).cpu())
        answers = torch.cat([torch.empty(0, site.data.num_classes), *found])
        if not all_finite(answers):
            raise RunError(f"site {site.data.site}: the model answers NaN; {DIVERGED_REMEDY}")
        return answers

    def predictor(self, mix: Tensor, weight: float) -> Predictor:
        """Return it as one network, times a class mix."""
        params = {name: t.detach().cpu().clone() for name, t in tensors_of(self.network).items()}
        return Predictor(params, weight, mix, form=FeatureHead(self.closed.name, beside=True))


@torch.inference_mode()
def fit_of(features: str, task: Task, site: SiteContext) -> Params:
    """Return a site's sums at the weights that the task names, as they travel.

    Images of classes that the closed form has not seen are left out, since it cannot answer them at
    any weight. Each finding that was read is a sample of two classes; all findings of an image
    count as one in `images`.
    """
    closed = closed_side_of(features, task, site)
    stack = site.contents(task.models[STACK][0])
    weight, bias = closed.head(task)
    chosen = deciding_images(site)
    if not site.data.finds:
        known = site.contents(task.models[SOLUTION][0])[COUNTS] > 0
        chosen = chosen[known[site.data.val_labels.cpu()[chosen]]]
    labels, mix = site.data.val_labels.cpu()[chosen], closed.mix_alone()
    other = closed.features(VAL).cpu()[chosen] @ weight.T + bias
    site.load(task.models["server"][0])
    both = [_logits(site, site.data.val[chosen.to(site.device)]), other]
    if not site.data.finds:
        return {NUMBERS: Fit.of(both, labels, mix, stack[WEIGHTS]).to_numbers()}
    known = weight.any(1)  # else it has seen none with the finding, or none without it
    image, of = ((labels >= 0) & known).nonzero(as_tuple=True)
    pairs = [F.pad(one[image, of][:, None], (1, 0)) for one in both]
    fit = Fit.of(pairs, labels[image, of], mix[of], stack[WEIGHTS])
    fit = replace(fit, images=float(len(image.unique())), right=fit.right / len(bias))
    return {NUMBERS: fit.to_numbers()}


def _logits(site: SiteContext, images: Tensor) -> Tensor:
    """Return the logits of the context's model, float32 [n, C], on the CPU."""
    model, found = site.model.eval(), [torch.empty(0, site.data.num_classes)]
    for batch in scoring_batches(images) if len(images) else ():
        found.append(model.tail(features_of(model, batch, site.normalise)).cpu())
    return torch.cat(found)


def check_fitted(arrived: Mapping[str, Arrived], facts: SiteFacts) -> None:
    """Refuse sums that no validation images can have. Raises ProtocolError."""
    if STACK in arrived:
        raise ProtocolError(f"sent a {STACK}, which the server alone makes: {REMEDY}")
    if FITTED not in arrived:
        return
    fit = Fit.from_numbers(arrived[FITTED].whole[NUMBERS])
    if not 0 <= fit.right <= fit.images <= facts.val or fit.loglik > 0:
        raise ProtocolError(
            f"fitted: of {fit.images:g} images, {fit.right:g} right, log-likelihood "
            f"{fit.loglik:g}; the site has {facts.val} validation images: {REMEDY}"
        )
    curvature, slack = fit.curvature, 1e-6 * (float(fit.curvature.trace().abs()) + 1)
    if bool(((curvature - curvature.T).abs() > slack).any()) or int(
        torch.linalg.cholesky_ex(curvature + slack * torch.eye(len(curvature))).info
    ):
        raise ProtocolError(f"fitted: its curvature is not positive semi-definite: {REMEDY}")
    if not fit.images and bool(fit.gradient.any()):
        raise ProtocolError(f"fitted: of 0 images, and yet it has a gradient: {REMEDY}")
