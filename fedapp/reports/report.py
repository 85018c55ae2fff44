"""`fedapp report`: a page for one run or several, a page for a site, or a comparison's tables."""

from collections.abc import Sequence
from pathlib import Path

from fedapp.core.disk import write_atomic
from fedapp.core.errors import ConfigError, RunError
from fedapp.experiment.run_folder import find_run
from fedapp.reports.helper_graph import helpers
from fedapp.reports.layout import Block, blocks_page
from fedapp.reports.run_accuracy import curves, dumbbells, harm
from fedapp.reports.run_classes import (
    class_mix,
    classes_found,
    confusion,
    joining,
    pseudo_labels,
    trust,
)
from fedapp.reports.run_record import RunRecord, is_run, read_run
from fedapp.reports.run_summary import (
    protocol,
    sentence,
    setup,
    side_by_side,
    times,
    traffic,
    warnings,
)
from fedapp.reports.site_report import find_site, site_page, view_of_record, view_of_run

REPORT = "report.html"


def write_reports(
    named: Sequence[str],
    reference: str = "",
    site: str = "",
    out: Path | None = None,
    record: Path | None = None,
) -> list[Path]:
    """Write what there is to write of runs, by name or folder, or of one comparison.

    reference: a comparison's method that the others are compared with. site: of a run, whose page
    is wanted alone. out: file or, of a site's page too, folder; None: the run's folder. Of several
    runs it is the working directory. record: a site's own folder, whose record is shown too; where
    the run's folder is not here, as at a site, the record alone, in the working directory.

    Returns the files. Raises RunError where a folder holds neither, ConfigError where the arguments
    do not go together.
    """
    if record is not None:
        if len(named) != 1 or not site:
            raise ConfigError("--site-folder is of one run and one site: give --site, and one run")
        text, place = _with_record(named[0], site, record)
        return _written(text, f"site-{site}.html", out or place)
    folders = [find_run(name) for name in named]
    compared = [path for path in folders if (path / "comparison.json").is_file()]
    if compared:
        if len(folders) > 1 or site or out:
            raise ConfigError(
                f"{compared[0]}: a comparison is reported by itself, in its folder: leave out "
                "--site, --out and other runs"
            )
        # Plots take seconds to import, which a run's page does not need.
        from fedapp.reports.comparison.document import write_report

        return write_report(compared[0], reference)
    if reference:
        raise ConfigError("--reference is of comparisons; leave it out for a run")
    if site and len(folders) > 1:
        raise ConfigError("--site is of one run: name that run alone")
    for path in folders:
        if not is_run(path):
            raise RunError(f"{path}: no run and no comparison (no run.json): name one's folder")
    runs = [read_run(path) for path in folders]
    if site:
        number = find_site(runs[0], site).standing.facts
        name = f"site-{number.name or number.site}.html"
        text = site_page(view_of_run(runs[0], site))
    else:
        name, text = REPORT, run_page(runs)
    return _written(text, name, out or (folders[0] if len(folders) == 1 else Path()))


def _with_record(named: str, site: str, record: Path) -> tuple[str, Path]:
    """Return a site's page with its record, and the folder that it belongs into."""
    try:
        folder = find_run(named)
    except RunError:
        folder = Path(named)
    if not is_run(folder):
        return site_page(view_of_record(record, named)), Path()
    of_run = view_of_run(read_run(folder), site)
    return site_page(of_run, view_of_record(record, folder.name)), folder


def _written(text: str, name: str, place: Path) -> list[Path]:
    path = place / name if place.is_dir() else place
    write_atomic(path, text.encode(), durable=False)
    return [path]


def run_page(runs: Sequence[RunRecord]) -> str:
    """Return the page of one run, or of several side by side."""
    every = [(run.name, blocks_of(run)) for run in runs]
    subjects = [[(name, of[i]) for name, of in every] for i in range(len(every[0][1]))]
    several = len(runs) > 1
    title = "Runs side by side" if several else runs[0].name
    first = [side_by_side(list(runs))] if several else []
    lead = [
        f"{run.name}: {text}" if several else text
        for run in runs
        for text in (joining(run), sentence(run), *run.counted)
    ]
    return blocks_page(title, lead, subjects, first)


def blocks_of(run: RunRecord) -> list[Block]:
    """Return all that can be said of a run, always as many blocks in the same order."""
    tested = run.evaluations()
    return [
        Block("How the numbers were made", "", tables=[protocol(run)]),
        warnings(run),
        curves(run),
        dumbbells(run),
        harm(run),
        classes_found(run),
        class_mix(run),
        helpers(run),
        pseudo_labels(run),
        confusion(tested, run.classes),
        trust(tested),
        traffic(run),
        times(run),
        setup(run),
    ]
