"""Commands as a person types them: what they print, and what they refuse in one line."""

import csv
import io
from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from fedapp.cli import app
from fedapp.core.errors import FedAppError


def invoked(*words: Any) -> Result:
    """Run `fedapp` with these words."""
    return CliRunner().invoke(app, [*map(str, words)])


def refused(*words: Any) -> str:
    """Run `fedapp` with these words; return the one line with which it refuses them."""
    result = invoked(*words)
    assert isinstance(result.exception, FedAppError), result.output
    assert "\n" not in str(result.exception)
    return str(result.exception)


def rows(text: str) -> list[dict[str, str]]:
    """Read a CSV file."""
    return list(csv.DictReader(io.StringIO(text)))
