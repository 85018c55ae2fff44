"""What every driver (loopback, Flower) does before the first round and after the last one."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedapp.core.errors import FedAppError
from fedapp.core.progress import Progress
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.run_folder import RunFolder
from fedapp.models.folder import write_all_sites_summaries
from fedapp.protocol.store import ModelStore
from fedapp.server.engine import Engine
from fedapp.server.phases import Carrier, LocalServerSite
from fedapp.server.standings import Row

log = logging.getLogger(__name__)

Ending = Callable[[Row, Sequence[Row], Path], str]
"""Returns the text at the end of a run, from summary, rows of per_site.csv and the run's folder."""


@dataclass(frozen=True)
class Assembly:
    """What a driver needs to make a run's carrier. store: that of the server's pool."""

    experiment: Experiment
    folder: RunFolder
    store: ModelStore
    progress: Progress


def carry_out(
    experiment: Experiment,
    folder: RunFolder,
    carrier_of: Callable[[Assembly], Carrier],
    local_site_of: Callable[[Experiment, ModelStore, Path], LocalServerSite],
    ending: Ending,
    summary_extras: Mapping[str, Any] = MappingProxyType({}),
) -> Row:
    """Run an experiment in its open folder, print the result, and return the summary.

    carrier_of: makes the carrier of messages. local_site_of: opens the server's own site on the
    pool, with a folder for what it keeps to itself; it is called where the server holds labelled
    images (`split.server_share`, `runtime.server_data`). ending: makes the text at the end.
    summary_extras: further entries of the summary, about the data. After an error, a folder in
    which no round was completed is removed.
    """
    try:
        with Progress() as progress:
            progress.note(f"run folder {folder.path}")
            parts = Assembly(experiment, folder, ModelStore(folder.pool_root), progress)
            learns = bool(experiment.split.server_share or experiment.runtime.server_data)
            local_site = (
                local_site_of(experiment, parts.store, folder.sites_root) if learns else None
            )
            carrier = carrier_of(parts)
            engine = Engine(
                experiment,
                carrier,
                folder,
                parts.store,
                progress,
                local_site=local_site,
                summary_extras=summary_extras,
            )
            summary = engine.run()
    except Exception:
        folder.discard_unless_begun()
        raise
    try:
        # These are models of simulated sites; those of a real site are on its own machine.
        write_all_sites_summaries(folder.models_root)
    except FedAppError as error:  # the result of the run is saved and must still be printed
        log.warning("%s; no model card tells of the other sites' models", error)
    print(ending(summary, folder.per_site(), folder.path), flush=True)
    return summary
