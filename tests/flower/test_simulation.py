"""Runs with real processes: a SuperLink, Flower's simulation and its Ray actors.

The number of actors is the number of cores that a run may use, but no more than sites.
"""

import os
import re
import signal

import pytest

from fedapp.core import processes
from tests.flower.grids import preset
from tests.flower.results import rows
from tests.flower.simulation import copy_of_app, simulate, simulate_and_loop_back
from tests.small import small

CORES = len(os.sched_getaffinity(0))
TWO_CORES = pytest.mark.skipif(CORES == 1, reason="needs a second core")


@pytest.fixture
def copy(tmp_path):
    with copy_of_app(tmp_path) as copy:
        yield copy


def actors(output):
    return set(re.findall(r"ClientAppActor pid=(\d+)", output))


def errors(output):
    """Lines that tell of a fault, without their colours."""
    plain = re.sub(r"\x1b\[\d+m", "", output)
    return [line for line in plain.splitlines() if re.match(r"(ERROR|error)\b", line)]


def same_bits(copy, tmp_path, count, **overrides):
    """The run in Flower by so many actors has the results of the loopback run; its folder."""
    experiment = small(runtime__out=str(tmp_path / "runs"))
    file = preset(experiment, tmp_path)
    pairs = {key.replace("__", "."): value for key, value in overrides.items()}
    flower, whole, output = simulate_and_loop_back(copy, file, pairs, count)
    assert f"init-args-num-cpus={count}" in output
    assert len(actors(output)) == count, output
    assert (flower / "per_site.csv").read_text() == (whole / "per_site.csv").read_text()
    assert errors(output) == []
    [served] = set(re.findall(r"server code (\S+ \(\w+\))", output))
    assert set(re.findall(r"site code (\S+ \(\w+\))", output)) == {served}
    assert served.startswith(str(copy.app / ".flwr/apps"))
    return flower


def test_a_run_with_flower_is_the_loopback_run_bit_for_bit(copy, tmp_path):
    same_bits(copy, tmp_path, min(CORES, 2))


@pytest.mark.slow
@pytest.mark.skipif(CORES == 1, reason="the fast test has one actor here")
def test_the_number_of_actors_does_not_matter(copy, tmp_path):
    same_bits(copy, tmp_path, 1)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, pytest.param(2, marks=TWO_CORES)])
def test_the_recommended_method_is_the_loopback_run_bit_for_bit(copy, tmp_path, count):
    """With pseudo-labels, weak views, steps that are counted, the closed form and its weights."""
    flower = same_bits(
        copy, tmp_path, count, method__preset="recommended", method__confidence=0.3,
        training__augment="weak", training__local_steps=5,
    )  # fmt: skip
    assert any(row["pseudo_label_error"] is not None for row in rows(flower))
    assert all(row["mean_test_accuracy_alone"] is not None for row in rows(flower))


@pytest.mark.slow
def test_fewer_nodes_than_sites_train_all_of_them(copy, tmp_path):
    out = f"runtime.out={tmp_path / 'runs'}"
    wanted = ["split.num_clients=6", "model.width=4", "training.warmup_epochs=1"]
    short = ["rounds.num_rounds=2", "training.local_epochs=1", "rounds.join_wait_s=1.0"]
    four = "client-resources-num-cpus=1 init-args-num-cpus=1 num-supernodes=4"
    patch = f"flower_local._federation = lambda *_: '{four}'"
    arguments = ["digits_demo", *wanted, *short, out, "runtime.run_name=four"]
    code, output = simulate(copy, arguments, patch=patch)
    assert code == 0, output
    assert "digits_demo: 6 sites, 2 rounds" in output
    assert [row["skipped"] for row in rows(tmp_path / "runs/four")] == [{}, {}, {}]


def configured(run_config):
    """Return the statement that has `flwr run` get this in the place of what was checked before."""
    return (
        "from dataclasses import replace; planned = flower_local.planned; flower_local.planned = "
        "lambda *given: (lambda plan, probe: "
        f"(replace(plan, run_config={run_config!r}), probe))(*planned(*given))"
    )


