"""Runs and comparisons from a program: arguments, what comes back, and going on."""

import pytest
import torch
from pydantic.dataclasses import dataclass
from sklearn.datasets import load_digits
from torch import nn

import fedapp
from fedapp.core.settings import CLOSED
from fedapp.experiment.config import load_experiment
from fedapp.methods.averaging.local_only import LocalOnly

ROWS, LABELS = load_digits(return_X_y=True)
SHORT = {"rounds.num_rounds": 1, "training.local_steps": 3}


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAPP_OUT", str(tmp_path))


@pytest.fixture(scope="module")
def data():
    return fedapp.Federation.dealt((ROWS[:400], LABELS[:400]), sites=3)


def in_row(inputs: tuple[int, ...], num_classes: int, units: int = 5) -> nn.Sequential:
    hidden = nn.Linear(inputs[0], units)
    return nn.Sequential(hidden, nn.ReLU(), nn.Dropout(0.1), nn.Linear(units, num_classes))


@dataclass(frozen=True, config=CLOSED)
class Mine(LocalOnly):
    """A method of one's own: training alone, by another name."""

    name = "mine"


def test_a_run_is_the_command_lines_run(capsys):
    """A preset's run has the settings, so the numbers, that `fedapp run` gives it."""
    settings = {**SHORT, "data.subset": 300, "split.num_clients": 3, "model.width": 4}
    run = fedapp.run("digits_demo", "fedavg", seed=3, settings=settings, quiet=True)
    assert capsys.readouterr().out == ""
    overrides = {**settings, "method.preset": "fedavg", "seed": 3}
    expected = load_experiment("digits_demo", overrides)
    assert load_experiment(str(run.folder / "config.yaml")) == expected
    assert (
        run.accuracy
        == run.summary["mean_test_accuracy"]["final"]
        == run.rounds[-1]["mean_test_accuracy"]
    )
    assert [row["site"] for row in run.per_site] == [0, 1, 2]


def test_a_run_on_data_in_memory_goes_on_with_the_same_data_alone(data):
    name = {"runtime.run_name": "first"}
    short = fedapp.run(data, "fedavg", settings={**SHORT, **name}, quiet=True)
    longer = {**SHORT, "rounds.num_rounds": 2}
    again = fedapp.Federation.dealt((ROWS[:400].copy(), LABELS[:400]), sites=3)
    resumed = fedapp.run(
        again, "fedavg", settings={**longer, **name, "runtime.resume": True}, quiet=True
    )
    assert resumed.folder == short.folder
    whole = fedapp.run(data, "fedavg", settings=longer, quiet=True)
    assert [r["mean_test_accuracy"] for r in resumed.rounds] == [
        r["mean_test_accuracy"] for r in whole.rounds
    ]
    other = fedapp.Federation.dealt((ROWS[:400] + 1, LABELS[:400]), sites=3)
    with pytest.raises(fedapp.FedAppError, match=r"a run with other settings \(data.name"):
        fedapp.run(other, "fedavg", settings={**longer, **name, "runtime.resume": True}, quiet=True)
    text = (whole.folder / "config.yaml").read_text()
    assert f"name: {data.settings['data.name']}" in text


def test_sites_of_ones_own_train_an_own_network_and_each_gets_its_model():
    def nested(inputs: tuple[int, ...], num_classes: int) -> nn.Sequential:
        return in_row(inputs, num_classes, 7)

    parts = [(torch.tensor(ROWS[k::4]), LABELS[k::4]) for k in range(4)]
    sites = [
        fedapp.Site(labelled=parts[0], val=parts[2], test=parts[3], name="north"),
        fedapp.Site(unlabelled=parts[1][0], test=parts[3], name="south"),
    ]
    run = fedapp.run(fedapp.Federation(sites), network=nested, settings=SHORT, quiet=True)
    assert [row["name"] for row in run.per_site] == ["north", "south"]
    model = run.model("south")
    rows = parts[3][0]
    right = [
        said == str(label) for said, label in zip(model.predict(rows), parts[3][1], strict=True)
    ]
    assert sum(right) / len(right) == run.per_site[1]["final_accuracy"]
    assert torch.equal(
        fedapp.load_model(model.folder).probabilities(rows), model.probabilities(rows)
    )
    with pytest.raises(fedapp.FedAppError, match=r"takes float32 \[n, 64\]"):
        model.predict(rows[:, :3])
    with pytest.raises(fedapp.FedAppError, match="no site 'suoth': did you mean 'south'"):
        run.model("suoth")


