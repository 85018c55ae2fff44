"""How much noise an epsilon takes, and which epsilon noise has bought: by Google's dp-accounting.

What a run releases of one image is a `Plan`; all is told at (epsilon, delta). Noise is told by its
multiplier z: standard deviation over L2 sensitivity. The account is that of real-valued Gaussian
noise. A discrete Gaussian of standard deviation sigma steps is that noise rounded to whole steps,
but for a factor of exp(+-(k^2 + 1) / (12 sigma^2)) for a number k sigma from 0, and rounding after
the noise costs nothing. So with D numbers, and k = 12 beyond which lies 1e-32, the epsilon of a
release is at most D 25 / sigma^2 higher: 1e-7 for a million numbers at sigma = 2^24
(`noise.MIN_SHARE_SIGMA`).
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from fedapp.core.optional_dependencies import needs
from fedapp.core.settings import PrivacySettings

MAX_MULTIPLIER = 1e4
"""Largest multiplier that is looked for."""
RELEASES_SHARE = 0.5
"""Share of epsilon that a run's releases get beside its steps."""
_PRECISION = 1e-3
"""How closely the multiplier of many steps is found, and how finely losses are counted for it."""


@dataclass(frozen=True)
class Plan:
    """What is released of one image in a run.

    releases: sums that it is in for certain. steps: sums that it is in with probability `rate`,
    drawn anew and in secret for each (Poisson sampling). trainings: steps of each task that they
    are of; together `steps`.
    """

    releases: int = 1
    steps: int = 0
    rate: float = 0.0
    trainings: tuple[int, ...] = ()


@lru_cache(maxsize=64)
def noise_multiplier(epsilon: float, delta: float, plan: Plan, certain: float = 0.0) -> float:
    """Return the least z that keeps a plan within (epsilon, delta).

    certain: z of the plan's releases, where that is settled and the steps' is asked for; 0: all
    have the same z. Without steps exact (Balle and Wang 2018), else rounded up to 0.1 %. Raises
    NotInstalled, and ValueError where no noise is enough.
    """
    if not plan.steps:
        mechanism = needs("privacy", "dp_accounting.gaussian_mechanism")
        # Releases of equal noise are one of 1 / sqrt(releases) the multiplier (Dong et al. 2022).
        return float(mechanism.get_sigma_gaussian(epsilon, delta) * plan.releases**0.5)
    if certain and epsilon_spent(certain, delta, replace(plan, steps=0)) >= epsilon:
        raise ValueError("the releases alone cost all of epsilon: give them more noise")
    low, high = 0.0, 0.5
    while epsilon_spent(high, delta, plan, certain) > epsilon:
        low, high = high, 2 * high
        if high > MAX_MULTIPLIER:
            raise ValueError(f"epsilon = {epsilon:g}: no noise is enough")
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        if epsilon_spent(middle, delta, plan, certain) > epsilon:
            low = middle
        else:
            high = middle
    return high


@lru_cache(maxsize=256)
def epsilon_spent(multiplier: float, delta: float, plan: Plan, certain: float = 0.0) -> float:
    """Return the epsilon of a plan with noise multiplier z > 0, at delta.

    certain: z of the releases, where it is another than the steps'. Without steps exact, with them
    rounded up: privacy loss distributions (Doroshenko et al. 2022). Raises NotInstalled.
    """
    if not plan.steps:
        mechanism = needs("privacy", "dp_accounting.gaussian_mechanism")
        z = (certain or multiplier) / plan.releases**0.5
        return float(mechanism.get_epsilon_gaussian(z, delta))
    dp, pld = needs("privacy", "dp_accounting"), needs("privacy", "dp_accounting.pld")
    accountant = pld.PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE, _PRECISION)
    accountant.compose(_event(dp, multiplier, plan, certain))
    return float(accountant.get_epsilon(delta))


def _event(dp: Any, multiplier: float, plan: Plan, certain: float) -> Any:
    """Return a plan as dp-accounting has it."""
    step = dp.PoissonSampledDpEvent(plan.rate, dp.GaussianDpEvent(multiplier))
    every = [dp.SelfComposedDpEvent(step, plan.steps)]
    if plan.releases:
        release = dp.GaussianDpEvent(certain or multiplier)
        every.append(dp.SelfComposedDpEvent(release, plan.releases))
    return dp.ComposedDpEvent(every)


@dataclass(frozen=True)
class Protection:
    """A run's promise for one image, and what the run releases of it (`Method.plan`)."""

    settings: PrivacySettings
    plan: Plan

    @property
    def release_multiplier(self) -> float:
        """Noise multiplier of each release. Raises NotInstalled."""
        privacy, alone = self.settings, replace(self.plan, steps=0, rate=0.0)
        share = RELEASES_SHARE if self.plan.steps else 1.0
        return noise_multiplier(share * privacy.epsilon, privacy.delta, alone)

    @property
    def step_multiplier(self) -> float:
        """Noise multiplier of each step, the releases' being settled. Raises NotInstalled."""
        privacy = self.settings
        certain = self.release_multiplier if self.plan.releases else 0.0
        return noise_multiplier(privacy.epsilon, privacy.delta, self.plan, certain)

    @property
    def epsilon(self) -> float:
        """Epsilon of the whole plan at this noise: at most, and hardly below, what was set."""
        privacy = self.settings
        certain = self.release_multiplier if self.plan.releases else 0.0
        last = self.step_multiplier if self.plan.steps else certain
        return epsilon_spent(last, privacy.delta, self.plan, certain)
