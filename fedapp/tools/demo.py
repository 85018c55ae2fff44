"""`fedapp demo`: runs a small federation in one process and draws which sites gained by joining."""

from pathlib import Path

from fedapp.core.disk import write_atomic, write_error
from fedapp.core.errors import RunError
from fedapp.experiment.config import load_experiment
from fedapp.experiment.preset_files import DEMO, Scalar
from fedapp.experiment.run_folder import RunFolder, check_name, runs_root
from fedapp.reports.comparison.figures import png
from fedapp.reports.report import write_reports
from fedapp.reports.run_end import headline, joining_of, run_name
from fedapp.reports.who_gained import gains, who_gained
from fedapp.simulation.loopback import run_loopback

ROUNDS = 5
"""Fewer than the preset has. With these images, further rounds hardly change an answer."""
PICTURE = "who-gained.png"
ANOTHER = "fedapp demo --out FOLDER"


def demo(out: Path | None = None, **over: Scalar) -> list[str]:
    """Run the demo and return the lines to print: a verdict, the files, the next commands.

    out: a new folder for the run; None: `demo` among the user's runs. over: further overrides.
    Raises RunError if the folder exists already or its name cannot be a run's, StoreError if it
    cannot be made.
    """
    folder = (out or runs_root() / "demo").absolute()
    if folder.exists():
        raise RunError(f"{folder}: is there already: name a new folder ({ANOTHER})")
    check_name(folder.name, "--out")
    try:
        folder.mkdir(parents=True)
        folder.rmdir()
    except OSError as error:
        raise write_error(folder, error, setting=ANOTHER) from error
    place = {"runtime.out": str(folder.parent), "runtime.run_name": folder.name}
    experiment = load_experiment(DEMO, {"rounds.num_rounds": ROUNDS, **over, **place})
    sites = experiment.split.num_clients
    print(f"{sites} simulated sites share scikit-learn's digits; some labelled all, some none.")
    print("Each trains alone, and together with the others: half a minute to two.", flush=True)
    run_loopback(experiment, lambda summary, *_: headline(summary))
    files = RunFolder(folder)
    rows, summary = files.per_site(), files.read_json("summary.json") or {}
    write_atomic(folder / PICTURE, png(who_gained(gains(rows))), durable=False)
    [page] = write_reports([str(folder)])
    name = run_name(folder)
    return [
        "",
        *joining_of(summary, rows),
        f"Picture of who gained: {folder / PICTURE}",
        f"Page of the run:       {page}",
        "Next:",
        f"  fedapp site {name}",
        "      did joining pay at each site, and which model does it keep?",
        "  fedapp advise FOLDER",
        "      which method do your own images support? a folder for each class",
    ]