@pytest.mark.slow
def test_a_wrong_value_in_plain_flwr_run_is_one_line_and_a_failed_run(copy):
    wrong = configured("preset='digits_demo' method.confidence=9.0")
    code, output = simulate(copy, ["digits_demo"], patch=wrong)
    assert code == 1, output
    assert "Traceback" not in output
    reason = "method.confidence = 9.0: must be less than or equal to 1"
    said = [line for line in errors(output) if reason in line]
    # Flower's log has it once; then flower_local says how the run ended.
    assert len(said) == 2, output
    assert said[1].startswith("error: the run ended as finished:failed: ")


@pytest.mark.slow
def test_an_unknown_key_is_refused_by_flower_itself(copy):
    """In Flower's own words, which do not name the key: docs/RUNNING.md says so."""
    wrong = configured("preset='digits_demo' rounds.num_round=3")
    code, output = simulate(copy, ["digits_demo"], patch=wrong)
    assert code == 1, output
    assert "[code: 15] Invalid run configuration" in output
    assert "Traceback" not in output


@pytest.mark.slow
def test_absent_data_end_the_run_with_one_reason_and_no_flood(copy, tmp_path):
    arguments = ["fashion_mnist_small", "data.download=false", f"data.root={tmp_path / 'data'}"]
    code, output = simulate(copy, [*arguments, f"runtime.out={tmp_path / 'runs'}"])
    assert code == 1, output
    assert "Traceback" not in output
    assert output.count("cannot take part: ") == 1
    assert re.search(r"none of \d+ nodes can take part: ", errors(output)[-1])
    assert "[a path at the site]" in errors(output)[-1]
    assert str(tmp_path / "data") in output  # the sites' own words


@pytest.mark.slow
def test_one_round_is_the_loopback_run_bit_for_bit(copy, tmp_path):
    """With filters that are learned by sums: sixteen phases in round 0."""
    flower = same_bits(copy, tmp_path, 1, method__preset="one_round", method__features="both")
    assert rows(flower)[0]["mean_test_accuracy_common"] is not None


@pytest.mark.slow
def test_masked_sums_are_the_loopback_runs_bit_for_bit(copy, tmp_path):
    """Five steps a sum, by Ray's actors; the keys follow from the seed."""
    flower = same_bits(
        copy, tmp_path, min(CORES, 2), method__preset="recommended", privacy__sums="masked",
        rounds__sample_rate=0.6, rounds__num_rounds=1,
    )  # fmt: skip
    assert {row["trained"] > 0 for row in rows(flower)} == {True}


@pytest.mark.slow
@pytest.mark.parametrize("victims", [1, CORES])
def test_killed_actors_end_the_run_with_a_reason_and_it_can_go_on(copy, tmp_path, victims):
    rounds = 40
    experiment = small(runtime__out=str(tmp_path / "runs"), rounds__num_rounds=rounds)
    arguments = [preset(experiment, tmp_path), "runtime.run_name=killed"]
    killed = []

    def kill(line, pid):
        if line.startswith("round") and not killed:
            tree = sorted(processes.descendants({pid}))
            ours = [p for p in tree if processes.read_proc(p, "cmdline").startswith(b"ray::Client")]
            killed.extend(ours[:victims])
            for victim in killed:
                os.kill(victim, signal.SIGKILL)

    code, output = simulate(copy, arguments, watch=kill)
    assert len(killed) == victims
    assert code == 1, output
    answered = r"round \d+: \d of \d sites? answered \(\w+\), rounds.min_reply_share = 0.5"
    assert re.search(answered, output)
    assert "runtime.resume=true" in errors(output)[-1]
    assert "Flower error 0: " in errors(output)[-1]
    code, output = simulate(copy, [*arguments, "runtime.resume=true"])
    assert code == 0, output
    assert [row["round"] for row in rows(tmp_path / "runs/killed")] == list(range(rounds + 1))
