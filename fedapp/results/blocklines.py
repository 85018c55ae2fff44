"""Lines that both end blocks are made of: `endblock` in plain words, `paperblock` in the paper's.

Rows: of `per_site.csv`. What was not measured (a site without test images) is absent or None.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedapp.experiment.runpaths import runs_root
from fedapp.ground.text import duration
from fedapp.learn.metrics import FEW

Row = dict[str, Any]

FEW_SITES = 10
"""Runs of at most as many sites show each site's accuracy with its counts and its interval."""
SHOWN = 3
"""Sites shown of those that gained and that lost most."""
_NAMED = 4
"""Sites named where a list of sites could be long."""


def title(summary: Row) -> str:
    """Return the first line: what ran, and how long."""
    what = [
        str(summary["method"]),
        f"{summary['sites']} sites",
        f"{summary['rounds']} rounds",
        f"seed {summary['seed']}",
        duration(summary.get("wall_seconds")),
    ]
    return f"{summary['preset']}: {', '.join(what)}"


def untested(summary: Row, per_site: Sequence[Row]) -> list[str]:
    """Return a line that names the sites without test images, where there are any."""
    sites = summary.get("sites_without_test_images")
    if sites is None:
        sites = [row["site"] for row in per_site if row.get("test") == 0]
    return [f"No test images      sites {some([str(site) for site in sites])}"] if sites else []


def exceptions(per_site: Sequence[Row]) -> list[str]:
    """Return a line for each thing that makes the numbers of measured sites say little."""
    skipped = [row for row in per_site if row.get("rounds_skipped")]
    skipped.sort(key=lambda row: (-row["rounds_skipped"], row["site"]))
    lines = []
    if len(per_site) <= FEW_SITES:
        known = measured(per_site)
        if few := [f"{brief(row)} ({row['test']})" for row in known if row["test"] < FEW]:
            lines.append(f"Few test images     sites {some(few)}: under {FEW}, mostly chance")
        lacking = [(row, n) for row in known if (n := untested_classes(row))]
        if partial := [f"{brief(row)} ({n} of {row['classes']})" for row, n in lacking]:
            lines.append(f"Classes untested    sites {some(partial)}")
    if skipped:
        named = some([f"{row['site']} ({row['rounds_skipped']})" for row in skipped])
        lines.append(f"Skipped (rounds)    sites {named}")
    return lines


def measured(per_site: Sequence[Row]) -> list[Row]:
    """Return the rows of sites whose final accuracy and its images are known."""
    return [row for row in per_site if row.get("test") and row.get("final_accuracy") is not None]


def untested_classes(row: Row) -> int:
    """Return of how many classes a site has no test images; 0 where that is not known."""
    known: int | None = row.get("test_classes")
    return 0 if known is None else row["classes"] - known


def gain(row: Row) -> float | None:
    """Return the final accuracy less the warm-up's, or None where one is unknown."""
    start, end = row.get("warmup_accuracy"), row.get("final_accuracy")
    return None if start is None or end is None else end - start


def known(rows: Sequence[Row], key: str) -> list[float]:
    """Return the values of a column, without those that are unknown."""
    return [row[key] for row in rows if row.get(key) is not None]


def who(row: Row) -> str:
    """Return a site's name, else "site 3"."""
    return str(row.get("name") or f"site {row['site']}")


def brief(row: Row) -> str:
    """Return a site's name, else its number."""
    return str(row.get("name") or row["site"])


def some(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def run_name(run: Path) -> str:
    """Return by what a command finds this run: its name, or its folder where it is elsewhere."""
    return run.name if run.parent == runs_root() else str(run)
