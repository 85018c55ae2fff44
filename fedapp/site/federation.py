"""The sites of an experiment. A process loads their data once and keeps them in memory.

The sites hold parts of one data set that was split, or each site has images of its own: on its disk
(`data.name: own`), or given in memory.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from fedapp.core.devices import pick_device
from fedapp.core.errors import ConfigError, DataError
from fedapp.core.formatting import counted
from fedapp.core.settings import OWN, DataSettings, SplitSettings, window_ends
from fedapp.data.augment import flips
from fedapp.data.datasets import data_root, load_dataset
from fedapp.data.in_memory import GivenSites, in_memory, registered
from fedapp.data.inputs import UNKNOWN, DataSet
from fedapp.data.own import OwnSites, Place, simulated_places
from fedapp.data.own.train_test_split import RULE as DEAL_RULE
from fedapp.data.published import NAMES as PUBLISHED
from fedapp.data.simulated_sites import SimulatedSites
from fedapp.data.sites import SPECIAL_PARTS, SiteData, describe_bags_of_sites
from fedapp.data.split.groups import (
    Numbers,
    check_patients,
    count_test_copies,
    describe_copies,
    equal_inputs,
    joined_groups,
)
from fedapp.data.split.manifest import Manifest
from fedapp.data.split.natural import only_sites
from fedapp.data.split.partition import partition
from fedapp.experiment.experiment import Experiment
from fedapp.learn.networks import NetworkSettings
from fedapp.methods import methods_learning_from
from fedapp.models.maker import ModelMaker
from fedapp.protocol.messages import SERVER_SITE
from fedapp.protocol.store import ModelStore
from fedapp.site.kept_models import KeptModel
from fedapp.site.masked_site import MaskedSite
from fedapp.site.protected_site import ClippedSite, ProtectedMaskedSite, ProtectedSite
from fedapp.site.site import SiteClient

if TYPE_CHECKING:  # it needs cryptography, which masked sums alone load
    from fedapp.site.masked_sums import Summing


class Sites(Protocol):
    """Sites' data by number."""

    def site(self, k: int) -> SiteData:
        """Return the data of site k; the same value each time."""


class Keeps(NamedTuple):
    """Where the sites of a run keep their finished models: each in a folder below `root`."""

    root: Path
    run: str


@dataclass(frozen=True)
class LoadedSites:
    """The sites' data.

    manifest: which site holds which image; None if the sites have data of their own.
    digest: SHA-256, in hex, of what all sites must agree on: the manifest, or, for data of their
        own, the rules by which files become data.
    are_images: whether the inputs are images, so that they can be augmented.
    """

    dealt: Sites
    classes: tuple[str, ...]
    manifest: Manifest | None
    digest: str
    are_images: bool = True

    def site(
        self,
        number: int,
        experiment: Experiment,
        store: ModelStore,
        folder: Path,
        *,
        shares_pool: bool = False,
        keeps_scores: bool = False,
        keeps: Keeps | None = None,
        summing: "Summing | None" = None,
    ) -> SiteClient:
        """Return a site that works on its part of the data.

        store, folder, shares_pool, keeps_scores: see `SiteClient`. keeps: where it keeps its
        finished models; None: it keeps none. summing: its part in masked sums; None: that of a
        simulated site, if sums are masked.

        Raises ConfigError if the site has training labels although only the server may have some,
        and if it has data of a kind that the method cannot learn from. Raises DataError if the
        method cannot learn from just these data.
        """
        data = self.dealt.site(number)
        if experiment.split.labels == "none" and number != SERVER_SITE and len(data.labels):
            raise ConfigError(
                f"split.labels = 'none': {display_name(data)} has {len(data.labels)} labelled "
                "images to learn from: take their labels away, or give them to 'val' or 'test'"
            )
        for part in SPECIAL_PARTS.keys() - experiment.method.learns_from:
            if len(data.parts.get(part, ())):
                name, able = experiment.method.name, " or ".join(methods_learning_from(part))
                raise ConfigError(
                    f"method.name = {name!r}: {display_name(data)} has {SPECIAL_PARTS[part]}, of "
                    f"which it cannot learn: choose {able}"
                )
        for wrong in experiment.incompatibilities("split.bags", site=data):
            made = self.manifest.made if self.manifest else ""
            raise DataError(f"{made}{display_name(data)}: {wrong.reason}: {wrong.remedy}")
        site = SiteClient(
            experiment=experiment,
            data=data,
            classes=self.classes,
            split_digest=self.digest,
            store=store,
            folder=folder,
            device=pick_device(experiment.runtime.device),
            shares_pool=shares_pool,
            keeps_scores=keeps_scores,
        )
        if number != SERVER_SITE:  # nothing leaves the server's own
            site = _limited(site, number, summing)
        if keeps is None:
            return site
        maker = ModelMaker(keeps.run, experiment, facts := site.facts(), self.are_images)
        return replace(site, keeper=KeptModel(keeps.root / facts.folder, maker))

    def particulars(self, sites: int) -> str:
        """Describe what the first sites know of their data beside labels; empty: nothing."""
        return describe_bags_of_sites([self.dealt.site(k) for k in range(sites)])

    def copies(self, sites: int) -> tuple[int, str]:
        """Return how many test inputs are training inputs too, of the first sites, and a text.

        sites: how many sites are looked at. The text is for a person; it is empty if there are
        no such inputs.
        """
        found, of = count_test_copies(self.dealt.site(k) for k in range(sites))
        return found, describe_copies(found, of, self.are_images)


