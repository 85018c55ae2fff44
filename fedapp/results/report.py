"""`fedapp report`: a page for one run or several, a page for a site, or a comparison's tables."""

from collections.abc import Sequence
from pathlib import Path

from fedapp.experiment.runpaths import find_run
from fedapp.ground.disk import write_atomic
from fedapp.ground.errors import ConfigError, RunError
from fedapp.results.run.page import run_page
from fedapp.results.run.record import is_run, read_run
from fedapp.results.run.sitepage import find_site, site_page

REPORT = "report.html"


def write_reports(
    named: Sequence[str], reference: str = "", site: str = "", out: Path | None = None
) -> list[Path]:
    """Write what there is to write of runs, by name or folder, or of one comparison.

    reference: a comparison's method that the others are compared with. site: of a run, whose page
    is wanted alone. out: file or, of a site's page too, folder; None: the run's folder. Of several
    runs it is the working directory. Returns the files. Raises RunError where a folder holds
    neither, ConfigError where the arguments do not go together.
    """
    folders = [find_run(name) for name in named]
    compared = [path for path in folders if (path / "comparison.json").is_file()]
    if compared:
        if len(folders) > 1 or site or out:
            raise ConfigError(
                f"{compared[0]}: a comparison is reported by itself, in its folder: leave out "
                "--site, --out and other runs"
            )
        # Plots take seconds to import, which a run's page does not need.
        from fedapp.results.comparison.document import write_report

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
        text = site_page(runs[0], site)
    else:
        name, text = REPORT, run_page(runs)
    place = out or (folders[0] if len(folders) == 1 else Path())
    path = place / name if place.is_dir() else place
    write_atomic(path, text.encode(), durable=False)
    return [path]
