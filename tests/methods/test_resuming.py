"""A run that is cut and resumed gives the same numbers: what `test_every_method` does not show."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest

from fedapp.methods.averaging.base import aggregate_round
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.averaging.fedbn import FedBN
from fedapp.methods.averaging.fedper import FedPer
from fedapp.methods.prototypes.flexproto import FlexProto
from fedapp.methods.recommended.prior_shift import PriorShift
from fedapp.methods.um_pfssl.method import UmPfssl
from fedapp.server.pool import ModelPool
from tests.methods.conformance import WARM_UP, Stop, cut_at, play, play_in_one_store, toy


def test_a_run_cut_twice_in_the_same_round_still_finds_its_private_parts(tmp_path):
    whole = play(toy(FedPer(), tmp_path, name="whole", **WARM_UP))
    experiment = toy(FedPer(), tmp_path, **WARM_UP)
    with pytest.raises(Stop):
        play(experiment, cut_at(2, "train", 2))
    again = replace(experiment, runtime=replace(experiment.runtime, resume=True))
    for answers in (1, 3):
        with pytest.raises(Stop):
            play(again, cut_at(2, "train", answers))
    assert play(again).records() == whole.records()


@dataclass(frozen=True)
class Twice(FedPer):
    """Sites learn twice in a round."""

    name: ClassVar[str] = "twice"

    def server_round(self, state, rnd):
        yield from aggregate_round(rnd, self.weight)
        return (yield from super().server_round(state, rnd))


@pytest.mark.parametrize("answers", [4, 6])
def test_a_second_training_of_a_round_does_not_push_out_what_the_round_began_with(
    tmp_path, answers, capsys
):
    whole = play(toy(Twice(), tmp_path, name="whole"))
    experiment = toy(Twice(), tmp_path)
    with pytest.raises(Stop):
        play(experiment, cut_at(2, "train", answers))
    resumed = play(replace(experiment, runtime=replace(experiment.runtime, resume=True)))
    assert "had lost" not in capsys.readouterr().out
    assert resumed.records() == whole.records()


KILLED = """
import os, signal, sys
from pathlib import Path
from dataclasses import replace
from {module} import METHOD
from tests.methods.conformance import WARM_UP, play_in_one_store, toy
from fedapp.site.site import SiteClient

handle, calls = SiteClient.handle, []

def killing(self, task, payloads):
    answer = handle(self, task, payloads)
    calls.append(task)
    if sum((t.round, t.phase, t.action) == {cut} for t in calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return answer

SiteClient.handle = killing
play_in_one_store(toy(METHOD(), Path(sys.argv[1]), **WARM_UP))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("method", "cut"), [
    (FedBN, (2, 0, "train")),
    (FedPer, (2, 0, "train")),
    (FlexProto, (2, 0, "train")),
    (PriorShift, (0, 2, "warmup")),
    (PriorShift, (2, 0, "train")),
])  # fmt: skip
def test_a_killed_process_resumes_to_the_same_bits(tmp_path, method, cut):
    """cut: round, phase and action, in which the second site is the last to end its work."""
    code = KILLED.format(module=method.__module__, cut=cut)
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], env=os.environ, check=False)
    assert done.returncode == -signal.SIGKILL
    experiment = toy(method(), tmp_path, **WARM_UP)
    resumed = play_in_one_store(
        replace(experiment, runtime=replace(experiment.runtime, resume=True))
    )
    plain = play_in_one_store(toy(method(), tmp_path, name="plain", **WARM_UP))
    assert resumed.rows() == plain.rows() and resumed.records() == plain.records()


@pytest.mark.parametrize(
    "method", [FedBN(objective="fixmatch"), UmPfssl(mc_samples=2)], ids=lambda m: m.name
)
def test_a_finished_run_goes_on_to_more_rounds_as_if_it_had_been_so_long(tmp_path, method):
    experiment = toy(method, tmp_path, rounds__num_rounds=1)
    play(experiment)
    longer = replace(
        experiment,
        rounds=replace(experiment.rounds, num_rounds=3),
        runtime=replace(experiment.runtime, resume=True),
    )
    at_once = toy(method, tmp_path, name="at_once", rounds__num_rounds=3)
    extended, whole = play(longer), play(at_once)
    assert extended.rows() == whole.rows() and len(whole.rows()) == 4
    assert extended.records() == whole.records()


def test_a_run_that_is_killed_before_its_last_clearing_is_cleared_when_it_is_resumed(
    tmp_path, monkeypatch
):
    experiment = toy(FedAvg(), tmp_path)
    collect_garbage = ModelPool.collect_garbage

    def killed(pool, also=(), *, more_come=False):
        if not more_come:
            raise KeyboardInterrupt
        collect_garbage(pool, also, more_come=more_come)

    monkeypatch.setattr(ModelPool, "collect_garbage", killed)
    with pytest.raises(KeyboardInterrupt):
        play_in_one_store(experiment)
    monkeypatch.undo()
    resumed = replace(experiment, runtime=replace(experiment.runtime, resume=True))
    played = play_in_one_store(resumed)
    named = {digest for _, digest, _ in played.records()["pool"].values()}
    pool = played.folder.pool_root
    assert {file.stem for file in pool.rglob("*.safetensors")} == named
    assert not (pool / "spare").exists()