def federation_of(
    experiment: Experiment, places: Mapping[int, Place] = MappingProxyType({})
) -> LoadedSites:
    """Load the experiment's data and split them among the sites, once in a process.

    places: where sites with data of their own find them; empty: in folders of `data.root`.
    """
    data, split, seed = experiment.data, experiment.split, experiment.seed
    device = str(pick_device(experiment.runtime.device))
    if in_memory(data.name) and isinstance(sites := registered(data.name), GivenSites):
        if split.server_share:
            raise ConfigError(
                f"split.server_share = {split.server_share:g}: every site was given its own data, "
                "so the server gets none: leave it out"
            )
        federation = _given(sites, split.num_clients, device)
        _check_findings(data, federation)
        _check_views(experiment, federation)
        return federation
    if data.name != OWN:
        if data.findings:
            raise ConfigError(
                f"data.findings = {data.findings!r}: data that are dealt have classes: give each "
                "site data of its own"
            )
        model = experiment.model if experiment.model.simulated else None
        federation = _federation(data, split, seed, device, model)
        _check_views(experiment, federation)
        return federation
    if not places:
        places = simulated_places(data_root(data.root), data, split.num_clients)
    federation = _own(tuple(sorted(places.items())), data, split, seed, device)
    _check_views(experiment, federation)
    return federation


def _check_findings(data: DataSettings, federation: LoadedSites) -> None:
    """Raise ConfigError if the settings name other findings than the data in memory have."""
    found = federation.classes if federation.dealt.site(0).finds else ()
    if data.finding_names != found:
        raise ConfigError(
            f"data.findings = {data.findings!r}: the data have {', '.join(found) or 'classes'}: "
            "leave the setting to the data"
        )


def forget() -> None:
    """Forget the loaded data, so that the next use reads them again, as a new process does."""
    _own.cache_clear()
    _federation.cache_clear()


def _limited(site: SiteClient, number: int, summing: "Summing | None") -> SiteClient:
    """Return a plain site as one that masks or bounds what leaves it, as `privacy` says."""
    experiment = site.experiment
    if experiment.privacy.masked:
        from fedapp.site.mask_identity import simulated
        from fedapp.site.masked_sums import Summing

        kind = ProtectedMaskedSite if experiment.privacy.epsilon else MaskedSite
        part = summing or Summing(simulated(experiment, number), site.folder / "sums")
        return kind.around(site, summing=part)
    if experiment.privacy.epsilon:
        return ProtectedSite.around(site)
    return ClippedSite.around(site) if experiment.privacy.clip else site


def display_name(data: SiteData) -> str:
    """Return the name by which a message to a person calls a site."""
    return f"site {data.site} ({data.name})" if data.name else f"site {data.site}"


@lru_cache(maxsize=1)
def _given(sites: GivenSites, num_clients: int, device: str) -> LoadedSites:
    if num_clients != len(sites.sites):
        raise ConfigError(
            f"split.num_clients = {num_clients}: {counted(len(sites.sites), 'sites')} given: "
            "make the two equal"
        )
    there = sites.to(torch.device(device))
    return LoadedSites(there, sites.classes, None, sites.digest, sites.are_images)


@lru_cache(maxsize=1)
def _own(
    places: tuple[tuple[int, Place], ...],
    data: DataSettings,
    split: SplitSettings,
    seed: int,
    device: str,
) -> LoadedSites:
    sites = OwnSites(dict(places), data, split, seed, torch.device(device))
    rules = _rules_digest(data, split, seed)
    return LoadedSites(sites, data.names, None, rules, not data.vector_size)


