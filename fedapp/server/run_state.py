"""The state of a run between rounds. The checkpoint is this state as JSON."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from fedapp.core.errors import RunError
from fedapp.core.withdrawn import TAKEN_OUT
from fedapp.methods.base import Method, MethodState
from fedapp.server.standings import Standings

MAX_NAMED_SITES = 3
"""So many sites are named as those whose uploads differed most from the average."""


@dataclass(frozen=True)
class ChangeLengths:
    """How far uploads lay from the server's model that they were averaged into.

    There is one value for each part of a role: the trained weights, and the statistics. largest:
    the largest median distance in a round so far. furthest: the sites that lay furthest in the
    newest average, at most `MAX_NAMED_SITES`, each with its multiple of the usual distance
    (`aggregation.changes.length_ratios`).
    """

    largest: float = 0.0
    furthest: tuple[tuple[int, float], ...] = ()


Tables = Mapping[str, Mapping[Any, Any]]
"""Tables by name; each table has its rows by site."""

_OWN_TABLES = ("held", "private", "averaging")
_SITES, _SERVER = "standings.sites", "server."


@dataclass
class RunState:
    """The state of a run. Its fields are keys of checkpoint.json.

    round: the last completed round, or the one that is going on. server: what the method remembers.
    standings: the records of all sites. held: the digests that each site has in its store. private:
    digest of what each site keeps to itself. wall_seconds: duration of the run so far. averaging:
    what the averaging rule remembers of each site, such as how far its changes agreed with those of
    others; tensors that the rule remembers are in the pool. moves: by role and part. together: the
    record of all sites as one, where sums are masked.
    """

    round: int
    server: MethodState
    standings: Standings
    held: dict[int, list[str]]
    private: dict[int, str] = field(default_factory=dict)
    wall_seconds: float = 0.0
    averaging: dict[int, float] = field(default_factory=dict)
    moves: dict[str, ChangeLengths] = field(default_factory=dict)
    together: Standings | None = None

    def tables(self) -> Tables:
        """Return all mappings with a row for each site, by name; those of the method too."""
        remembered = {
            f"{_SERVER}{f.name}": getattr(self.server, f.name) for f in fields(self.server)
        }
        return {
            _SITES: self.standings.sites,
            **{name: getattr(self, name) for name in _OWN_TABLES},
            **{name: table for name, table in remembered.items() if isinstance(table, Mapping)},
        }

    def of_rows(self, rows: Tables) -> Self:
        """Return the state with only these rows in its tables. rows: named as in `tables`."""
        server = {
            name.removeprefix(_SERVER): rows[name] for name in rows if name.startswith(_SERVER)
        }
        own: dict[str, Any] = {
            "standings": replace(self.standings, sites=dict(rows[_SITES])),
            "server": replace(self.server, **server),
            **{name: rows[name] for name in _OWN_TABLES},
        }
        return replace(self, **own)


def state_of(checkpoint: Mapping[str, Any], method: Method[Any]) -> RunState:
    """Return the state in a checkpoint of a run with this method. Raises RunError if damaged."""
    try:
        plain = checkpoint["state"]
        if plain.get("peers"):
            began = f"the run began with another run's models (runtime.peers, which {TAKEN_OUT})"
            raise RunError(f"checkpoint.json: {began}: continue with version 1.0.0")
        own = TypeAdapter(method.state).validate_json(json.dumps(plain["server"]))
        rest = json.dumps({**plain, "server": {}})
        state = replace(TypeAdapter(RunState).validate_json(rest), server=own)
    except (KeyError, ValidationError) as error:
        raise RunError(
            f"checkpoint.json does not hold a state of this version ({error!r:.200}); "
            "resume with the version that wrote it, or start again"
        ) from error
    return state
