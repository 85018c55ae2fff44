"""All that a run must remember between rounds; the checkpoint is this, as JSON."""

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
"""Sites that are named as those who moved an average most."""


@dataclass(frozen=True)
class ChangeLengths:
    """How far members of the server's averages moved, of one part of a role.

    largest: the largest median length of a change so far. furthest: the sites that moved most in
    the newest average, at most `MAX_NAMED_SITES`, each with how many times as far as usual
    (`changes.times`).
    """

    largest: float = 0.0
    furthest: tuple[tuple[int, float], ...] = ()


Tables = Mapping[str, Mapping[Any, Any]]
"""Tables by name, each with its rows by site."""

_OWN_TABLES = ("held", "private", "averaging")
_SITES, _SERVER = "standings.sites", "server."


@dataclass
class RunState:
    """round: the last one, or the one under way. server: what the method remembers.

    held: digests that each site holds.

    private: digest of what each site keeps to itself.
    averaging: what the averaging rule remembers of each site, such as how far its changes agreed
    with the others'; tensors that it remembers are in the pool.
    moves: by role and part. together: how all sites stand as one, where sums are masked.
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
        """Return what has a row for each site, by name; mappings that a method remembers too."""
        remembered = {
            f"{_SERVER}{f.name}": getattr(self.server, f.name) for f in fields(self.server)
        }
        return {
            _SITES: self.standings.sites,
            **{name: getattr(self, name) for name in _OWN_TABLES},
            **{name: table for name, table in remembered.items() if isinstance(table, Mapping)},
        }

    def of_rows(self, rows: Tables) -> Self:
        """Return the state with these rows in place of all, by the names of `tables`."""
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
    """Return the state that a checkpoint of this method holds. Raises RunError if damaged."""
    try:
        plain = checkpoint["state"]
        if plain.get("peers"):
            began = f"the run began with another run's models (runtime.peers, which {TAKEN_OUT})"
            raise RunError(f"checkpoint.json: {began}: go on with version 1.0.0")
        own = TypeAdapter(method.state).validate_json(json.dumps(plain["server"]))
        rest = json.dumps({**plain, "server": {}})
        state = replace(TypeAdapter(RunState).validate_json(rest), server=own)
    except (KeyError, ValidationError) as error:
        raise RunError(
            f"checkpoint.json does not hold a state of this version ({error!r:.200}); "
            "resume with the version that wrote it, or start anew"
        ) from error
    return state
