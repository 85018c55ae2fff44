"""The server's own site, if the server has labelled images. It runs the code of any other site."""

from dataclasses import replace
from pathlib import Path

import torch

from fedapp.data.own import Place
from fedapp.data.sites import LABELLED, TEST, VAL, Part, SiteData
from fedapp.experiment.experiment import Experiment
from fedapp.protocol.messages import SERVER_SITE
from fedapp.protocol.store import ModelStore
from fedapp.site.federation import federation_of
from fedapp.site.site import SiteClient

PLACE = "server"
"""The name of the server's own images in the split and in errors."""


def servers_site(experiment: Experiment, pool: ModelStore, sites_root: Path) -> SiteClient:
    """Open the server's site on the server's pool; its own folder lies below `sites_root`.

    Its images are its part of the data set that is split, or lie in `runtime.server_data`.
    """
    own = experiment.runtime.server_data
    places = {SERVER_SITE: Place(PLACE, Path(own).expanduser())} if own else {}
    federation = federation_of(experiment, places)
    folder = sites_root / "server"
    site = federation.site(SERVER_SITE, experiment, pool, folder, shares_pool=True)
    return replace(site, data=all_to_learn_from(site.data)) if own else site


def all_to_learn_from(data: SiteData) -> SiteData:
    """Return the same data with the validation and test images moved to the labelled ones.

    No model is evaluated at the server: its images say nothing about the data of a site.
    """
    parts = [data.parts[name] for name in (LABELLED, VAL, TEST)]
    everything = Part(torch.cat([p.inputs for p in parts]), torch.cat([p.labels for p in parts]))
    nothing = Part(data.val[:0], data.val_labels[:0])
    return data.with_parts(**{LABELLED: everything, VAL: nothing, TEST: nothing})
