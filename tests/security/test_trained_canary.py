"""An audit of epsilon in a plain training that protects images: one canary image, in or out.

The server knows the network and all that the site has but for one image, and sees the whole run:
as many noisy steps as were planned. It looks how far the model has moved along the canary's own
gradient, times the known number of images. Over some hundred runs the odds of its guesses bound
epsilon from below, and the bound must lie below the claim.

Each bound is wrong with a chance of 0.1 % at most (`least_epsilon`), at a threshold that does not
depend on the runs. Three are looked at for each of two rates: by chance a bound lies above the
claim in 0.6 % of seeds at most. The seeds are fixed. Without momentum, so that the last model shows
the plain sum of all steps.
"""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedapp.core.settings import PrivacySettings, RoundSettings
from fedapp.data.sites import Part
from fedapp.learn.networks.mlp import MLPSettings
from fedapp.learn.params import to_bytes
from fedapp.privacy.accountant import Protection
from fedapp.site.privacy_budget import Releases
from fedapp.site.protected_sums import pay
from tests.security.test_masked_canary import least_epsilon
from tests.security.test_one_image import opened, question, trained

assert opened  # a fixture

pytest.importorskip("dp_accounting")
pytest.importorskip("opacus")

EPSILON, OTHERS, RUNS = 3.0, 9, 600
THRESHOLDS = (0.3, 1.0, 2.0)
"""In lengths of a cut gradient: what one step moves by the canary at most."""


def of_site(client, images: int):
    """The site with so many of its labelled images: the tenth is the canary, an image inverted."""
    inputs, labels = client.data.labelled[:images].clone(), client.data.labels[:images]
    inputs[OTHERS:] = 255 - inputs[OTHERS:]
    return replace(client, data=client.data.with_parts(labelled=Part(inputs, labels)))


def moved(client, task, tmp_path, trial: int) -> torch.Tensor:
    """Return what a run tells: the sum of all steps' cut gradients and of their noise."""
    secret = hashlib.sha256(b"canary %d" % trial).digest()
    releases = Releases(tmp_path / f"{trial}", secret)
    context = replace(client.context(task)[0], secret=releases.key)
    pay(task, context, client.experiment.method, releases)
    after = client.experiment.method.site_round(task, context).params
    before = client._initial()
    change = torch.cat([(before[name] - of).flatten().double() for name, of in after.items()])
    rate = client.experiment.privacy.sampling * len(client.data.labels)
    return change * rate / client.experiment.training.learning_rate


def direction(client, task) -> torch.Tensor:
    """Return what of the canary's gradient at the server's network no other image has, length 1."""
    context, _ = client.context(task)
    context.load(task.models["server"][0])
    model, rows = context.model, []
    parameters = [dict(model.named_parameters())[name] for name in model.state_dict()]
    for image in range(OTHERS + 1):
        logits = model(context.normalise(client.data.labelled[image : image + 1]))
        loss = F.cross_entropy(logits, client.data.labels[image : image + 1])
        every = torch.autograd.grad(loss, parameters)
        rows.append(torch.cat([of.flatten().double() for of in every]))
    others, canary = torch.linalg.qr(torch.stack(rows[:-1]).T).Q, rows[-1]
    along = canary - others @ (others.T @ canary)
    return along / along.norm()


@pytest.fixture
def bounds(opened, tmp_path):
    """Bounds on epsilon at each threshold, of a site that draws images at a rate."""

    def made(sampling: float) -> list[float]:
        experiment = trained(
            privacy=PrivacySettings(epsilon=EPSILON, sampling=sampling),
            rounds=RoundSettings(num_rounds=1, sample_rate=1.0),
            model=MLPSettings(hidden="32", dropout=0.0),
        )
        client = opened(experiment, "one")
        there, gone = of_site(client, OTHERS + 1), of_site(client, OTHERS)
        task = question(client, "train", 1, to_bytes(client._initial()))
        along = direction(there, task)
        found = [
            [float(moved(of, task, tmp_path, 2 * k + one) @ along) for k in range(RUNS)]
            for one, of in enumerate((there, gone))
        ]
        inside, outside = map(np.array, found)
        return [least_epsilon(inside, outside, threshold) for threshold in THRESHOLDS]

    return made


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [0.1, 0.5])
def test_what_a_server_tells_of_a_canary_from_a_training_is_within_the_claim(bounds, sampling):
    """By the default rate of drawing, and by one at which a few hundred runs show more."""
    assert max(bounds(sampling)) < EPSILON


@pytest.mark.slow
def test_the_same_audit_finds_too_little_noise_out(bounds, monkeypatch):
    """A sixteenth of the account's: the bound found is above the claim."""
    z = Protection.step_multiplier.fget
    monkeypatch.setattr(Protection, "step_multiplier", property(lambda self: z(self) / 16))
    assert max(bounds(0.5)) > EPSILON
