"""The SuperLink's database is patient and writes no zeros."""

import pytest
from flwr.supercore import sql_mixin
from flwr.supercore.object_store.sql_object_store import SqlObjectStore
from sqlalchemy import text

from fedapp.tools.deploy import superlink


def asked(path):
    """Open a database as the SuperLink does; return how long it waits and whether it wipes."""
    store = SqlObjectStore(str(path))
    store.initialize()
    with store.session() as session:
        wait, wipe = (
            session.execute(text(f"PRAGMA {name}")).scalar()
            for name in ("busy_timeout", "secure_delete")
        )
    return wait, wipe


@pytest.mark.filterwarnings("ignore::DeprecationWarning:alembic")
def test_its_connections_wait_a_minute_and_remove_without_writing_zeros(tmp_path, monkeypatch):
    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", sql_mixin.SQLITE_PRAGMAS)
    started = []
    monkeypatch.setattr(superlink, "flower_superlink", lambda: started.append(True))
    wait, _ = asked(tmp_path / "flowers.db")
    assert wait == 5000, "Flower waits otherwise now: does docs/FAULTS.md still hold?"
    superlink.main()
    assert started and asked(tmp_path / "ours.db") == (60_000, 2)
