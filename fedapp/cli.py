"""`fedapp`: run without Flower, look, use a model, compare, join as a site, make keys.

Each command imports what it needs itself: torch takes seconds, which neither `--help` nor the
completion in a shell can wait for.
"""

import os
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated, Literal

import typer
from click import Command, Context
from rich.console import Console
from typer.core import TyperGroup

from fedapp.experiment.codehash import code_hash, versions
from fedapp.experiment.completion import (
    complete_grid,
    complete_methods,
    complete_override,
    complete_preset,
    complete_run,
)
from fedapp.experiment.presetfiles import (
    headline,
    method_path,
    method_presets,
    presets,
    sweeps,
)
from fedapp.ground.errors import ConfigError, FedAppError
from fedapp.ground.extras import needs
from fedapp.ground.ours import process_is_ours
from fedapp.ground.withdrawn import refuse_command


class _Commands(TyperGroup):
    """The commands; one that an earlier version had is refused with what to do instead."""

    def resolve_command(
        self, ctx: Context, args: list[str]
    ) -> tuple[str | None, Command | None, list[str]]:
        refuse_command(args[0])
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    suggest_commands=False,  # click does, and twice is once too often
    pretty_exceptions_show_locals=False,
    help=__doc__.partition("\n")[0],
)

RUN, LOOK, USE, COMPARE, JOIN, SET_UP = "Run", "Look", "Use", "Compare", "Join", "Set up"
"""Groups of commands, as `fedapp --help` shows them."""

Preset = Annotated[
    str,
    typer.Argument(
        help="a preset's name (see `fedapp presets`) or a YAML file", autocompletion=complete_preset
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="settings to change, such as training.learning_rate=0.03",
        autocompletion=complete_override,
    ),
]
Grid = Annotated[
    str,
    typer.Argument(
        help="a grid's YAML file, a sweep's name, or a preset and --methods",
        autocompletion=complete_grid,
    ),
]
Methods = Annotated[
    str,
    typer.Option(
        help="methods, such as um_pfssl,fixavg; else all of the grid's",
        autocompletion=complete_methods,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(help="a setting of the grid; several: name it again; else all"),
]
Run = Annotated[
    str, typer.Argument(help="a run: its name, or its folder", autocompletion=complete_run)
]
SiteFolder = Annotated[
    Path | None,
    typer.Option(help="the site's own: site.yaml, approvals, record; a node's default: its --keys"),
]
Model = Annotated[Path, typer.Argument(help="a model's folder; `fedapp site` names them")]
Images = Annotated[
    Path, typer.Argument(help="a folder of images, a CSV file with `path`, or a file of vectors")
]
Seed = Annotated[int | None, typer.Option(min=0, help="of all random draws; the same as seed=3")]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="cells at a time; else a core each, as memory allows"),
]

By = Annotated[
    Literal["accuracy", "balanced_accuracy", "f1", "kappa"],
    typer.Option(
        help="what methods are compared by; all but accuracy: of all sites' images as one"
    ),
]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"um-pfssl {versions().get('um-pfssl', '(not installed)')}, code {code_hash()[1]}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="say which version"),
    ] = False,
) -> None:
    """Take the options that stand before a command."""


@app.command(rich_help_panel=RUN)
def run(
    preset: Preset,
    overrides: Overrides = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="end in the paper's terms, instead of plain words")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="the summary as JSON on standard output, all else on standard error"
        ),
    ] = False,
    seed: Seed = None,
) -> None:
    """Run an experiment in this process, without Flower: the same rounds, the same numbers."""
    from fedapp.drivers.loopback import run_loopback
    from fedapp.experiment.config import load_experiment, parse_overrides
    from fedapp.experiment.runfolder import pretty
    from fedapp.ground.processes import termination_as_interrupt
    from fedapp.results.endblock import end_block
    from fedapp.results.paperblock import paper_block

    # Whoever reads standard output as JSON must find nothing else there.
    with termination_as_interrupt(), redirect_stdout(sys.stderr) if as_json else nullcontext():
        given = [*(overrides or []), *([] if seed is None else [f"seed={seed}"])]
        experiment = load_experiment(preset, parse_overrides(given))
        summary, _ = run_loopback(experiment, paper_block if paper else end_block)
    if as_json:
        print(pretty(summary), end="")


