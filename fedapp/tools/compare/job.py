"""What a cell's process is told to do, as one line of JSON."""

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

from fedapp.experiment.config import to_plain
from fedapp.experiment.presetfiles import Scalar
from fedapp.tools.compare.cells import Cell

Driver = Literal["loopback", "flower"]


@dataclass(frozen=True)
class Job:
    """A cell to finish; what is done already is left out.

    run: the cell's folder. preset, overrides, experiment: the same experiment, as Flower takes it
    and as `to_plain` gives it. digest: of the cell. parents: for Mix, run folder and experiment of
    each that it asks. latent: write the features too.
    """

    run: str
    preset: str
    overrides: dict[str, Scalar]
    experiment: dict[str, Any]
    digest: str
    parents: list[tuple[str, dict[str, Any]]]
    driver: Driver
    latent: bool

    @classmethod
    def of(cls, cell: Cell, driver: Driver, latent: bool) -> Self:
        """Return the job that finishes a cell; a begun run goes on."""
        resume = cell.state() == "begun"
        runtime = replace(cell.experiment.runtime, resume=resume)
        return cls(
            run=str(cell.folder),
            preset=cell.preset,
            overrides={**cell.overrides, "runtime.resume": resume},
            experiment=to_plain(replace(cell.experiment, runtime=runtime)),
            digest=cell.digest,
            parents=[(str(p.folder), to_plain(p.experiment)) for p in cell.parents],
            driver=driver,
            latent=latent,
        )

    def to_line(self) -> str:
        """Return the job as a line of JSON."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Self:
        """Return the job that `to_line` wrote down."""
        return cls(**json.loads(line))
