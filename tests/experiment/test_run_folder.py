import errno
import json
import logging
import os
import resource
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from fedapp.core.errors import RunError, StoreError
from fedapp.experiment import resume
from fedapp.experiment.code_hash import code_hash, digest_of, versions
from fedapp.experiment.config import experiment_digest, from_plain, load_experiment, to_plain
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.resume import check_run, open_run, sole_server
from fedapp.experiment.run_folder import (
    RUN_NAME_PATTERN,
    RunFolder,
    find_run,
    folder_of,
    make_folder,
    out_root,
    run_names,
)


class Split:
    """Stands for a manifest."""

    def __init__(self, digest: str) -> None:
        self._digest = digest

    def digest(self) -> str:
        return self._digest

    def save(self, path: Path | str) -> None:
        Path(path).write_bytes(b"split")


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return load_experiment("digits_demo", {"runtime.out": str(tmp_path / "runs"), "seed": 3})


def named(experiment: Experiment, name: str, resume: bool = False) -> Experiment:
    return replace(experiment, runtime=replace(experiment.runtime, run_name=name, resume=resume))


def test_new_folder_notes_what_runs(experiment: Experiment) -> None:
    folder = open_run(experiment, Split("ab" * 32))
    assert folder.path.parent == out_root(experiment)
    assert (folder.pool_root, folder.sites_root) == (folder.path / "pool", folder.path / "sites")
    facts = json.loads((folder.path / "run.json").read_text())
    assert facts["experiment"] == experiment_digest(experiment)
    assert facts["manifest"] == "ab" * 32
    assert facts["code"] == code_hash()[1]
    assert {"python", "platform", "torch", "numpy"} <= facts["versions"].keys()
    assert (folder.path / "manifest.safetensors").read_bytes() == b"split"
    config = yaml.safe_load((folder.path / "config.yaml").read_text())
    assert config == json.loads(json.dumps(to_plain(experiment)))
    assert from_plain(config, "config.yaml") == experiment


def test_the_settings_of_a_run_are_a_preset_that_runs_again(experiment: Experiment) -> None:
    first = open_run(named(experiment, "mine"))
    again = load_experiment(str(first.path / "config.yaml"))
    assert again == named(experiment, "")
    second = open_run(again)  # a folder of its own, named as any run of the preset
    assert second.path.name.startswith("digits_demo-s3-20")
    assert (second.path / "config.yaml").read_text() == (first.path / "config.yaml").read_text()


def test_no_manifest_where_the_server_has_no_data(experiment: Experiment) -> None:
    folder = open_run(experiment)
    assert json.loads((folder.path / "run.json").read_text())["manifest"] is None
    assert not (folder.path / "manifest.safetensors").exists()
    assert open_run(named(experiment, folder.path.name, resume=True)).path == folder.path


def test_a_default_name_is_unique_and_a_folder_name(experiment: Experiment, tmp_path: Path) -> None:
    names = {open_run(experiment).path.name for _ in range(3)}
    assert len(names) == 3
    for name in names:
        assert name.startswith("digits_demo-s3-20")
        assert RUN_NAME_PATTERN.fullmatch(name)
    for preset in ("my preset/../ä", "...", "x" * 300):
        folder = RunFolder.create(tmp_path, "", {"name": preset, "seed": 0}, None, "d")
        assert folder.path.parent == tmp_path
        assert RUN_NAME_PATTERN.fullmatch(folder.path.name)


def test_a_run_is_never_overwritten(experiment: Experiment) -> None:
    first = open_run(named(experiment, "mine"))
    first.write_summary({"mean": 1})
    with pytest.raises(RunError, match=r"mine: there is such a run; choose another .*run_name"):
        open_run(named(experiment, "mine"))
    assert (first.path / "summary.json").exists()


@pytest.mark.parametrize("name", ["a/b", "../up", ".hidden", "-x", "a b", "x" * 121])
def test_names_that_are_no_folder_names(experiment: Experiment, name: str) -> None:
    with pytest.raises(RunError, match=r"runtime\.run_name = .*must be letters"):
        open_run(named(experiment, name))