@app.command(rich_help_panel=RUN)
def demo(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="new folder; else `demo` in your runs")
    ] = None,
    seed: Seed = None,
) -> None:
    """Show what this is for, in a minute or two: 10 simulated sites, alone against together."""
    from fedapp.ground.processes import termination_as_interrupt
    from fedapp.tools.demo.demo import demo as show

    with termination_as_interrupt():
        over = {} if seed is None else {"seed": seed}
        for line in show(out, **over):
            print(line)


@app.command("presets", rich_help_panel=RUN)
def list_presets() -> None:
    """List the presets, and the method presets that `method.preset=NAME` lays over them."""
    from fedapp.experiment.config import load_experiment

    for name in presets():
        experiment = load_experiment(name)
        print(
            f"{name:24} {experiment.method.name}, {experiment.data.name}, "
            f"{experiment.split.num_clients} sites, {experiment.rounds.num_rounds} rounds"
        )
    print()
    for name in method_presets():
        print(f"method.preset={name:26} {headline(method_path(name))}")


@app.command(rich_help_panel=RUN)
def manifest(
    preset: Preset,
    out: Annotated[Path, typer.Option("--out", "-o", help="file to write")],
    overrides: Overrides = None,
) -> None:
    """Draw the split of a preset and save it, to be shared and cited (split.manifest=FILE)."""
    from fedapp.experiment.config import load_experiment, parse_overrides
    from fedapp.site.federation import federation_of

    experiment = load_experiment(preset, parse_overrides(overrides or []))
    split = federation_of(experiment).manifest
    if split is None:
        raise ConfigError("data.name = 'own': nobody deals the sites' images: there is no split")
    split.save(out)
    print(f"{out}: {len(split.site)} images, {split.num_clients} sites, digest {split.digest()}")
    if split.particulars:
        print(split.particulars)


@app.command(rich_help_panel=LOOK)
def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="runs or one comparison: their names, or their folders",
            autocompletion=complete_run,
        ),
    ],
    site: Annotated[str, typer.Option(help="only this site's page, for the site to read")] = "",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="file to write; else in the run's folder")
    ] = None,
    reference: Annotated[
        str, typer.Option(help="a comparison's method that the others are compared with")
    ] = "",
    site_folder: SiteFolder = None,
) -> None:
    """Write a page of a run or of several side by side; of a comparison, tables and figures."""
    from fedapp.results.report import write_reports

    record = None if site_folder is None else _needed(site_folder, "report")
    for path in write_reports(runs, reference, site, out, record):
        print(path)


@app.command("watch", rich_help_panel=LOOK)
def watch_run(
    run: Annotated[
        str,
        typer.Argument(
            help="a run: its name, or its folder; else the newest", autocompletion=complete_run
        ),
    ] = "",
    paper: Annotated[
        bool, typer.Option("--paper", help="end in the paper's terms, instead of plain words")
    ] = False,
) -> None:
    """Follow a run that goes on, from another terminal; of one that is over, show how it ended."""
    from fedapp.tools.watch.watch import watch

    raise typer.Exit(watch(run, paper, Console()))


@app.command("track", rich_help_panel=LOOK)
def track_run(
    run: Annotated[
        str,
        typer.Argument(
            help="a run or a comparison: its name, or its folder; else the newest run",
            autocompletion=complete_run,
        ),
    ] = "",
    to: Annotated[
        Literal["tensorboard", "mlflow"], typer.Option(help="what shows it")
    ] = "tensorboard",
    out: Annotated[
        Path | None,
        typer.Option(
            help="folder of the event files, else in the run's; or of MLflow's store, else "
            "MLFLOW_TRACKING_URI, else mlruns in your runs"
        ),
    ] = None,
) -> None:
    """Bring a run's rounds to TensorBoard or MLflow; again is as once. Its own files stay."""
    from fedapp.tools.track.track import track

    track(run, to, out)


@app.command("models", rich_help_panel=USE)
def models_of(run: Run) -> None:
    """Check the models that the sites of a simulated run kept; make those that are gone anew."""
    from fedapp.tools.models.export import write_models

    write_models(run, Console())


