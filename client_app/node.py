"""Open the site that a Flower node is, with its data and stores, if it may take part in a run."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from filelock import FileLock, Timeout

from client_app.identity import check_unchanged, simulated_here, who_am_i
from fedapp.core.disk import write_error
from fedapp.core.errors import ConfigError, ProtocolError, RunError
from fedapp.core.settings import OWN
from fedapp.experiment.code_hash import code_hash, stands_in_for
from fedapp.experiment.config import differing, experiment_digest, first_three, shared_settings
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.preset_files import Scalar
from fedapp.experiment.run_folder import folder_of, out_root, runs_root
from fedapp.learn.params import digest_of
from fedapp.protocol.codec import version_remedy
from fedapp.protocol.messages import SCHEMA, Origin
from fedapp.protocol.pool_key import read_key
from fedapp.protocol.secure_aggregation.keys import fingerprint
from fedapp.protocol.store import ModelStore
from fedapp.site.federation import Keeps, federation_of
from fedapp.site.mask_identity import SIGNING_KEY, registered
from fedapp.site.masked_sums import JOURNAL, Summing
from fedapp.site.policy import NO_TERMS, SITE_FOLDER, SitePolicy
from fedapp.site.privacy_budget import RELEASED
from fedapp.site.protected_sums import errors_withheld
from fedapp.site.rollback_guard import Head
from fedapp.site.site import SiteClient

log = logging.getLogger("flwr")

BEGIN_AGAIN = "begin another run"
"""The remedy if the file that counts a run's masked sums or noisy releases is lost."""
SUMS_FOLDER = ".masked-sums"
"""Folder of the journals of masked sums. No run can have this name."""
BUSY_S = 5.0
"""How long a task waits for an earlier task of the same site to end."""


def open_site(
    run_config: Mapping[str, Scalar],
    node_config: Mapping[str, Scalar],
    origin: Origin,
    settings: Mapping[str, Scalar],
    policy: SitePolicy,
    allowed: Callable[[], None],
    asked: int | None = None,
) -> tuple[SiteClient, Path]:
    """Return the site that this node is, for the server's run, and its folder.

    run_config: preset and overrides of the run. node_config: what this node was started with.
    settings: the server's settings, if the message carries them. policy: what the site allows;
    `allowed` is called as soon as the policy allows the run, before data are read. asked: the
    number of the site that a task is for. Raises TermError if the site does not allow the run,
    ConfigError if the server runs other code or another experiment (it names the difference), and
    OwnDataError if the site's data cannot be used.
    """
    place = _store_root(node_config)
    experiment = policy.experiment(run_config, origin, place is not None)
    _check(origin, experiment, settings)
    allowed()
    number, data = who_am_i(node_config, experiment, asked)
    if data is not None:
        if experiment.data.patients:
            raise ConfigError(
                "data.patients would be matched with the names of this site's files: leave it out "
                "of the run; each site names its own pattern in its site.yaml (patients)"
            )
        data = replace(data, patients=policy.terms.patients)
    run = folder_of(place or out_root(experiment), origin.run, origin.identity)
    folder, kept = run / "sites" / f"site-{number}", run / "models"
    if place is not None and experiment.runtime.models:
        # Elsewhere than the run's other files here, which a person may delete after the run.
        kept = folder_of(place / "models", origin.run, origin.identity)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(folder, error) from error
    key = read_key(run / "pool") if place is None else ""
    shares = bool(key) and digest_of(key.encode()) == origin.pool
    store = _pool(run / "pool") if shares else ModelStore(folder / "models")
    protects = experiment.protection is not None
    own_images = protects and data is not None
    with errors_withheld(own_images):
        federation = federation_of(experiment, {number: data} if data else {})
    keeps = Keeps(kept, origin.run) if experiment.runtime.models else None
    summing = released = None
    if not simulated_here(node_config):
        # These files count a run's masked sums and releases: no setting of the run may move them.
        own = policy.folder or place or runs_root()
        if experiment.privacy.masked:
            summing = _summing(experiment, number, origin, node_config, policy, own)
        if experiment.privacy.epsilon:
            which = f"releases {origin.run} {origin.identity} {number}"
            released = Head(own, which, folder / "privacy" / RELEASED, BEGIN_AGAIN)
    with errors_withheld(own_images):
        site = federation.site(
            number,
            experiment,
            store,
            folder,
            shares_pool=shares,
            keeps_scores=True,
            keeps=keeps,
            summing=summing,
        )
        if experiment.data.name == OWN:
            check_unchanged(folder / "data.sha256", site.data)
    # One folder for all runs: what a frozen encoder says of an image depends on no run.
    features = place / "features" if place else None
    shown = policy.shown(site.data, protects)
    return replace(site, data=shown, features=features, released=released), folder


