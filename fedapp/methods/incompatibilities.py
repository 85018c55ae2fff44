"""With which settings a method cannot run: which setting, why, and what helps.

A method declares this in `Method.unsupported` and `Method.incompatibilities`. It is checked when
settings are read, when the server knows the shape of the inputs, and at each site after it has read
its data.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from fedapp.core.errors import ConfigError, Incompatibility, name_suggestion
from fedapp.core.settings import (
    DataSettings,
    PrivacySettings,
    RoundSettings,
    SplitSettings,
    TrainSettings,
)
from fedapp.data.sites import SiteData
from fedapp.learn.networks.base import NetworkSettings

Reasons = Mapping[str, str]
"""Why a method cannot run with a setting, by the setting's dotted key; an empty text: it can."""
NO_REASONS: Reasons = MappingProxyType({})
CONDITIONS = frozenset({"data", "split", "training", "rounds", "privacy", "model"})
"""Groups of settings that a method may be incompatible with."""


def reasons_of(method: type) -> dict[str, str]:
    """Return what the class of a method and its base classes declare in `unsupported`."""
    reasons: dict[str, str] = {}
    for each in reversed(method.__mro__):
        reasons |= vars(each).get("unsupported", NO_REASONS)
    return reasons


@dataclass(frozen=True)
class Conditions:
    """What a method is to run with: the settings, and what is known about the data so far.

    model: None where the network's own settings are wrong. inputs: shape of one input; empty while
    it is not known. are_images: whether random views can be made of the inputs. site: the data of
    the site that checks; None: the server or a user does.
    """

    data: DataSettings = field(default_factory=DataSettings)
    split: SplitSettings = field(default_factory=SplitSettings)
    training: TrainSettings = field(default_factory=TrainSettings)
    rounds: RoundSettings = field(default_factory=RoundSettings)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    model: NetworkSettings | None = None
    inputs: tuple[int, ...] = ()
    are_images: bool = True
    site: SiteData | None = None

    @property
    def size(self) -> str:
        """The setting that determines how large inputs are."""
        return "data.vector_size" if self.data.vector_size else "data.image_size"

    def refused(self, method: str, why: Reasons) -> list[Incompatibility]:
        """Return an incompatibility for each setting in use that `why` has a reason against.

        method: its name. Raises ConfigError where `why` names a setting that is not in `SETTINGS`.
        """
        if unknown := sorted(why.keys() - SETTINGS.keys()):
            rule = f"can say nothing of {unknown[0]} in `unsupported`"
            raise ConfigError(f"method {method}: {rule}; {name_suggestion(unknown[0], SETTINGS)}")
        found = []
        for setting, (in_use, rule, remedy) in SETTINGS.items():
            if why.get(setting) and in_use(self):
                reason = rule.format(method=method, why=why[setting], data=self.data.name)
                found.append(Incompatibility(setting, reason, remedy))
        return found


_RUN, _OTHER = "{method} cannot run so: {why}", "leave it out or choose another method"
SETTINGS: Mapping[str, tuple[Callable[[Conditions], bool], str, str]] = {
    "split.labels": (lambda given: given.split.labels == "none", _RUN, ""),
    "rounds.robust": (lambda given: given.rounds.robust != "none", _RUN, _OTHER),
    "privacy.clip": (lambda given: given.privacy.clip != 0, _RUN, _OTHER),
    "training.uneven": (lambda given: given.training.uneven != "plain", _RUN, _OTHER),
    "privacy.epsilon": (lambda given: given.privacy.epsilon != 0, _RUN, ""),
    "privacy.sums": (
        lambda given: given.privacy.masked,
        "{method} needs each site's own answer, and sums are masked (privacy.sums)",
        "",
    ),
    "data.findings": (
        lambda given: given.data.findings != "",
        "{method} cannot learn findings: {why}",
        "",
    ),
    "method.name": (
        lambda given: not given.are_images,
        "{why}, but the inputs of {data} are no images",
        "choose a method, or a method.objective, without",
    ),
}
"""Settings that a method may not support: a test whether each is in use, the rule, and the
remedy."""