def test_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    default = load_experiment("digits_demo")
    monkeypatch.delenv("FEDAPP_OUT", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert out_root(default) == tmp_path / "fedapp-runs"
    monkeypatch.setenv("FEDAPP_OUT", "~/elsewhere")
    assert out_root(default) == tmp_path / "elsewhere"
    setting = load_experiment("digits_demo", {"runtime.out": "/some/where"})
    assert out_root(setting) == Path("/some/where")


def test_versions_do_not_name_the_machine() -> None:
    host = os.uname().nodename
    assert all(host not in text for text in versions().values())


# --- resuming -------------------------------------------------------------------------------------


def test_resume_opens_the_same_experiment(experiment: Experiment) -> None:
    folder = open_run(named(experiment, "mine"), Split("aa"))
    again = named(experiment, "mine", resume=True)
    moved = replace(again, runtime=replace(again.runtime, device="cpu"))
    assert open_run(moved, Split("aa")).path == folder.path


def test_resume_refuses_another_experiment(experiment: Experiment) -> None:
    open_run(named(experiment, "mine"), Split("aa"))
    other = replace(named(experiment, "mine", resume=True), seed=4)
    with pytest.raises(RunError, match=r"other settings \(seed 3, now 4\); give") as error:
        open_run(other)
    assert "\n" not in str(error.value)
    changed = replace(other, training=replace(other.training, local_epochs=99, batch_size=3))
    with pytest.raises(RunError, match=r"seed 3, now 4; training\.batch_size \d+, now 3; training"):
        open_run(changed)


def rounds(experiment: Experiment, number: int) -> Experiment:
    return replace(experiment, rounds=replace(experiment.rounds, num_rounds=number))


def test_resume_with_more_rounds_makes_it_a_run_of_so_many(experiment: Experiment) -> None:
    folder = open_run(rounds(named(experiment, "mine"), 3))
    for number in (5, 8):
        longer = rounds(named(experiment, "mine", resume=True), number)
        open_run(longer)
        facts = json.loads((folder.path / "run.json").read_text())
        assert facts["experiment"] == experiment_digest(longer)
        assert load_experiment(str(folder.path / "config.yaml")).rounds.num_rounds == number
        open_run(longer)


def test_resume_with_more_rounds_survives_a_kill_between_its_two_files(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = open_run(rounds(named(experiment, "mine"), 3))
    longer = rounds(named(experiment, "mine", resume=True), 5)
    monkeypatch.setattr(resume, "store_num_rounds", lambda *_: None)  # killed before
    open_run(longer)
    monkeypatch.undo()
    open_run(longer)
    assert load_experiment(str(folder.path / "config.yaml")).rounds.num_rounds == 5


def test_resume_refuses_fewer_rounds_and_more_rounds_of_another_run(experiment: Experiment) -> None:
    open_run(rounds(named(experiment, "mine"), 3))
    again = named(experiment, "mine", resume=True)
    with pytest.raises(RunError, match=r"a run of 3 rounds, now .* = 2: .*not cut short") as error:
        open_run(rounds(again, 2))
    assert "\n" not in str(error.value)
    with pytest.raises(RunError, match=r"rounds\.num_rounds 3, now 5; seed 3, now 4"):
        open_run(rounds(replace(again, seed=4), 5))


def test_resume_refuses_other_images(experiment: Experiment) -> None:
    open_run(named(experiment, "mine"), Split("aa"))
    with pytest.raises(RunError, match="other images or another split"):
        open_run(named(experiment, "mine", resume=True), Split("bb"))


def test_resume_of_nothing(experiment: Experiment) -> None:
    with pytest.raises(RunError, match="no run to resume"):
        open_run(named(experiment, "typo", resume=True))
    with pytest.raises(RunError, match=r"needs runtime\.run_name.*there are none yet"):
        open_run(named(experiment, "", resume=True))
    open_run(named(experiment, "mine"))
    with pytest.raises(RunError, match=r"needs runtime\.run_name.*the newest is mine"):
        open_run(named(experiment, "", resume=True))


def test_resume_with_other_code_warns(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    open_run(named(experiment, "mine"))
    monkeypatch.setattr(resume, "code_hash", lambda: ("/x", "0" * 16))
    with caplog.at_level(logging.WARNING):
        open_run(named(experiment, "mine", resume=True))
    assert f"continues with {'0' * 16}" in caplog.text


def test_resume_drops_metrics_after_the_checkpoint(experiment: Experiment) -> None:
    folder = open_run(named(experiment, "mine"))
    for number in range(4):
        folder.append_metrics({"round": number})
        folder.append_sites({"round": number, "sites": {}})
        if number < 3:
            folder.save_checkpoint({"round": number})
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 4, "mean')  # the crash cut this line
    assert [row["round"] for row in folder.metrics()] == [0, 1, 2, 3]

    again = open_run(named(experiment, "mine", resume=True))

    text = (again.path / "metrics.jsonl").read_text()
    assert text == '{"round": 0}\n{"round": 1}\n{"round": 2}\n'
    again.append_metrics({"round": 3})
    assert [row["round"] for row in again.metrics()] == [0, 1, 2, 3]
    assert [row["round"] for row in again.sites()] == [0, 1, 2]


def test_resume_takes_no_more_memory_than_a_line(experiment: Experiment) -> None:
    """Of 10,000 rounds and 100 sites, `sites.jsonl` has some 400 MB."""
    folder = open_run(named(experiment, "mine"))
    line = json.dumps({"round": 0, "sites": {str(site): [0.5] * 20 for site in range(100)}})
    (folder.path / "sites.jsonl").write_text(f"{line}\n" * 300 + '{"round": 1}\n')
    tracemalloc.start()
    try:
        folder.drop_rows_after(0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 * len(line) < 300 * len(line)
    assert len(folder.sites()) == 300


def row(number: int) -> tuple[int | str, ...]:
    return (number, 3, "up", "model", 1, 500, "")


def test_resume_drops_traffic_after_the_checkpoint(experiment: Experiment) -> None:
    folder = open_run(named(experiment, "mine"))
    for number in range(3):
        folder.append_traffic([row(number)])
    path = folder.path / "traffic.csv"
    whole = path.read_text()
    with path.open("a") as file:
        file.write("1")  # the crash cut a line of round 10
    for last in (2, 1):
        folder.drop_rows_after(last)
        assert path.read_text() == "".join(whole.splitlines(keepends=True)[: last + 2])


@pytest.mark.parametrize("left", ["", "round,si"])
def test_traffic_has_its_header_after_any_cut(experiment: Experiment, left: str) -> None:
    """A full disk, or a power cut, leaves the first lines empty or in part."""
    folder = open_run(named(experiment, "mine"))
    (folder.path / "traffic.csv").write_text(left)
    folder.drop_rows_after(-1)
    folder.append_traffic([row(0)])
    text = (folder.path / "traffic.csv").read_text()
    assert text == "round,site,direction,kind,models,bytes,layers\n0,3,up,model,1,500,\n"


def test_resume_removes_what_a_killed_server_was_writing(experiment: Experiment) -> None:
    folder = open_run(named(experiment, "mine"))
    part = folder.path / ".checkpoint.json.0123abcd.tmp"
    part.write_text("half")
    os.utime(part, (0, 0))
    open_run(named(experiment, "mine", resume=True))
    assert not part.exists()


def test_resume_before_the_first_checkpoint_starts_over(experiment: Experiment) -> None:
    folder = open_run(named(experiment, "mine"))
    folder.append_metrics({"round": 0})
    again = open_run(named(experiment, "mine", resume=True))
    assert again.load_checkpoint() is None
    assert again.metrics() == []


@pytest.mark.parametrize("text", ['{"round": 1, "sta', "[]", "{}", "\0\0"])
def test_damaged_checkpoint_is_said(experiment: Experiment, text: str) -> None:
    folder = open_run(named(experiment, "mine"))
    (folder.path / "checkpoint.json").write_text(text)
    with pytest.raises(RunError, match=r"checkpoint\.json: damaged .*: restore it") as error:
        open_run(named(experiment, "mine", resume=True))
    assert "\n" not in str(error.value)


# --- records --------------------------------------------------------------------------------------


def test_metrics_are_json_whatever_the_numbers(experiment: Experiment) -> None:
    folder = open_run(experiment)
    folder.append_metrics({"round": 0, "mean": float("nan"), "none": None, "skipped": {3: "späť"}})
    line = (folder.path / "metrics.jsonl").read_text()
    assert json.loads(line, parse_constant=pytest.fail) == {
        "round": 0,
        "mean": None,
        "none": None,
        "skipped": {"3": "späť"},
    }
    assert folder.metrics() == [json.loads(line)]


def test_checkpoint_keeps_every_bit(experiment: Experiment) -> None:
    state = {"round": 7, "score": 0.1 + 0.2, "tiny": 5e-324, "nested": [[1, "a", None]]}
    folder = open_run(experiment)
    folder.save_checkpoint({"round": 6})
    folder.save_checkpoint(state)
    assert RunFolder(folder.path).load_checkpoint() == state


def test_per_site_goes_there_and_back(experiment: Experiment) -> None:
    folder = open_run(experiment)
    assert folder.per_site() == []
    folder.write_per_site([])
    assert folder.per_site() == []
    rows = [
        {"site": 0, "mu": 0.25, "test": 0, "final_accuracy": None, "helpers": "3:0.71 5:0.66"},
        {"site": 1, "mu": 1.0, "test": 12, "final_accuracy": 1 / 3, "helpers": None, "more": 1},
    ]
    folder.write_per_site(rows)
    lines = (folder.path / "per_site.csv").read_text().splitlines()
    assert lines[0] == "site,mu,test,final_accuracy,helpers,more"
    assert lines[1] == "0,0.25,0,,3:0.71 5:0.66,"
    assert folder.per_site() == [{**rows[0], "more": None}, rows[1]]


# --- a full disk ----------------------------------------------------------------------------------


def no_space_left(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_full_disk_while_checkpointing_keeps_the_previous(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = open_run(experiment)
    folder.save_checkpoint({"round": 1})
    monkeypatch.setattr(os, "fsync", no_space_left)
    with pytest.raises(StoreError, match=r"checkpoint\.json: .*No space left.*free space"):
        folder.save_checkpoint({"round": 2})
    monkeypatch.undo()
    assert folder.load_checkpoint() == {"round": 1}
    assert list(folder.path.rglob("*.tmp")) == []
    folder.save_checkpoint({"round": 2})
    assert folder.load_checkpoint() == {"round": 2}


def test_the_kernel_refuses_in_the_middle_of_a_line(experiment: Experiment) -> None:
    folder = open_run(experiment)
    folder.append_metrics({"round": 0, "text": "x" * 1000})
    folder.save_checkpoint({"round": 0})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, before[1]))
    try:
        with pytest.raises(StoreError, match=r"metrics\.jsonl: cannot be written \(File too large"):
            folder.append_metrics({"round": 1, "text": "x" * 9000})
        with pytest.raises(StoreError, match=r"checkpoint\.json: cannot be written"):
            folder.save_checkpoint({"round": 1, "text": "x" * 9000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    text = (folder.path / "metrics.jsonl").read_bytes()
    assert text.endswith(b"\n")
    assert text.count(b"\n") == 1
    assert folder.load_checkpoint() == {"round": 0}
    folder.append_metrics({"round": 1})
    assert [row["round"] for row in folder.metrics()] == [0, 1]


def test_a_folder_that_cannot_be_made_leaves_nothing(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", no_space_left)
    with pytest.raises(StoreError, match="No space left"):
        open_run(named(experiment, "mine"))
    monkeypatch.undo()
    assert open_run(named(experiment, "mine")).path.name == "mine"  # the name is free


def test_root_is_a_file(experiment: Experiment, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(StoreError, match=r"cannot be written .*runtime\.out"):
        open_run(experiment)
    with pytest.raises(RunError, match="no run to resume"):
        open_run(named(experiment, "mine", resume=True))


# --- who carries it on ----------------------------------------------------------------------------


def test_a_run_that_goes_on_has_one_server_and_its_records_are_left_alone(
    experiment: Experiment,
) -> None:
    with sole_server(named(experiment, "mine")) as folder:
        folder.append_metrics({"round": 0})
        with pytest.raises(RunError, match=r"mine: its run is still going on; .*flwr stop\)"):
            with sole_server(named(experiment, "mine", resume=True)):
                pass
        assert folder.metrics() == [{"round": 0}]
    with sole_server(named(experiment, "mine", resume=True)) as again:
        assert again.metrics() == []  # no checkpoint: from the beginning
    with pytest.raises(RunError, match="no run to resume"):
        with sole_server(named(experiment, "none", resume=True)):
            pass


def test_a_look_at_a_run_that_goes_on_changes_nothing(experiment: Experiment) -> None:
    """A second server looks before it asks for the folder: the first is between two files."""
    with sole_server(rounds(named(experiment, "mine"), 3)) as folder:
        folder.save_checkpoint({"round": 0})
        for number in range(2):
            folder.append_metrics({"round": number})
            folder.append_sites({"round": number, "sites": {}})
        before = {path: path.read_bytes() for path in folder.path.iterdir()}
        check_run(rounds(named(experiment, "mine", resume=True), 5))
        assert {path: path.read_bytes() for path in folder.path.iterdir()} == before


def test_a_run_that_stopped_says_how_to_go_on(experiment: Experiment) -> None:
    folder = open_run(named(experiment, "mine"))
    assert folder.going_on() == "start again"
    folder.save_checkpoint({"round": 0})
    assert folder.going_on() == "continue with runtime.resume=true runtime.run_name=mine"


# --- which code -----------------------------------------------------------------------------------


def test_code_hash_follows_names_and_bytes(tmp_path: Path) -> None:
    for package in ("fedapp", "client_app", "stranger", "conf"):
        (tmp_path / package).mkdir()
    code, project = tmp_path / "fedapp" / "a.py", tmp_path / "pyproject.toml"
    code.write_text("x = 1")
    hashes = [digest_of(tmp_path, tmp_path)]  # no pyproject.toml: still a hash

    project.write_text("[project]\nname = 'a'\n")
    hashes.append(digest_of(tmp_path, tmp_path))
    code.write_text("x = 2")
    hashes.append(digest_of(tmp_path, tmp_path))
    code.rename(tmp_path / "client_app" / "a.py")
    hashes.append(digest_of(tmp_path, tmp_path))
    assert len(set(hashes)) == 4

    project.write_text("# said otherwise\nproject.name = 'a'\n")
    (tmp_path / "stranger" / "b.py").write_text("")
    (tmp_path / "fedapp" / "notes.txt").write_text("")
    (tmp_path / "conf" / "p.yaml").write_text("seed: 0")  # a preset is a setting
    assert digest_of(tmp_path, tmp_path) == hashes[-1]

    (tmp_path / "fedapp" / "app").mkdir()  # where an installed package has what is beside it
    (tmp_path / "client_app").rename(tmp_path / "fedapp" / "app" / "client_app")
    project.rename(tmp_path / "fedapp" / "app" / "pyproject.toml")
    assert digest_of(tmp_path, tmp_path / "fedapp" / "app") == hashes[-1]


# --- where runs are -------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "runs"
    monkeypatch.setenv("FEDAPP_OUT", str(root))
    return root


def begun(root: Path, name: str, age: int, mark: str = "run.json") -> Path:
    """Make a folder as a run has it, begun so many seconds ago."""
    path = root / name / mark
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    os.utime(path, (1e9 - age, 1e9 - age))
    return path.parent


def test_by_name_and_by_path(root: Path, tmp_path: Path) -> None:
    ours = begun(root, "trial", 5)
    other = begun(tmp_path / "elsewhere", "trial", 5)
    assert find_run("trial") == ours, "a name of ours comes first"
    assert find_run(str(other)) == other
    cell = begun(root / "compare-small" / "cells", "fixavg-0", 1)
    assert find_run("compare-small/cells/fixavg-0") == cell


def test_a_relative_folder_and_the_home_folder(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(tmp_path / "here", "mine", 1)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_run("mine") == Path("mine")
    assert find_run("~/here/mine") == tmp_path / "here" / "mine"
    monkeypatch.chdir(tmp_path / "here" / "mine")
    root.mkdir()
    assert find_run(".").samefile(tmp_path / "here" / "mine"), "not the folder of all runs"
    assert find_run("../mine").samefile(tmp_path / "here" / "mine")


def test_without_a_name_it_is_the_newest_run(root: Path) -> None:
    with pytest.raises(RunError, match="no runs yet"):
        find_run("")
    begun(root, "b-old", 9)
    newest = begun(root, "a-new", 2)
    begun(root, "compare-small", 1, "comparison.json")
    assert find_run("") == newest, "a comparison is no run"
    assert run_names(root) == ["b-old", "a-new", "compare-small"]


def test_a_typo_names_the_nearest_and_nothing_near_the_newest(root: Path) -> None:
    with pytest.raises(RunError, match=r"no such run in .*; there are none yet"):
        find_run("hospitals")
    begun(root, "hospitals", 5)
    begun(root, "compare-small", 4, "comparison.json")
    begun(root, "digits", 3)
    for typo, near in (("hospital", "hospitals"), ("compare-smal", "compare-small")):
        with pytest.raises(RunError, match=rf"'{typo}': .*did you mean '{near}'\?"):
            find_run(typo)
    with pytest.raises(RunError, match="the newest is digits") as error:
        find_run("zzz")
    assert "\n" not in str(error.value)


def test_a_file_is_no_run(root: Path) -> None:
    path = begun(root, "trial", 1) / "run.json"
    with pytest.raises(RunError, match="no such folder"):
        find_run(str(path))


def test_where_run_folders_cannot_be_the_settings_are_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"another folder \(FEDAPP_OUT or runtime.out\)$"):
        make_folder(tmp_path / "file", "run", "")
    with pytest.raises(StoreError, match=r"another folder .*, or the node's store-path"):
        folder_of(tmp_path / "file", "run", "")
