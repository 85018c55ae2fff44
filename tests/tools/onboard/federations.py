"""Federations of which some sites are no part, and runs of the others."""

import json

import pytest

from fedapp.drivers.calls import Loopback
from fedapp.experiment.runfolder import open_run
from fedapp.ground.progress import Progress
from fedapp.messages.ledger import Ledger
from fedapp.messages.store import ModelStore
from fedapp.server.engine import Engine
from fedapp.site.federation import federation_of

PRESENT = (0, 1, 2)


class Noted(Loopback):
    def exchange(self, outbox, fetch, deadline_s):
        self.__dict__.setdefault("tasks", []).extend(out.task for out in outbox)
        return super().exchange(outbox, fetch, deadline_s)


def federate(experiment, only=PRESENT):
    """Run an experiment with some of its sites; return its transport, its folder noted."""
    federation = federation_of(experiment)
    folder = open_run(experiment, federation.manifest)
    store = ModelStore(folder.pool_root)
    transport = Noted(experiment, federation, store, folder.sites_root, only)
    with Progress() as progress:
        Engine(experiment, transport, folder, store, progress, Ledger()).run()
    transport.folder = folder
    return transport


class Stop(Exception):
    """Stands for a power cut."""


def stopped(experiment, only, before=2):
    """Run an experiment with some of its sites until a round begins, and cut it there."""

    def stop(self, outbox, fetch, deadline_s):
        if outbox[0].task.round == before:
            raise Stop
        return Loopback.exchange(self, outbox, fetch, deadline_s)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stop):
        patch.setattr(Noted, "exchange", stop)
        federate(experiment, only)


def records(folder):
    return json.loads((folder / "checkpoint.json").read_text())["pool"]
