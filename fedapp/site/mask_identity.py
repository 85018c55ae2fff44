"""Who a site is in masked sums: it has a registered key, or in a simulation one from the seed."""

from functools import lru_cache
from pathlib import Path

from fedapp.core.errors import ConfigError
from fedapp.core.settings import members_of
from fedapp.experiment.config import computing_settings, experiment_digest
from fedapp.experiment.experiment import Experiment
from fedapp.protocol.messages import Origin
from fedapp.protocol.secure_aggregation.keys import Signer, fingerprint
from fedapp.protocol.secure_aggregation.simulated_keys import (
    simulated_agreed,
    simulated_secret,
    simulated_signer,
)
from fedapp.site.masked_sums import Membership

SIGNING_KEY = "signing-key"
"""Key of the node config: file of the private key with which the site is registered."""


def simulated(experiment: Experiment, number: int) -> Membership:
    """Return who a simulated site is. All keys follow from the experiment's seed.

    Raises ConfigError if the run names members with registered keys: a simulated site has none.
    """
    if experiment.privacy.members:
        raise ConfigError(
            "privacy.members: a simulated site has no registered key: leave the setting out of "
            "simulations"
        )
    seed, sites = experiment.seed, experiment.split.num_clients
    return Membership(
        site=number,
        signer=simulated_signer(seed, number),
        agreed=_simulated_keys(seed, sites),
        least=experiment.privacy.least_members,
        run="",
        identity="",
        experiment="",
        secret=simulated_secret(seed, number),
        computing=computing_settings(experiment),
    )


def registered(
    experiment: Experiment,
    number: int,
    origin: Origin,
    key: Path,
    vouched: int | None = None,
) -> Membership:
    """Return who a real site is. key: file of its private key, PEM. vouched: see `Membership`.

    Raises ConfigError if the key is not the one that the run's members agreed on for this site.
    """
    privacy, data = experiment.privacy, experiment.data
    if not origin.identity:
        raise ConfigError(
            "this run was begun by an earlier version and has no identity, which masks are bound "
            "to: start it again"
        )
    agreed = members_of(privacy.members, data.site_names, experiment.split.num_clients)
    try:
        signer = Signer.from_file(key.read_bytes())
    except OSError as error:
        raise ConfigError(f"{key}: {error.strerror}: make it readable for the node") from error
    if agreed.get(number) != fingerprint(signer.public):
        raise ConfigError(
            f"privacy.members: {key} is not the key that was agreed on for site {number}: give its "
            f"fingerprint {fingerprint(signer.public)} to the coordinator, by phone or on paper"
        )
    return Membership(
        site=number,
        signer=signer,
        agreed=agreed,
        least=privacy.least_members,
        run=origin.run,
        identity=origin.identity,
        experiment=experiment_digest(experiment),
        vouched=vouched,
        computing=computing_settings(experiment),
    )


@lru_cache(maxsize=1)
def _simulated_keys(seed: int, sites: int) -> dict[int, str]:
    return simulated_agreed(seed, sites)