def test_a_comparison_has_a_row_for_each_method_and_keeps_what_was_run(data, tmp_path, capsys):
    methods = ["local_only", Mine, "fedavg"]
    asked = {"seeds": [0, 1], "network": in_row, "settings": SHORT, "out": tmp_path / "c"}
    found = fedapp.compare(data, methods, **asked, quiet=True)
    alone, mine, _ = found.rows
    assert [row["method"] for row in found.rows] == ["local_only", "mine", "fedavg"]
    assert {**alone, "method": "mine"} == mine
    best = max(row["accuracy"] for row in found.rows)
    for row in found.rows:
        assert row["seeds"] == 2 and row["difference"] == pytest.approx(row["accuracy"] - best)
    assert capsys.readouterr().out == "" and "Test accuracy" in str(found)
    assert not list((tmp_path / "c").rglob("pool"))
    assert fedapp.compare(data, methods, **asked).rows == found.rows
    said = capsys.readouterr().out
    assert "6 of 6 cells were run before" in said and "selected by validation" not in said
    frame, runs, sites = (found.frame(of) for of in ("methods", "runs", "sites"))
    assert frame["accuracy"].tolist() == [row["accuracy"] for row in found.rows]
    assert len(runs) == 3 * 2 and len(sites) == 3 * 2 * 3
    means = runs.groupby("method")["selected_test_accuracy"].mean()
    assert means[frame["method"]].tolist() == pytest.approx(frame["accuracy"].tolist())
    with pytest.raises(fedapp.FedAppError, match="frame: 'cells': must be methods, runs or sites"):
        found.frame("cells")


@pytest.mark.slow
def test_a_preset_is_compared_in_processes(tmp_path):
    small = {**SHORT, "data.subset": 300, "split.num_clients": 3, "model.width": 4}
    methods = ["local_only", "fedavg"]
    found = fedapp.compare("digits_demo", methods, seeds=[1], settings=small, out=tmp_path / "c")
    run = fedapp.run("digits_demo", "fedavg", seed=1, settings=small, quiet=True)
    selected = run.summary["mean_test_accuracy"]["best_by_validation"]
    assert found.rows[1]["accuracy"] == selected and found.rows[1]["sd"] is None


@pytest.mark.parametrize(("wrong", "says"), [
    (lambda data: fedapp.run([1, 2]), "data: list, must be a fedapp.Federation or a preset"),
    (lambda data: fedapp.run("digit_demo"), "did you mean 'digits_demo'"),
    (lambda data: fedapp.run(data, "fedavgg"), "did you mean 'fedavg'"),
    (lambda data: fedapp.run(data, int), "must be a class made from"),
    (lambda data: fedapp.run(data, network=lambda i, n: None), "write it with `def`"),
    (lambda data: fedapp.run(data, network="resnet9", settings=SHORT), "use model.name=mlp"),
    (lambda data: fedapp.run(data, settings={"split.num_clients": 2}), "by another argument"),
    (lambda data: fedapp.run(data, seed=1, settings={"seed": 2}), "by another argument"),
    (lambda data: fedapp.run(data, settings={"rounds.rounds": 2}), "rounds.num_rounds"),
    (lambda data: fedapp.run(
        fedapp.Federation([fedapp.Site((ROWS, LABELS))]), settings={"split.val_share": 0.2}
    ), "the sites bring their own data"),
    (lambda data: fedapp.compare(data, "fedavg"), "must be a list"),
    (lambda data: fedapp.compare(data, []), "must be a list"),
    (lambda data: fedapp.compare(data, ["fedavgg"]), "did you mean 'fedavg'"),
    (lambda data: fedapp.compare(data, ["fedavg"], seeds=[-1]), "seeds"),
    (lambda data: fedapp.open_run("none"), "no such run"),
    (lambda data: fedapp.load_model("none"), "no model"),
])  # fmt: skip
def test_what_is_wrong_is_said_in_a_line(data, wrong, says):
    with pytest.raises(fedapp.FedAppError, match=says) as error:
        wrong(data)
    assert len(str(error.value).splitlines()) == 1


def test_only_what_is_listed_is_there():
    assert dir(fedapp) == sorted(fedapp.__all__) and len(fedapp.__all__) == 13
    for name in fedapp.__all__:
        assert getattr(fedapp, name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fedapp.nothing