@app.command("site", rich_help_panel=USE)
def show_site(
    folder: Annotated[
        Path | None,
        typer.Argument(help="a node's store-path, or a run's name or folder; else your runs"),
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="folder for a page of each model, with its surest mistakes")
    ] = None,
    specificity: Annotated[
        float, typer.Option(help="at which the page tells the sensitivity of each class")
    ] = 0.9,
) -> None:
    """Say whether joining paid, and which models this site has: of which run, why, how good."""
    from fedapp.experiment.runfolder import runs_root
    from fedapp.tools.models.mine import show_site

    place = folder or Path(os.environ.get("FEDAPP_SITES") or runs_root())
    show_site(place, Console(), page, specificity)


@app.command("predict", rich_help_panel=USE)
def predict_images(
    model: Annotated[
        str,
        typer.Argument(
            help="a model's folder (`fedapp site` names them); or RUN/SITE, or a run with one "
            "site's model, by its name or folder",
            autocompletion=complete_run,
        ),
    ],
    images: Annotated[
        list[Path],
        typer.Argument(
            help="one or more images, folders of them, CSV files with `path`; or a file of vectors"
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="CSV file to write; else standard output")
    ] = None,
    coverage: Annotated[
        float, typer.Option(help="share of prediction sets that are to hold the right class")
    ] = 0.9,
    sets: Annotated[
        Literal["lac", "aps"], typer.Option(help="lac: smallest; aps: never empty")
    ] = "lac",
    passes: Annotated[int, typer.Option(min=1, help="dropout samples for the uncertainty")] = 20,
) -> None:
    """Classify images with a site's model: class, probability, uncertainty, prediction set."""
    from fedapp.models.predict import Asked
    from fedapp.tools.use.predict import model_folder, predict

    asked = Asked(coverage, sets, passes)
    raise typer.Exit(predict(model_folder(model), images, out, asked))


@app.command("next-to-label", rich_help_panel=USE)
def next_images(
    model: Model,
    images: Images,
    out: Annotated[Path, typer.Option("--out", "-o", help="CSV file to write")],
    count: Annotated[int, typer.Option(min=1, help="how many images")] = 50,
) -> None:
    """Choose the images to label first: a CSV file of them."""
    from fedapp.tools.use.label import next_to_label

    for line in next_to_label(model, images, count, out):
        print(line)


@app.command("export", rich_help_panel=USE)
def export_model(
    model: Model,
    to: Annotated[Literal["onnx", "monai", "safetensors"], typer.Option(help="what to write")],
    out: Annotated[Path, typer.Option("--out", "-o", help="folder to write it to")],
    images: Annotated[
        Path | None, typer.Option(help="images to check the ONNX file with: a folder or CSV file")
    ] = None,
) -> None:
    """Write a site's model for other programs: ONNX, a MONAI bundle or safetensors."""
    from fedapp.tools.use.export import export

    for line in export(model, to, out, images):
        print(line)


@app.command(rich_help_panel=COMPARE)
def advise(
    data: Annotated[
        str, typer.Argument(help="a preset's name or YAML file, or a folder of images by class")
    ],
    overrides: Overrides = None,
    seeds: Annotated[str, typer.Option(help="seeds, such as 0,1,2 or 0 1 2")] = "0,1,2,3,4",
    out: Annotated[
        Path | None, typer.Option(help="folder of the runs; else advise-<data> in your runs")
    ] = None,
    jobs: Jobs = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    by: By = "accuracy",
) -> None:
    """Say which method to take on your data, after short runs of the simple and recommended."""
    from fedapp.experiment.config import parse_overrides
    from fedapp.tools.advise.advise import advise_on
    from fedapp.tools.compare.grid import seeds_of

    seeds, rest = _seeds(seeds, overrides)
    given, chosen = parse_overrides(rest), seeds_of(seeds)
    raise typer.Exit(
        advise_on(data, given, seeds=chosen, out=out, jobs=jobs, as_data=as_json, by=by)
    )