def _rules_digest(data: DataSettings, split: SplitSettings, seed: int) -> str:
    """Return the SHA-256 of all rules and settings by which a site's files become its data."""
    rules = [OWN, data.names, data.image_size, data.channels, data.mean, data.std]
    if data.window:  # added only where it is set, so that the digest of older runs stays equal
        rules.append(window_ends(data.window) or data.window)
    if data.findings:
        rules.append("findings")
    if data.patients:
        rules.append(["patients", data.patients])
    if data.vector_size:
        rules.append(["vectors", data.vector_size, data.encoder])
    dealing = [DEAL_RULE, split.train_share, split.val_share, seed]
    return hashlib.sha256(json.dumps([rules, dealing]).encode()).hexdigest()


@lru_cache(maxsize=1)
def _federation(
    data: DataSettings, split: SplitSettings, seed: int, device: str, model: NetworkSettings | None
) -> LoadedSites:
    pool, names = load_dataset(data, seed), data.site_names
    if split.deal == "natural":
        pool = only_sites(pool, data.site_names, data.name)
        assert pool.sites is not None
        names = pool.sites.names
    if split.num_clients > len(pool.labels):
        raise ConfigError(
            f"split.num_clients = {split.num_clients}: must be at most the number of images, "
            f"{len(pool.labels)}"
        )
    if split.feature_shift and not pool.are_images:
        raise ConfigError(
            f"split.feature_shift = {split.feature_shift:g}: the inputs of {data.name} are no "
            "images: leave it out"
        )
    if len(pool.classes) < 2:
        raise DataError(
            f"{data.name}: {pool.classes[0]!r} is the only class, so every answer would be right: "
            "add the images of another class, in a folder of their own"
        )
    patients = None if pool.patients is None else pool.patients.numpy()
    if split.manifest:
        manifest = Manifest.load(split.manifest)
        if manifest.num_clients != split.num_clients:
            raise ConfigError(
                f"split.manifest {split.manifest}: deals to {manifest.num_clients} sites, but "
                f"split.num_clients = {split.num_clients}; use the preset it was made with"
            )
        manifest.check_settings(split)
        if patients is not None:
            check_patients(patients, manifest)
    else:
        together = _together(pool, data.name, split, patients)
        manifest = partition(pool.labels, split, seed, data.name, together, pool.sites)
    manifest = manifest.showing(split.labels)
    are_images = pool.are_images
    if model is not None:
        if split.feature_shift:
            raise ConfigError(
                f"split.feature_shift = {split.feature_shift:g}: changes images, and those of "
                f"model.name={model.name} are asked about once: set model.name=encoder"
            )
        places = model.stand_in(pool.inputs, flips(data.name))
        pool = replace(pool, inputs=places, mean=(0.0,), std=(1.0,))
    dealt = SimulatedSites(
        pool,
        manifest,
        torch.device(device),
        split.feature_shift,
        split.kinds,
        split.prior_noise,
        names,
    )
    return LoadedSites(dealt, pool.classes, manifest, manifest.digest(), are_images)


def _together(
    pool: DataSet, name: str, split: SplitSettings, patients: Numbers | None
) -> Numbers | None:
    """Return which inputs must go to the same site and part: group numbers [N]; None: none must.

    The images of a patient stay together, and so do exact copies of an image where this is
    possible. A published data set keeps the split under which it has been cited, a user's own test
    part stays as the user made it, and equal rows of a table need not be copies. The run's result
    counts the copies that are not together (`LoadedSites.copies`).
    """
    unknown = bool((pool.labels == UNKNOWN).any())
    single = pool.inputs.ndim == 2 or name in PUBLISHED or split.bags or split.test_images
    if single or unknown:
        return patients
    groups = equal_inputs(pool.inputs)
    if patients is not None:
        groups = patients if groups is None else joined_groups(patients, groups)
    if groups is not None and not groups.any():
        raise DataError(
            f"{name}: all {len(groups)} inputs are copies of one, or belong to one patient: there "
            "is nothing else to be tested on: add others"
        )
    return groups


def _check_views(experiment: Experiment, federation: LoadedSites) -> None:
    """Raise ConfigError where random views are to be made of what is no image."""
    if federation.are_images:
        return
    no_images = f"the inputs of {experiment.data.name} are no images"
    if experiment.training.augment != "none":
        raise ConfigError(
            f"training.augment = {experiment.training.augment!r}: {no_images}: set it to 'none'"
        )
    for wrong in experiment.incompatibilities("method.name", are_images=False):
        raise ConfigError(
            f"method.name = {experiment.method.name!r}: {wrong.reason}: {wrong.remedy}"
        )
