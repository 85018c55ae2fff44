"""`fedapp track`: copies the rounds of a run, or of a comparison's runs, to TensorBoard or MLflow.

The run's own files stay the source, from which a tracker's store can be made again at any time. A
second call only adds what is new.
"""

import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from fedapp.core.disk import write_error
from fedapp.core.errors import RunError, StoreError, one_line
from fedapp.core.optional_dependencies import needs
from fedapp.experiment.preset_files import read_yaml
from fedapp.experiment.run_folder import Row, RunFolder, damaged_file, find_run, runs_root

To = Literal["tensorboard", "mlflow"]

URI = "MLFLOW_TRACKING_URI"
SUFFIX = ".fedapp"
"""Suffix of the event files that this command wrote, and may replace."""
IDENTITY = "fedapp.run"
"""Tag of MLflow by which a run is found again. Its value is the run's name and start time."""
_GROWS = "rounds.num_rounds"
"""Extending a run changes this setting. So it becomes a tag, since MLflow's params never change."""
_PARAMS_AT_ONCE = 100
"""How many params MLflow accepts in one call."""


def track(run: str, to: To, out: Path | None) -> None:
    """Copy the rounds that are done to a tracker.

    run: name or folder of a run or a comparison; empty: the newest run. out: folder of the event
    files or of MLflow's store; None: `tensorboard` in the run's folder, or for MLflow what `URI`
    names, or else `mlruns` beside the user's runs. Raises ConfigError if the tracker is not
    installed, RunError if the folder holds no run that has begun, StoreError if the store refuses.
    """
    # MLflow reads these when it is imported. Otherwise it reports its use to its makers, refuses
    # plain files as a store, and tries to reach an absent server for minutes.
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    needs("track", to)
    folder = find_run(run)
    if to == "tensorboard":
        where = str(out.expanduser() if out else folder / "tensorboard")
        see = f"to see them: tensorboard --logdir {where}"
    else:
        own = (out.expanduser() if out else runs_root() / "mlruns").absolute().as_uri()
        where = own if out else os.environ.get(URI) or own
        see = f"to see them: MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {where}"
    found = runs_of(folder)
    for one, group, name in found:
        if to == "tensorboard":
            _to_tensorboard(one, Path(where) / name)
        else:
            _to_mlflow(one, group, name, where)
    print(f"{len(found)} runs; {see}")


def runs_of(folder: Path) -> list[tuple[Path, str, str]]:
    """Return folder, group and name of a run, or of each run of a comparison that has begun.

    Raises RunError if the folder holds neither.
    """
    if (folder / "run.json").is_file():
        return [(folder, str(read_yaml(folder / "config.yaml")["name"]), folder.name)]
    inside = folder / "cells"
    cells = sorted(path.parent for path in inside.glob("*/*/*/run.json"))
    if not cells:
        remedy = "name the folder of a run or of a comparison"
        raise RunError(f"{folder}: holds no run that has begun: {remedy}")
    return [(cell, folder.name, cell.relative_to(inside).as_posix()) for cell in cells]


def numbers(row: Row) -> Mapping[str, float]:
    """Return the numbers of a round by name; `skipped` becomes the number of skipped sites."""
    values = {
        key: float(value)
        for key, value in row.items()
        if key not in {"round", "wall_seconds"} and isinstance(value, int | float)
    }
    return {**values, "skipped": float(len(row.get("skipped") or {}))}


def _settings(run: Path) -> dict[str, Any]:
    plain = read_yaml(run / "config.yaml")
    groups = {name: values for name, values in plain.items() if isinstance(values, dict)}
    inside = {f"{name}.{key}": value for name, of in groups.items() for key, value in of.items()}
    return {"seed": plain["seed"], **inside}


def _started(run: Path) -> float:
    """Return the start of a run in seconds since 1970. Raises RunError if run.json is damaged."""
    try:
        facts = RunFolder(run).read_json("run.json") or {}
        return datetime.fromisoformat(str(facts["started"])).timestamp()
    except (KeyError, ValueError) as error:
        raise RunError(damaged_file(run / "run.json", f"no start: {error}")) from error


def _to_tensorboard(run: Path, folder: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    started = _started(run)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"events.out.tfevents.*{SUFFIX}"):
            old.unlink()
        writer = SummaryWriter(str(folder), filename_suffix=SUFFIX)
    except OSError as error:
        raise write_error(folder, error) from error
    with writer:
        lines = [f"| {key} | {value} |" for key, value in _settings(run).items()]
        table = "\n".join(["| setting | value |", "|---|---|", *lines])
        writer.add_text("settings", table, walltime=started)
        for row in RunFolder(run).metrics():
            at = started + float(row.get("wall_seconds") or 0.0)
            for key, value in numbers(row).items():
                writer.add_scalar(key, value, row["round"], walltime=at)


def _to_mlflow(run: Path, group: str, name: str, where: str) -> None:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param
    from mlflow.exceptions import MlflowException

    started, settings = _started(run), _settings(run)
    identity = f"{name} {started:.0f}"
    try:
        client = MlflowClient(where)
        known = client.get_experiment_by_name(group)
        experiment = known.experiment_id if known else client.create_experiment(group)
        found = client.search_runs([experiment], f"tags.`{IDENTITY}` = '{identity}'")
        begun = found or [
            client.create_run(experiment, round(started * 1000), {IDENTITY: identity}, name)
        ]
        number = begun[0].info.run_id
        params = [Param(k, str(v)) for k, v in settings.items() if k != _GROWS and not found]
        for first in range(0, len(params), _PARAMS_AT_ONCE):
            client.log_batch(number, params=params[first : first + _PARAMS_AT_ONCE])
        done = {one.step for one in client.get_metric_history(number, "skipped")}
        for row in RunFolder(run).metrics():
            if row["round"] not in done:
                at = round((started + float(row.get("wall_seconds") or 0.0)) * 1000)
                values = numbers(row).items()
                client.log_batch(number, [Metric(k, v, at, row["round"]) for k, v in values])
        client.set_tag(number, _GROWS, settings.get(_GROWS))
        if (run / "summary.json").is_file():
            client.set_terminated(number)
    except (MlflowException, OSError) as error:
        remedy = f"see to it, or name another with {URI} or --out"
        said = f"MLflow at {where} refused ({one_line(error, 300)}): {remedy}"
        raise StoreError(said) from error