def _summing(
    experiment: Experiment,
    number: int,
    origin: Origin,
    node_config: Mapping[str, Scalar],
    policy: SitePolicy,
    own: Path,
) -> Summing:
    """Return a real site's part in masked sums. own: a folder that no run can choose.

    Raises ConfigError if the run names no members, and as `registered` does.
    """
    if not experiment.privacy.members:
        raise ConfigError(
            "privacy.members is empty, and this site is no simulation: without registered members "
            "everybody could take the masks off; have the line that `fedapp sites --members` makes "
            "put into the preset"
        )
    key, vouched = _signing_key(node_config), policy.terms.vouched
    member = registered(experiment, number, origin, key, vouched)
    # The journal is named by identity and key, not by the run's name: under another name the site
    # would begin another journal, and would do the same sum a second time.
    which = f"{origin.identity}/{fingerprint(member.signer.public)[:16]}"
    root = own / SUMS_FOLDER / which
    return Summing(member, root, Head(own, f"masked sums {which}", root / JOURNAL, BEGIN_AGAIN))


def _signing_key(node_config: Mapping[str, Scalar]) -> Path:
    """Return the file of the site's registered key. Raises ConfigError where the node has none."""
    if not (key := node_config.get(SIGNING_KEY, "")):
        raise ConfigError(
            "sums are masked between registered members (privacy.members), and this node knows "
            f"no key of its own: start it by `fedapp node`, or with {SIGNING_KEY}=FILE in its "
            "node config"
        )
    return Path(str(key))


def policy_of(node_config: Mapping[str, Scalar]) -> SitePolicy:
    """Return the policy of the site that this node is: its terms and its record."""
    folder = node_config.get(SITE_FOLDER, "")
    no_terms = node_config.get(NO_TERMS, False) is True or simulated_here(node_config)
    return SitePolicy(Path(str(folder)) if folder else None, no_terms)


@contextmanager
def locked(site: SiteClient, folder: Path) -> Iterator[None]:
    """Hold a lock, so that only one task at a time uses a site's stores.

    After a deadline the server goes on although the site may still be at work; in a simulation
    Flower then runs the next task at the same time. Raises RunError if the earlier task does not
    end within `BUSY_S`.
    """
    lock = FileLock(folder / "busy.lock")
    try:
        lock.acquire(timeout=BUSY_S)
    except Timeout as error:
        raise RunError(
            f"site {site.data.site} is still at work on an earlier round; raise rounds.deadline_s"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _check(origin: Origin, experiment: Experiment, settings: Mapping[str, Scalar]) -> None:
    path, code = _code()
    if origin.code not in (code, stands_in_for()[: len(code)]):
        raise ConfigError(
            f"this site runs code {code} from {path}, the server runs {origin.code}; "
            "install the same version on both"
        )
    if not origin.reads[0] <= SCHEMA <= origin.reads[1]:
        raise ProtocolError(f"this site writes messages {SCHEMA}, {version_remedy(origin.reads)}")
    differ = differing(shared_settings(experiment), settings) if settings else []
    found = first_three([f"{key} is {my!r} here, {its!r} at the server" for key, my, its in differ])
    if found or origin.experiment != experiment_digest(experiment):
        raise ConfigError(
            f"this site's settings differ from the server's{f' ({found})' if found else ''}; use "
            "the same preset file"
        )


@lru_cache(maxsize=1)
def _code() -> tuple[str, str]:
    path, code = code_hash()
    log.info("site code %s (%s)", path, code)
    return path, code


def _store_root(node_config: Mapping[str, Scalar]) -> Path | None:
    """Return where this node was told to keep its stores; None: in the folder of the run.

    In the run's folder it finds the server's pool if both are on one machine, and needs no copies.
    """
    place = node_config.get("store-path") or os.environ.get("FEDAPP_SITES")
    return Path(str(place)) if place else None


@lru_cache(maxsize=1)
def _pool(root: Path) -> ModelStore:
    """Open the server's pool once in a process, so that its sites share the models read."""
    return ModelStore(root)
