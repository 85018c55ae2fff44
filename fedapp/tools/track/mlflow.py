"""A run in MLflow: in the store that is named, and nowhere else."""

import os

from fedapp.ground.errors import StoreError, one_line
from fedapp.ground.extras import needs
from fedapp.tools.track.series import Round, Tracked

IDENTITY = "fedapp.run"
"""Tag by which a run is found again: its name and when it began."""
_GROWS = "rounds.num_rounds"
"""The setting that changes when a run goes on to more rounds; a param of MLflow cannot."""
_BATCH = 100
"""Params that MLflow takes at once."""


class MlflowRun:
    """Brings a run's rounds to MLflow; what is there already is left as it is.

    store: its URI. Raises ConfigError where MLflow is not installed, StoreError where the store
    refuses.
    """

    def __init__(self, run: Tracked, store: str) -> None:
        # Read when MLflow is imported: it tells its makers of its use, wants a database where
        # files do, and tries an absent server for minutes, unless it is told otherwise.
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        needs("track", "mlflow")
        from mlflow.exceptions import MlflowException

        self._refusals = (MlflowException, OSError)
        self._where, self._run = store, run
        try:
            self._open()
        except self._refusals as error:
            raise self._refused(error) from error

    def _open(self) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        run = self._run
        self._client = MlflowClient(self._where)
        experiment = self._client.get_experiment_by_name(run.group)
        number = experiment.experiment_id if experiment else None
        number = number or self._client.create_experiment(run.group)
        identity = f"{run.name} {run.started:.0f}"
        found = self._client.search_runs([number], f"tags.`{IDENTITY}` = '{identity}'")
        if found:
            self._id = found[0].info.run_id
            steps = self._client.get_metric_history(self._id, "skipped")
            self._done = {metric.step for metric in steps}
            return
        begun = self._client.create_run(
            number, round(run.started * 1000), {IDENTITY: identity}, run.name
        )
        self._id, self._done = begun.info.run_id, set[int]()
        params = [Param(key, str(v)) for key, v in run.settings.items() if key != _GROWS]
        for first in range(0, len(params), _BATCH):
            self._client.log_batch(self._id, params=params[first : first + _BATCH])

    def add(self, one: Round) -> None:
        """Add a round that is not there yet, at the time at which it was done."""
        from mlflow.entities import Metric

        if one.number in self._done:
            return
        at = round((self._run.started + one.seconds) * 1000)
        metrics = [Metric(key, value, at, one.number) for key, value in one.values.items()]
        try:
            self._client.log_batch(self._id, metrics)
        except self._refusals as error:
            raise self._refused(error) from error
        self._done.add(one.number)

    def close(self, over: bool) -> None:
        """Note whether the run is over, and how many rounds it is to have."""
        try:
            self._client.set_tag(self._id, _GROWS, self._run.settings.get(_GROWS))
            if over:
                self._client.set_terminated(self._id)
        except self._refusals as error:
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> StoreError:
        remedy = "see to it, or name another with MLFLOW_TRACKING_URI or --out"
        return StoreError(f"MLflow at {self._where} refused ({one_line(error, 300)}): {remedy}")
