"""What all tests share: one CPU thread, no timed properties, nothing read or written at home."""

import signal
from datetime import date
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from fedapp.core.process_tuning import tune_own_process

LONG = frozenset(Path(__file__).with_name("long.txt").read_text().split())
"""Tests that `make test` leaves out: `tests/going_on.py` says which."""

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_configure() -> None:
    # A shell that starts the tests in the background has them ignore Ctrl-C; some send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Results of CPU convolutions depend on the number of threads; two workers share the machine.
    torch.set_num_threads(1)
    tune_own_process()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", type=int, metavar="N", help="of N parts of the files, today's")


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.nodeid.partition("[")[0] in LONG:
        item.add_marker(pytest.mark.long)


@pytest.hookimpl(trylast=True)  # the marks have chosen before
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if parts := config.getoption("part"):
        files = sorted({item.path for item in items})
        chosen = set(files[date.today().toordinal() % parts :: parts])
        config.hook.pytest_deselected(items=[item for item in items if item.path not in chosen])
        items[:] = [item for item in items if item.path in chosen]
    for item in items:
        if "cuda" in item.keywords and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


@pytest.fixture(autouse=True)
def away_from_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Point the project's folders at an empty one, whatever the developer has set."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("FEDAPP_DATA", str(home / "data"))
    monkeypatch.setenv("FEDAPP_OUT", str(home / "runs"))
    monkeypatch.setenv("FEDAPP_HEADS", str(home / "heads"))
    return home
