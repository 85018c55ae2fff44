"""The privacy accountant: the noise that an epsilon needs, and the epsilon of given noise.

The computation is that of Google's dp-accounting. A `Plan` lists what a run releases about one
image. Noise is given by its multiplier z = standard deviation / L2 sensitivity.

The account is that of real-valued Gaussian noise, while the noise that is added is a discrete
Gaussian. A discrete Gaussian with a standard deviation of sigma steps has the probabilities of
Gaussian noise rounded to whole steps, up to a factor of exp(+-(k^2 + 1) / (12 sigma^2)) for a
number at k sigma from 0, and rounding after the noise costs nothing. With D numbers, and k = 12,
beyond which a probability of 1e-32 lies, the epsilon of a release is therefore at most
D 25 / sigma^2 higher: 1e-7 for a million numbers at sigma = 2^24 (`noise.MIN_SHARE_SIGMA`).
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from fedapp.core.optional_dependencies import needs
from fedapp.core.settings import PrivacySettings

MAX_MULTIPLIER = 1e4
"""Largest noise multiplier that the search considers."""
RELEASES_SHARE = 0.5
"""Share of epsilon that the releases of a run get if it also has steps."""
_PRECISION = 1e-3
"""Relative precision of the multiplier that the search finds, and the interval at which privacy
loss distributions are discretised."""


@dataclass(frozen=True)
class Plan:
    """What a run releases about one image.

    releases: number of sums that certainly contain the image.
    steps: number of sums, the steps of DP-SGD, that contain it with probability `rate`, drawn anew
        and in secret for each (Poisson sampling).
    trainings: the number of steps of each training task; they add up to `steps`.
    """

    releases: int = 1
    steps: int = 0
    rate: float = 0.0
    trainings: tuple[int, ...] = ()


@lru_cache(maxsize=64)
def noise_multiplier(epsilon: float, delta: float, plan: Plan, release_z: float = 0.0) -> float:
    """Return the smallest noise multiplier z that keeps a plan within (epsilon, delta).

    release_z: multiplier of the plan's releases if it is already fixed, so that the multiplier of
    the steps is sought; 0: all have the same multiplier. The result is exact for a plan without
    steps (Balle and Wang 2018), otherwise rounded up by at most 0.1 %. Raises NotInstalled, and
    ValueError if no noise is enough.
    """
    if not plan.steps:
        mechanism = needs("privacy", "dp_accounting.gaussian_mechanism")
        # n releases with equal noise are one release with z / sqrt(n) (Dong et al. 2022).
        return float(mechanism.get_sigma_gaussian(epsilon, delta) * plan.releases**0.5)
    if release_z and epsilon_spent(release_z, delta, replace(plan, steps=0)) >= epsilon:
        raise ValueError("the releases alone cost all of epsilon: give them more noise")
    low, high = 0.0, 0.5
    while epsilon_spent(high, delta, plan, release_z) > epsilon:
        low, high = high, 2 * high
        if high > MAX_MULTIPLIER:
            raise ValueError(f"epsilon = {epsilon:g}: no noise is enough")
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        if epsilon_spent(middle, delta, plan, release_z) > epsilon:
            low = middle
        else:
            high = middle
    return high


@lru_cache(maxsize=256)
def epsilon_spent(multiplier: float, delta: float, plan: Plan, release_z: float = 0.0) -> float:
    """Return the epsilon of a plan at delta, with noise multiplier > 0.

    release_z: multiplier of the releases if it differs from that of the steps; 0: it is the same.
    The result is exact for a plan without steps; with steps it is rounded up, by privacy loss
    distributions (Doroshenko et al. 2022). Raises NotInstalled.
    """
    if not plan.steps:
        mechanism = needs("privacy", "dp_accounting.gaussian_mechanism")
        z = (release_z or multiplier) / plan.releases**0.5
        return float(mechanism.get_epsilon_gaussian(z, delta))
    dp, pld = needs("privacy", "dp_accounting"), needs("privacy", "dp_accounting.pld")
    accountant = pld.PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE, _PRECISION)
    accountant.compose(_event(dp, multiplier, plan, release_z))
    return float(accountant.get_epsilon(delta))


def _event(dp: Any, multiplier: float, plan: Plan, release_z: float) -> Any:
    """Return a plan as an event of dp-accounting."""
    step = dp.PoissonSampledDpEvent(plan.rate, dp.GaussianDpEvent(multiplier))
    every = [dp.SelfComposedDpEvent(step, plan.steps)]
    if plan.releases:
        release = dp.GaussianDpEvent(release_z or multiplier)
        every.append(dp.SelfComposedDpEvent(release, plan.releases))
    return dp.ComposedDpEvent(every)


@dataclass(frozen=True)
class Protection:
    """The differential privacy of a run: its settings, and what it releases (`Method.plan`)."""

    settings: PrivacySettings
    plan: Plan

    @property
    def release_multiplier(self) -> float:
        """Noise multiplier z of each release. Raises NotInstalled."""
        privacy, alone = self.settings, replace(self.plan, steps=0, rate=0.0)
        share = RELEASES_SHARE if self.plan.steps else 1.0
        return noise_multiplier(share * privacy.epsilon, privacy.delta, alone)

    @property
    def step_multiplier(self) -> float:
        """Noise multiplier z of each step, given that of the releases. Raises NotInstalled."""
        privacy = self.settings
        release_z = self.release_multiplier if self.plan.releases else 0.0
        return noise_multiplier(privacy.epsilon, privacy.delta, self.plan, release_z)

    @property
    def epsilon(self) -> float:
        """Epsilon of the whole plan with this noise: at most, and hardly below, the setting."""
        privacy = self.settings
        release_z = self.release_multiplier if self.plan.releases else 0.0
        last = self.step_multiplier if self.plan.steps else release_z
        return epsilon_spent(last, privacy.delta, self.plan, release_z)
