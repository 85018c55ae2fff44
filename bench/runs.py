"""Runs of benchmarks: made in a temporary folder, then examined; results are kept."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from safetensors.torch import load
from torch import Tensor

from fedapp.core.devices import torch_threads
from fedapp.core.disk import write_atomic
from fedapp.core.progress import Progress
from fedapp.data.inputs import normalise
from fedapp.data.sites import SiteData
from fedapp.experiment.code_hash import code_hash
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.preset_files import Scalar
from fedapp.experiment.resume import open_run
from fedapp.experiment.run_folder import RunFolder, out_root
from fedapp.learn.networks import Network, build_model
from fedapp.learn.params import Params, from_bytes, schema_of
from fedapp.protocol.messages import SERVER_SITE, Incoming, Outgoing, SiteFacts
from fedapp.protocol.store import ModelStore
from fedapp.protocol.traffic import Ledger
from fedapp.server.engine import Engine
from fedapp.server.phases import Carrier, Fetch
from fedapp.server.standings import Row
from fedapp.simulation.in_process import Loopback
from fedapp.simulation.loopback import run_loopback
from fedapp.site.federation import LoadedSites, federation_of

Case = TypeVar("Case", bound=tuple[Any, ...])


@dataclass(frozen=True)
class Run:
    """A finished run, as it is after its last round."""

    experiment: Experiment
    summary: Row
    folder: RunFolder

    def data(self, site: int) -> SiteData:
        """Return a site's data."""
        return self._federation.dealt.site(site)

    @property
    def sites(self) -> range:
        """All sites' numbers."""
        return range(self.experiment.split.num_clients)

    def blob(self, site: int) -> bytes:
        """Return the bytes of a site's newest model."""
        return self._store.get(self._pool[str(site)][1])

    def model(self, site: int) -> Params:
        """Return a site's newest model."""
        schema = schema_of(self.network.state_dict())
        return from_bytes(self.blob(site), schema, f"site {site}", self.experiment.transport)

    def made(self, role: str = "") -> Params | None:
        """Return the server's newest content of a role, by default its model; None: it has none.

        The content is not checked.
        """
        key = f"{SERVER_SITE} {role}" if role else str(SERVER_SITE)
        found = self._pool.get(key)
        return None if found is None else load(self._store.get(found[1]))

    @cached_property
    def network(self) -> Network:
        """The run's network; its weights are of no account."""
        first = self.data(0)
        return build_model(self.experiment.model, first.inputs, first.num_classes)

    def holding(self, params: Params) -> Network:
        """Return the network with these weights. The next call changes them."""
        self.network.load_state_dict(params)
        return self.network

    @cached_property
    def _federation(self) -> LoadedSites:
        return federation_of(self.experiment)

    @cached_property
    def _pool(self) -> Mapping[str, Any]:
        text = (self.folder.path / "checkpoint.json").read_text()
        pool: Mapping[str, Any] = json.loads(text)["pool"]
        return pool

    @cached_property
    def _store(self) -> ModelStore:
        return ModelStore(self.folder.pool_root)


@contextmanager
def finished(experiment: Experiment) -> Iterator[Run]:
    """Run in this process; the run's folder exists inside the `with` block."""
    with TemporaryDirectory(prefix="bench-") as out, torch_threads(experiment.runtime.threads):
        away = replace(experiment, runtime=replace(experiment.runtime, out=out))
        summary, folder = run_loopback(away)
        yield Run(experiment, summary, RunFolder(folder))


def scale(data: SiteData) -> Callable[[Tensor], Tensor]:
    """Return the function that normalises a site's images for its network."""
    return partial(normalise, mean=data.mean, std=data.std)


@dataclass
class Through:
    """A carrier that passes everything through; subclasses observe or change what passes."""

    carrier: Carrier

    def introduce(self) -> Sequence[SiteFacts]:
        """Return every site's facts."""
        return self.carrier.introduce()

    def newcomers(self) -> Sequence[SiteFacts]:
        """Return the sites that came since the last call."""
        return self.carrier.newcomers()

    def leave_out(self, site: int) -> None:
        """Note that a site cannot take part."""
        self.carrier.leave_out(site)

    def exchange(
        self, outbox: Sequence[Outgoing], fetch: Fetch, deadline_s: float
    ) -> Iterable[tuple[int, Incoming]]:
        """Carry the tasks and answers."""
        return self.carrier.exchange(outbox, fetch, deadline_s)


def carried_through(
    experiment: Experiment,
    wrap: Callable[[Carrier], Carrier],
    federation: LoadedSites | None = None,
) -> Ledger:
    """Run in this process, with a carrier that `wrap` puts around the plain one.

    federation: the sites' data; None: the experiment's own.
    """
    federation = federation or federation_of(experiment)
    folder = open_run(experiment, federation.manifest)
    store, ledger = ModelStore(folder.pool_root), Ledger()
    carrier = wrap(Loopback(experiment, federation, store, folder.sites_root))
    with Progress() as progress:
        Engine(experiment, carrier, folder, store, progress, ledger).run()
    return ledger


# --- results that are kept ------------------------------------------------------------------------


def kept(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON content of a file; if there is no file, make the content and write it."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(make()).encode(), durable=False)
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


def kept_runs(
    bench: str,
    given: Mapping[str, Scalar],
    cases: Mapping[Case, Experiment],
    make: Callable[[Case, Experiment], dict[str, Any]],
) -> dict[Case, dict[str, Any]]:
    """Return the result of each case and the code's hash; a case that was run is not run again.

    given: the settings of this call, which are part of the folder's name.
    """
    folder = _folder(bench, given, next(iter(cases.values())))

    def made(case: Case) -> dict[str, Any]:
        return {**make(case, cases[case]), "code": code_hash()[1]}

    return {
        case: kept(folder / f"{'-'.join(map(str, case))}.json", partial(made, case))
        for case in cases
    }


def kept_before(
    bench: str, given: Mapping[str, Scalar], one: Experiment
) -> dict[tuple[str, ...], dict[str, Any]]:
    """Return all results that were kept with these settings, by the words of their cases.

    one: any experiment of them. No word of a case may contain a dash.
    """
    files = sorted(_folder(bench, given, one).glob("*.json"))
    return {tuple(file.stem.split("-")): json.loads(file.read_bytes()) for file in files}


def _folder(bench: str, given: Mapping[str, Scalar], one: Experiment) -> Path:
    said = hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()[:8]
    return out_root(one) / f"bench-{bench}-{said}"


def codes(results: Mapping[Any, Mapping[str, Any]]) -> list[str]:
    """Return the hashes of the code that made these results."""
    return sorted({result["code"] for result in results.values()})
