"""FedAvg that protects single images: a site trains by steps with noisy gradients (DP-SGD)."""

from collections.abc import Mapping
from dataclasses import replace

from fedapp.core.settings import PrivacySettings, RoundSettings, TrainSettings
from fedapp.data.sites import LABELLED
from fedapp.methods.averaging.base import WARM_UP, budget, budget_of
from fedapp.methods.base import ImageLevel, SiteContext, SiteReport
from fedapp.privacy.accountant import Plan
from fedapp.privacy.dp_sgd import DPSGD
from fedapp.protocol.codec import encode
from fedapp.protocol.messages import EVALUATE, MODEL, Task


class NoisyTraining(ImageLevel):
    """A protected site sends a model whose noise was added during training."""

    noisy_training = True

    def plan(
        self, training: TrainSettings, rounds: RoundSettings, privacy: PrivacySettings
    ) -> Plan:
        """Return the steps of a site that is in every cohort."""
        each = [(WARM_UP, phase) for phase in range(training.warmup_rounds)]
        each += [("train", 0)] * rounds.num_rounds
        counts = [_steps(budget(*one, training), privacy.sampling) for one in each]
        return Plan(0, sum(counts), privacy.sampling, tuple(count for count in counts if count))

    def steps(self, task: Task, site: SiteContext) -> int:
        """Return the number of `noisy_steps`."""
        return noisy_steps(task, site).count

    def released(self, task: Task, site: SiteContext) -> frozenset[str]:
        """Return the model's role if the task trains it."""
        trains = task.action != EVALUATE and noisy_steps(task, site).count
        return frozenset({MODEL} if trains else ())

    def sensitivity(self, task: Task, site: SiteContext) -> Mapping[str, float]:
        """Return how much one image changes the site's model after a single step, times its weight.

        n w = n w_0 - eta / q sum of gradients; the second term covers rounding w to float32, n
        2^-24 |w| each.
        """
        if task.action == EVALUATE or (steps := noisy_steps(task, site)).multiplier:
            return {}
        ref = task.models["server"][0]
        length = sum(float(of.double().square().sum()) for of in site.contents(ref).values()) ** 0.5
        rounding = 2.0**-22 * len(site.data.labels) * length
        return {MODEL: steps.learning_rate * steps.clip / steps.rate + rounding}


def learned_with_noise(task: Task, site: SiteContext) -> SiteReport:
    """Train the context's model by steps that protect each labelled image, or each patient."""
    data, protection = site.data, site.protection
    assert protection is not None
    steps = noisy_steps(task, site)
    if not (len(data.labels) and steps.count):
        return SiteReport()
    patients = data.patients.get(LABELLED) if data.by_patient else None
    steps.train(site.model, data.labelled, data.labels, site.normalise, patients)
    return SiteReport(site.params(), learned=True)


def noisy_steps(task: Task, site: SiteContext) -> DPSGD:
    """Return the steps of a task that protect single images.

    Where a task has a single step and sums are masked, the sites share the noise, which is added to
    the masked sum: nobody sees anything else. With more steps the second step depends on the
    released result of the first, so each site adds the whole noise to its own gradients.
    """
    assert site.protection is not None
    training, privacy = site.training, site.protection.settings
    count = _steps(budget_of(task, training), privacy.sampling)
    shared = task.sum is not None and count == 1
    # The site begins from the server's model, so its own counts for nothing.
    what = encode(replace(task.question, own=task.models["server"][0])) if task.models else b""
    if shared:  # each sum is paid for by itself, so each draws its images anew
        what += b"sum %d" % (task.sum.number if task.sum else 0)
    return DPSGD(
        count,
        privacy.sampling,
        privacy.gradient,
        0.0 if shared else site.protection.step_multiplier,
        training.learning_rate,
        training.momentum,
        training.weight_decay,
        lambda purpose: site.secret(what + purpose),
    )


def _steps(budget: tuple[int, int | None], rate: float) -> int:
    """Return the number of steps that replaces a budget: 1 / q steps see all images once."""
    epochs, steps = budget
    return round(epochs / rate) if steps is None else steps
