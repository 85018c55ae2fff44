"""Flower's SuperLink, with a database that large models do not lock.

    python -m fedapp.tools.deploy.superlink OPTIONS...       OPTIONS: those of flower-superlink

Flower 1.41 gives whoever waits for the database 5 s, then answers 500, which ends runs, SuperExecs
and SuperNodes. Removing a delivered model of 250 MB can take as long, since Debian's SQLite first
writes zeros over it. Here it does not, and who must wait may wait a minute.
"""

from flwr.supercore import sql_mixin
from flwr.supercore.constant import SQLITE_PRAGMAS
from flwr.superlink.cli import flower_superlink

PRAGMAS = (("busy_timeout", "60000"), ("secure_delete", "FAST"))


def main() -> None:
    """Run the SuperLink."""
    vars(sql_mixin).update(SQLITE_PRAGMAS=(*SQLITE_PRAGMAS, *PRAGMAS))
    flower_superlink()


if __name__ == "__main__":
    main()
