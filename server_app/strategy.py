"""The Flower strategy: it runs the project's own rounds over Flower's grid.

Flower's rounds presume one global model, which most methods here do not have: a site may keep a
model of its own and choose from which sites it learns. So `start` runs the engine
(`fedapp.server.engine`), and the steps of Flower's own rounds have nothing to do.
"""

import logging
from collections.abc import Iterable
from functools import partial

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedapp.experiment.experiment import Experiment
from fedapp.experiment.run_folder import RunFolder
from fedapp.protocol.messages import Origin
from fedapp.reports.run_end import end_block
from fedapp.server.assembly import carry_out
from fedapp.server.standings import Row
from fedapp.site.server_site import servers_site
from server_app.carrier import GridCarrier

log = logging.getLogger(__name__)


class PoolStrategy(Strategy):
    """Runs one experiment over the nodes of a grid."""

    def __init__(self, experiment: Experiment, origin: Origin, folder: RunFolder) -> None:
        self._experiment, self._folder, self._origin = experiment, folder, origin
        self.outcome: Row = {}

    def start(  # type: ignore[override]  # Flower's arguments describe one global model
        self, grid: Grid
    ) -> Result:
        """Run the experiment. Its summary is then in `outcome`; Flower's own result stays empty."""
        self.summary()
        carrier_of = partial(GridCarrier, grid, self._origin)
        self.outcome = carry_out(
            self._experiment, self._folder, carrier_of, servers_site, end_block
        )
        return Result()

    def summary(self) -> None:
        """Log what will run."""
        log.info("%s: %s", self._experiment.name, self._experiment.method)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """No messages: the engine's tasks go by `GridCarrier.exchange`."""
        return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Nothing to add up: where models are averaged, the engine does it."""
        return None, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """No messages: measuring is part of a task, or a task of its own."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Nothing to add up: see `configure_evaluate`."""
        return None