@app.command(rich_help_panel=COMPARE, epilog=f"Sweeps: {', '.join(sweeps())}")
def compare(
    grid: Grid,
    overrides: Overrides = None,
    methods: Methods = "",
    seeds: Annotated[str, typer.Option(help="seeds, such as 0,1,2 or 0 1 2; else the grid's")] = "",
    setting: Settings = None,
    out: Annotated[
        Path | None, typer.Option(help="folder of the comparison; else compare-<grid> in your runs")
    ] = None,
    jobs: Jobs = None,
    driver: Annotated[
        Literal["loopback", "flower"], typer.Option(help="what carries the messages")
    ] = "loopback",
    keep_models: Annotated[
        bool, typer.Option("--keep-models", help="keep the models of cells that are done")
    ] = False,
    by: By = "accuracy",
) -> None:
    """Compare methods x seeds x settings: a grid's YAML file, a sweep, or a preset and --methods.

    What was run before is kept, what was cut goes on.
    """
    from fedapp.experiment.config import parse_overrides
    from fedapp.tools.compare.compare import compare as compare_grid
    from fedapp.tools.compare.grid import labels_of, seeds_of

    seeds, rest = _seeds(seeds, overrides)
    code = compare_grid(
        grid,
        parse_overrides(rest),
        methods=labels_of(methods),
        seeds=seeds_of(seeds),
        settings=setting or (),
        out=out,
        jobs=jobs,
        driver=driver,
        keep_models=keep_models,
        by=by,
    )
    raise typer.Exit(code)


@app.command(rich_help_panel=COMPARE)
def tune(
    grid: Grid,
    overrides: Overrides = None,
    methods: Methods = "",
    setting: Settings = None,
    candidates: Annotated[
        list[str] | None,
        typer.Option(
            help="what to try for every method, such as training.learning_rate=0.01,0.1; else the "
            "grid's `tune`, else five learning rates; may be repeated"
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="folder of the tuning; else tune-<grid> in your runs")
    ] = None,
    jobs: Jobs = None,
) -> None:
    """Tune every method of a grid by one budget, on validation images; write the tuned grid.

    What was run before is kept, what was cut goes on.
    """
    from fedapp.experiment.config import parse_overrides
    from fedapp.tools.compare.compare import tune as tune_grid
    from fedapp.tools.compare.grid import labels_of
    from fedapp.tools.compare.tuning import values_of

    code = tune_grid(
        grid,
        parse_overrides(overrides or []),
        methods=labels_of(methods),
        settings=setting or (),
        values=values_of(candidates or []),
        out=out,
        jobs=jobs,
    )
    raise typer.Exit(code)


@app.command("check", rich_help_panel=JOIN)
def check_site(
    data: Annotated[
        Path, typer.Argument(help="a site's data: a folder, CSV file or file of vectors")
    ],
    overrides: Overrides = None,
    preset: Annotated[str, typer.Option(help="what the sites agreed upon")] = "",
    site_name: Annotated[str, typer.Option(help="the site's name in that preset")] = "",
    server: Annotated[str, typer.Option(help="host:port that the node will connect to")] = "",
    hide_below: Annotated[int, typer.Option(min=0, help="hide counts from 1 to below this")] = 0,
    store_path: Annotated[
        Path | None, typer.Option(help="where the node will keep models; else in your runs")
    ] = None,
    site_folder: SiteFolder = None,
) -> None:
    """Check a site's own data and machine before it joins. Exit code: 0 fit, 1 faults, 2 misuse."""
    from fedapp.experiment.config import load_experiment, parse_overrides
    from fedapp.tools.datacheck.check import Options, check

    experiment = load_experiment(preset, parse_overrides(overrides or [])) if preset else None
    patients = ""
    if site_folder is not None:
        from fedapp.site.terms import FILE, read_terms

        patients = read_terms(site_folder / FILE).patients
    options = Options(experiment, site_name, server, hide_below, store_path, patients)
    raise typer.Exit(check(data, options, Console()))


@app.command("check-server", rich_help_panel=JOIN)
def check_server(
    server: Annotated[str, typer.Argument(help="host:port that the node will connect to")],
    keys: Annotated[Path, typer.Option(help="folder with ca.crt and the site's supernode.key")],
    site_folder: SiteFolder = None,
) -> None:
    """Look at the way to the server before joining. Exit code: 0 free, 1 something is in the way.

    Reachable, certificate, clock, version, key: each with what to do.
    """
    needs("app", "flwr")
    from fedapp.tools.node.checkserver import show

    raise typer.Exit(show(server, keys, site_folder or keys, Console()))


