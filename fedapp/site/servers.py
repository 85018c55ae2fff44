"""The server's own site, where it holds labelled images: the same code as at any site."""

from pathlib import Path

from fedapp.experiment.experiment import Experiment
from fedapp.learn.scores import ScoreStore
from fedapp.messages.protocol import SERVER_SITE
from fedapp.messages.store import ModelStore
from fedapp.site.federation import federation_of
from fedapp.site.private import PrivateParts
from fedapp.site.site import Site


def servers_site(experiment: Experiment, pool: ModelStore, sites_root: Path) -> Site:
    """Open it on the server's pool; what it keeps to itself lies below `sites_root`."""
    private = PrivateParts(sites_root / "server" / "private")
    federation = federation_of(experiment)
    return federation.site(SERVER_SITE, experiment, pool, ScoreStore(), private, shares_pool=True)
