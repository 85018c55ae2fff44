"""`fedapp demo`: runs a small federation and draws which sites gained by joining."""

from itertools import count
from pathlib import Path

from fedapp.core.disk import write_atomic, write_error
from fedapp.core.errors import RunError
from fedapp.experiment.config import load_experiment
from fedapp.experiment.preset_files import DEMO, Scalar
from fedapp.experiment.run_folder import check_name, runs_root
from fedapp.reports.charts import as_file
from fedapp.reports.report import write_reports
from fedapp.reports.run_accuracy import who_gained
from fedapp.reports.run_end import run_name
from fedapp.reports.run_record import read_run
from fedapp.simulation.flower_local import activation, checkout, run
from fedapp.simulation.loopback import run_loopback

PICTURE = "who-gained.svg"
ANOTHER = "fedapp demo --out FOLDER"


def demo(out: Path | None = None, *, flower: bool = False, **over: Scalar) -> list[str]:
    """Run the demo and return the lines to print: the files, the next commands.

    out: a new folder for the run; None: the first of `demo`, `demo-2`, ... among the user's runs
    that is free. flower: through Flower's simulation on Ray, which takes a checkout; else in this
    process, with the same numbers. over: further overrides. Raises RunError if the folder exists
    already, its name cannot be a run's, or the run fails; StoreError if it cannot be made.
    """
    folder = (out or _free(runs_root())).absolute()
    if folder.exists():
        raise RunError(f"{folder}: is there already: name a new folder ({ANOTHER})")
    check_name(folder.name, "--out")
    try:
        folder.mkdir(parents=True)
        folder.rmdir()
    except OSError as error:
        raise write_error(folder, error, setting=ANOTHER) from error
    settings = {**over, "runtime.out": str(folder.parent), "runtime.run_name": folder.name}
    experiment = load_experiment(DEMO, settings)
    number = experiment.split.num_clients
    print(f"{number} simulated clinics share scikit-learn's handwritten digits. Each has its own")
    print("scanner and mix of digits; about one training image in ten is labelled.", flush=True)
    if not flower:
        run_loopback(experiment)
    elif run(checkout(), DEMO, [f"{key}={value}" for key, value in settings.items()]):
        raise RunError(f"{folder}: the run did not end well; its last lines say why")
    figures = who_gained(read_run(folder)).figures
    for figure in figures:
        write_atomic(folder / PICTURE, as_file(figure.picture).encode(), durable=False)
    [page] = write_reports([str(folder)])
    name, first = run_name(folder), activation()
    return [
        "",
        *(f"Picture of who gained: {folder / PICTURE}" for _ in figures),
        f"Page of the run:       {page}",
        "Next:",
        *([f"  {first}      # once in a terminal"] if first else []),
        f"  fedapp site {name}",
        "      did joining pay at each site, and which model does it keep?",
        f"  fedapp compare {DEMO} --methods um_pfssl_mi_labels,local_only,one_round --seeds 0,1,2 "
        "rounds.num_rounds=10",
        "      UM-pFSSL, which trains networks, beside training alone and this: ten minutes",
        "  fedapp advise FOLDER",
        "      which method do your own images support? a folder for each class",
    ]


def _free(root: Path) -> Path:
    names = (DEMO if number == 1 else f"{DEMO}-{number}" for number in count(1))
    return next(root / name for name in names if not (root / name).exists())