@app.command("node", rich_help_panel=JOIN)
def keep_node(
    data: Annotated[
        Path | None, typer.Argument(help="the site's images: a folder or a CSV file")
    ] = None,
    server: Annotated[str, typer.Option(help="host:port of the federation's gateway")] = "",
    keys: Annotated[
        Path | None, typer.Option(help="folder with ca.crt and the site's supernode.key")
    ] = None,
    site_name: Annotated[str, typer.Option(help="the site's name in the federation's preset")] = "",
    node_config: Annotated[
        str, typer.Option(help="further settings of the node, such as 'worker-idle-s=60'")
    ] = "",
    site_folder: SiteFolder = None,
    no_terms: Annotated[
        bool, typer.Option("--no-terms", help="allow every run of an approved app: no site.yaml")
    ] = False,
    port: Annotated[int, typer.Option(min=1, max=65535, help="of the node's own programs")] = 9094,
    status: Annotated[
        bool, typer.Option("--status", help="only say how the node on this port is; 0: online")
    ] = False,
) -> None:
    """Keep this site online: start Flower's SuperNode, and again whenever it is not online."""
    if status:
        from fedapp.tools.node.status import health, status_path

        online, words = health(status_path(port))
        print(words)
        raise typer.Exit(0 if online else 1)
    needs("app", "flwr")
    from fedapp.tools.node.node import SiteNode
    from fedapp.tools.node.node import node_config as config

    if not server or keys is None:
        raise ConfigError("fedapp node: needs --server host:port and --keys FOLDER")
    own = config(site_name, data, node_config)
    SiteNode(server, keys, port, own, site_folder, no_terms).run()


@app.command("approve", rich_help_panel=JOIN)
def approve_app(
    what: Annotated[
        str, typer.Argument(help="a hash, a FAB or a checkout; else the list of apps is shown")
    ] = "",
    site_folder: SiteFolder = None,
    refuse: Annotated[bool, typer.Option("--refuse", help="it may not run here")] = False,
    take_back: Annotated[
        bool, typer.Option("--take-back", help="it may not run here any more, from now on")
    ] = False,
    lines: Annotated[bool, typer.Option("--lines", help="show the changed lines too")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="decide without being asked")] = False,
) -> None:
    """Look at an app that a run wants to bring to this site; approve it or refuse it."""
    from fedapp.tools.node.approvals import Approvals, Word
    from fedapp.tools.node.approve import decide, overview

    if refuse and take_back:
        raise ConfigError("fedapp approve: --refuse and --take-back: say one of them")
    approvals, console = Approvals(_needed(site_folder, "approve")), Console()
    if not what:
        overview(approvals, console)
    else:
        word: Word = "refused" if refuse else "taken back" if take_back else "approved"
        done = decide(what, word, approvals, console, sure=yes, lines=lines)
        raise typer.Exit(0 if done else 1)


@app.command("terms", rich_help_panel=JOIN)
def explain_terms(
    site_folder: SiteFolder = None,
    example: Annotated[
        bool, typer.Option("--example", help="print a commented file to begin with")
    ] = False,
) -> None:
    """Say in plain words what a site's site.yaml allows."""
    from fedapp.tools.node.terms import EXAMPLE, explained

    if example:
        print(EXAMPLE.read_text(encoding="utf-8"), end="")
        return
    for line in explained(_needed(site_folder, "terms")):
        print(line)


@app.command("audit", rich_help_panel=JOIN)
def audit_record(
    site_folder: SiteFolder = None,
    export: Annotated[
        Path | None, typer.Option("--csv", help="write the record's lines into this new file")
    ] = None,
    accept: Annotated[
        str,
        typer.Option(
            help="take the record as it is for the newest one, as after restoring a backup or "
            "moving to another machine; the reason, which is written into the record"
        ),
    ] = "",
) -> None:
    """Verify a site's record and show what it says, by run. Exit code: 0 whole, 1 broken or none.

    Broken is a record that is not the newest one that this machine knows, too.
    """
    from fedapp.site.heads import heads_root
    from fedapp.site.record import Record, user_name
    from fedapp.tools.node.audit import audit

    folder = _needed(site_folder, "audit")
    if accept:
        Record(folder).accept(accept)
        print(f"taken as it is, in {user_name()}'s heads: {heads_root()}")
    whole = audit(folder, Console(), export)
    raise typer.Exit(0 if whole else 1)


