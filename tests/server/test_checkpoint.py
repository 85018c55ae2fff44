"""The state saved after every round: whole at times, between them what changed."""

import errno
import json
from dataclasses import dataclass, field, replace

import pytest
from pydantic_core import to_json

from fedapp.core.disk import write_error
from fedapp.core.errors import RunError, StoreError
from fedapp.experiment.run_folder import CHANGES_FILE, CHECKPOINT_FILE, RunFolder
from fedapp.methods.base import MethodState
from fedapp.protocol.messages import SiteFacts
from fedapp.protocol.store import ModelStore
from fedapp.protocol.traffic import Ledger
from fedapp.server.checkpoint import Checkpoint, changed
from fedapp.server.pool import ModelPool
from fedapp.server.run_state import RunState
from fedapp.server.standings import Standing, Standings

SITES = 50


@dataclass(frozen=True)
class Remembered(MethodState):
    """A method's state: a table and a number."""

    rows: dict[int, tuple[int, ...]] = field(default_factory=dict)
    total: int = 0


class Run:
    """A run of 50 sites that only its records are of."""

    def __init__(self, path):
        self.folder = RunFolder(path)
        self.pool = ModelPool(ModelStore(path / "pool"))
        self.pool.start(range(SITES), b"w_0")
        facts = SiteFacts(0, (1, 8, 8), ("a", "b"), 1, 1, 1, 1, "0" * 64)
        sites = {k: Standing(replace(facts, site=k)) for k in range(SITES)}
        self.state = RunState(-1, Remembered(), Standings(sites), {k: [] for k in sites})
        self.checkpoint = Checkpoint(self.folder)

    def round(self, site):
        """One round in which one site changes; return the whole state after it."""
        self.state.round += 1
        number, sites = self.state.round, self.state.standings.sites
        sites[site] = replace(sites[site], rounds_trained=number)
        self.state.held[site] = [f"{number:064}"]
        rows = {**self.state.server.rows, site: (number,)}
        self.state.server = Remembered(rows, number)
        blob = f"model {number}".encode()
        self.pool.upload(site, self.pool.store.put(blob), blob, number)
        self.checkpoint.save(self.state, self.pool, Ledger())
        plain = {"round": number, "state": self.state, "pool": self.pool.to_plain()}
        return json.loads(to_json({**plain, "ledger": Ledger().totals()}))

    def loaded(self):
        return RunFolder(self.folder.path).load_checkpoint()


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


def lines(run):
    path = run.folder.path / CHANGES_FILE
    return path.read_bytes().splitlines(keepends=True) if path.exists() else []


def test_after_every_round_the_whole_state_is_read_back(run):
    assert run.loaded() is None
    for number in range(60):
        assert run.round(number % SITES) == run.loaded()


def test_what_is_written_goes_by_what_changed_and_not_by_all_sites(run):
    run.round(3)
    assert not lines(run)  # the first is whole
    run.round(7)
    [line] = lines(run)
    whole = (run.folder.path / CHECKPOINT_FILE).read_bytes()
    assert len(line) < len(whole) / 5
    assert list(json.loads(line)["state"]["standings"]["sites"]) == ["7"]


def test_lines_are_never_much_longer_than_a_whole_state(run):
    for number in range(150):
        run.round(number % SITES)
        longest = (run.folder.path / CHECKPOINT_FILE).stat().st_size + 4000
        assert sum(map(len, lines(run))) < longest


def test_a_run_cut_at_any_byte_is_at_a_whole_round(run):
    states = [run.round(number) for number in range(4)]
    written = b"".join(lines(run))
    ends = [i + 1 for i, byte in enumerate(written) if byte == ord("\n")]
    for length in {0, 1, len(written) - 1, len(written), *ends, *(e - 1 for e in ends)}:
        (run.folder.path / CHANGES_FILE).write_bytes(written[:length])
        assert run.loaded() == states[sum(end <= length for end in ends)]


def test_cut_between_a_whole_state_and_the_removal_of_the_lines_before_it(run):
    run.round(0)
    state = run.round(1)
    before = b"".join(lines(run))
    run.checkpoint.save_whole(run.state, run.pool, Ledger())
    (run.folder.path / CHANGES_FILE).write_bytes(before)
    assert run.loaded() == state


def test_a_new_process_begins_with_a_whole_state(run):
    run.round(0)
    run.round(1)
    with (run.folder.path / CHANGES_FILE).open("ab") as file:
        file.write(b'{"round":2,"st')  # cut
    run.checkpoint = Checkpoint(run.folder)
    state = run.round(2)
    assert not lines(run) and run.loaded() == state


@pytest.mark.parametrize("damage", [b"{}\n", b"nothing\n", b'{"round":9,"tables":[]}\n', b"[]\n"])
def test_a_damaged_line_is_said(run, damage):
    run.round(0)
    run.round(1)
    (run.folder.path / CHANGES_FILE).write_bytes(damage)
    with pytest.raises(RunError, match=r"changes\.jsonl: damaged .*: restore it"):
        run.loaded()


def test_a_row_that_is_gone_is_gone(run):
    for site in range(3):
        run.round(site)
    rows = dict(run.state.server.rows)
    del rows[1]
    run.state.server = replace(run.state.server, rows=rows)
    assert run.round(2)["state"]["server"]["rows"].keys() == {"0", "2"}
    assert run.loaded()["state"]["server"]["rows"].keys() == {"0", "2"}


def test_a_full_disk_keeps_what_was_saved_before(run, monkeypatch):
    run.round(0)
    before = run.round(1)

    def full(path, data):
        raise write_error(path, OSError(errno.ENOSPC, "No space left on device"))

    monkeypatch.setattr("fedapp.experiment.run_folder.append_durable", full)
    with pytest.raises(StoreError, match=r"changes\.jsonl.*No space left"):
        run.round(2)
    assert run.loaded() == before


def test_changed_rows_by_hand():
    kept, new = (1,), (2,)
    assert changed({"t": {1: kept, 2: kept}}, {"t": {1: kept, 2: new, 3: new}}) == {
        "t": {2: new, 3: new}
    }
    assert changed({"t": {1: kept}}, {"t": {}}) is None
    assert changed({}, {"t": {}}) is None
    assert changed({"t": {}}, {"t": {}}) == {"t": {}}
