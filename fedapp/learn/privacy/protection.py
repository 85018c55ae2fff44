"""What `privacy.epsilon` comes to in a run: how much noise each kind of release gets."""

from dataclasses import dataclass, replace

from fedapp.ground.settings import PrivacySettings
from fedapp.learn.privacy.account import Plan, epsilon_spent, noise_multiplier

FIRST = 0.5
"""Share of epsilon that releases get beside steps."""


@dataclass(frozen=True)
class Protection:
    """A run's promise for one image, and what the run releases of it (`Method.plan`)."""

    settings: PrivacySettings
    plan: Plan

    @property
    def released(self) -> float:
        """Noise multiplier of each release. Raises NotInstalled."""
        privacy, alone = self.settings, replace(self.plan, steps=0, rate=0.0)
        share = FIRST if self.plan.steps else 1.0
        return noise_multiplier(share * privacy.epsilon, privacy.delta, alone)

    @property
    def stepped(self) -> float:
        """Noise multiplier of each step, the releases' being settled. Raises NotInstalled."""
        privacy = self.settings
        certain = self.released if self.plan.releases else 0.0
        return noise_multiplier(privacy.epsilon, privacy.delta, self.plan, certain)

    @property
    def spent(self) -> float:
        """Epsilon of the whole plan at this noise: at most, and hardly below, what was set."""
        privacy = self.settings
        certain = self.released if self.plan.releases else 0.0
        last = self.stepped if self.plan.steps else certain
        return epsilon_spent(last, privacy.delta, self.plan, certain)