def _seeds(seeds: str, overrides: list[str] | None) -> tuple[str, list[str]]:
    """Return the seeds with those that follow after a space, and the overrides without them."""
    given = overrides or []
    if not seeds:
        return "", given
    more = [text for text in given if text.isdecimal()]
    return " ".join([seeds, *more]), [text for text in given if text not in more]


def _needed(site_folder: Path | None, command: str) -> Path:
    if site_folder is not None and not site_folder.is_dir():
        raise ConfigError(
            f"--site-folder {site_folder}: there is no such folder: name the one that "
            "`fedapp node` has (its --site-folder, else its --keys)"
        )
    if site_folder is None:
        raise ConfigError(
            f"fedapp {command}: needs --site-folder, the folder that `fedapp node` has"
        )
    return site_folder


@app.command("code-hash", rich_help_panel=JOIN)
def hash_of_app(
    where: Annotated[
        Path | None, typer.Argument(help="a checkout or a FAB; else what is installed here")
    ] = None,
) -> None:
    """Say an app's hash, to be compared with what a run brings; the same wherever it is made."""
    from fedapp.experiment.codehash import hash_of_files
    from fedapp.tools.node.bundle import installed, read_app

    found = read_app(where) if where else installed()
    print(f"{found.hash}  {found.title}, code {hash_of_files(found.files)}")


@app.command(rich_help_panel=SET_UP)
def certs(
    out: Annotated[Path, typer.Argument(help="folder for them; nothing in it is overwritten")],
    host: Annotated[
        list[str] | None,
        typer.Option(help="name or address at which sites reach the server; may be repeated"),
    ] = None,
    sites: Annotated[str, typer.Option(help="sites that get a key each")] = "north,south,west",
) -> None:
    """Make a trial's keys and certificates: a CA, the server's, a SuperNode key for each site."""
    needs("app", "cryptography")
    from fedapp.tools.compare.grid import labels_of
    from fedapp.tools.deploy.certs import make_certs

    for line in make_certs(out, host or [], list(labels_of(sites) or ())):
        print(line)


@app.command("sign", rich_help_panel=SET_UP)
def sign_run(
    preset: Preset,
    overrides: Overrides = None,
    key: Annotated[
        Path, typer.Option(help="the coordinator's private key: ssh-keygen -t ed25519")
    ] = Path("coordinator.key"),
    days: Annotated[
        float, typer.Option(min=0.01, max=366, help="within which each site must have begun it")
    ] = 7.0,
    identity: Annotated[
        str, typer.Option(help="of a run that goes on with other rounds: what its run.id holds")
    ] = "",
) -> None:
    """Sign a run, for sites that do signed runs only; print the command that starts it."""
    needs("app", "cryptography")
    from fedapp.tools.deploy.sign import signed_run

    def passphrase() -> str:
        return str(typer.prompt("passphrase", hide_input=True, err=True))

    for line in signed_run(preset, overrides or [], key, days, identity, passphrase):
        print(line)


@app.command("members", rich_help_panel=SET_UP)
def list_members(
    keys: Annotated[
        list[Path], typer.Argument(help="the sites' public keys, NAME.pub, or folders")
    ],
) -> None:
    """Say whose keys mask a run's sums: a setting of the preset, by fingerprints."""
    needs("app", "cryptography")
    from fedapp.tools.deploy.members import members_line

    print(members_line(keys))


@app.command("sites", rich_help_panel=SET_UP)
def list_sites(
    superlink: Annotated[
        str, typer.Argument(help="a connection of Flower's config.toml; else its default")
    ] = "",
) -> None:
    """List the sites that are registered at the server, by name, with state and number."""
    needs("app", "flwr")
    from fedapp.tools.deploy.roster import sites_at

    Console().print(sites_at(superlink or None))


def main() -> None:
    """Entry point: what a person can mend is one line and exit code 2."""
    process_is_ours()
    try:
        app()
    except FedAppError as error:
        print(f"fedapp: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    except OSError as error:
        if error.filename is None:
            raise  # nothing that another path would mend
        print(f"fedapp: {error.filename}: {error.strerror}: name another path", file=sys.stderr)
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
