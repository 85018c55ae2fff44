"""`fedapp report`: writes the page of one or several runs, of a site, or of a comparison."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np

from fedapp.core.disk import write_atomic
from fedapp.core.errors import ConfigError, RunError
from fedapp.evaluation.reliability_warnings import cautions
from fedapp.experiment.run_folder import find_run
from fedapp.protocol.messages import Evaluation
from fedapp.reports.helper_graph import helper_graph
from fedapp.reports.layout import Block, blocks_page
from fedapp.reports.run_accuracy import before_and_after, joining_of, learning_curves, who_gained
from fedapp.reports.run_classes import (
    calibration,
    class_counts,
    class_mix,
    classes_found,
    confusion_block,
    pseudo_labels,
)
from fedapp.reports.run_record import RunRecord, is_run, read_run
from fedapp.reports.run_summary import (
    protocol_table,
    result_sentence,
    settings_and_versions,
    side_by_side,
    time_spent,
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
    """Write the page of one or several runs, or the tables and figures of one comparison.

    Args:
        named: names or folders of runs, or of one comparison.
        reference: the method that a comparison's other methods are compared with; empty: as
            `comparison.document.REFERENCES` says.
        site: name or number of a site of the one run: its page is written instead of the run's.
        out: file or folder of the page. None: the folder of the run, and the working directory for
            a page of several runs or of a record without its run.
        record: a site's own folder, whose record is shown on the site's page too. A site that does
            not have the run's folder gets a page of its record alone.

    Returns:
        The files that were written.

    Raises:
        RunError: a folder holds neither a run nor a comparison.
        ConfigError: the arguments do not go together.
    """
    if record is not None:
        if len(named) != 1 or not site:
            raise ConfigError("--site-folder is of one run and one site: give --site, and one run")
        text, place = _page_with_record(named[0], site, record)
        return _write(text, f"site-{site}.html", out or place)
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
    return _write(text, name, out or (folders[0] if len(folders) == 1 else Path()))


def _page_with_record(named: str, site: str, record: Path) -> tuple[str, Path]:
    """Return a site's page with its record, and the folder to write it to."""
    try:
        folder = find_run(named)
    except RunError:
        folder = Path(named)
    if not is_run(folder):
        return site_page(view_of_record(record, named)), Path()
    of_run = view_of_run(read_run(folder), site)
    return site_page(of_run, view_of_record(record, folder.name)), folder


def _write(text: str, name: str, place: Path) -> list[Path]:
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
        for text in (*joining_of(run), result_sentence(run), *run.counting_notes)
    ]
    return blocks_page(title, lead, subjects, first, [] if several else _care(runs[0]))


def _care(run: RunRecord) -> list[str]:
    """Return what to know before the models are used, of all sites' images together."""
    seen = np.sum([class_counts(site, len(run.classes)) for site in run.sites], axis=0).tolist()
    every = run.evaluations()
    sums = (np.sum([getattr(one, of.name) for one in every], axis=0) for of in fields(Evaluation))
    found = Evaluation(*(of.tolist() for of in sums)) if every else None
    return cautions(found, run.classes, seen=seen, pooled=True)


def blocks_of(run: RunRecord) -> list[Block]:
    """Return all blocks of a run's page: always as many, in the same order."""
    tested = run.evaluations()
    return [
        who_gained(run),
        warnings(run),
        learning_curves(run),
        before_and_after(run),
        classes_found(run),
        class_mix(run),
        confusion_block(tested, run.classes),
        calibration(tested),
        pseudo_labels(run),
        helper_graph(run),
        traffic(run),
        time_spent(run),
        Block("How the numbers were made", "", tables=[protocol_table(run)]),
        settings_and_versions(run),
    ]
