"""The facts of a run: what ran and its result, its cost, its warnings, how to run it again."""

from collections import Counter
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from fedapp.core.errors import ConfigError, FedAppError
from fedapp.core.formatting import count, counted, duration, first_names, percent, size
from fedapp.evaluation.confidence_intervals import MIN_TEST_IMAGES
from fedapp.evaluation.reliability_warnings import warnings_about
from fedapp.evaluation.verdict import NOTHING_TOLD
from fedapp.experiment.config import differing, load_experiment, to_plain
from fedapp.experiment.preset_files import method_presets, presets
from fedapp.protocol.messages import ALL_SITES
from fedapp.reports.charts import Bar, Line, axis_up_to, bars, line_chart, rounds_axis
from fedapp.reports.layout import DASH, Block, Figure, Table
from fedapp.reports.run_accuracy import nothing_changed
from fedapp.reports.run_end import privacy_words
from fedapp.reports.run_record import RunRecord
from fedapp.server.accuracy_drop import accuracy_drop_warning

_MOST_WARNINGS = 40
"""Number of warnings shown; the others are counted."""


def result_sentence(run: RunRecord) -> str:
    """Return the result in one sentence, with the method, the data and the seed."""
    planned = run.setting("rounds", "num_rounds")
    done = f"{run.last_round} of {counted(planned, 'rounds')}"
    sites = counted(_number_of_sites(run), "sites")
    what = f"{method_of(run)} on {run.setting('data', 'name')}, {sites}, {done}"
    return f"{what}, seed {run.settings.get('seed')}. {_result(run)}"


def method_of(run: RunRecord) -> str:
    """Return the method's name, as summary.json has it, else that of its setting."""
    return str((run.summary or {}).get("method") or run.setting("method", "name"))


def _result(run: RunRecord) -> str:
    tested = run.evaluations()
    if not tested or not run.rounds:
        return f"Nobody knows here how good the models are: {NOTHING_TOLD}."
    final = run.rounds[-1].get("mean_test_accuracy")
    right, of = sum(e.correct for e in tested), sum(e.samples for e in tested)
    with_images = run.rounds[-1].get("sites_evaluated", len(tested))
    last = (
        f"After round {run.last_round} the sites' models are right on {percent(final)} % of their "
        f"own test images, the mean over {counted(with_images, 'sites')} "
        f"({right} of {counted(of, 'images')} together)"
    )
    start = [site.after_warm_up.share for site in run.sites if site.after_warm_up]
    began = f"; after the warm-up it was {percent(fmean(start))} %." if start else "."
    return last + ("." if nothing_changed(run) else began)


def _number_of_sites(run: RunRecord) -> int:
    """Return how many sites there are; with masked sums the server has one record of them all."""
    masked = [site.number for site in run.sites] == [ALL_SITES]
    return int(run.setting("split", "num_clients") or 0) if masked else len(run.sites)


def protocol_table(run: RunRecord) -> Table:
    """Return the facts that a reader needs to judge the numbers."""
    facts = [site.standing.facts for site in run.sites]
    labelled, unlabelled = sum(f.labelled for f in facts), sum(f.unlabelled for f in facts)
    share = labelled / max(labelled + unlabelled, 1)
    val, test = sum(f.val for f in facts), sum(f.test for f in facts)
    chosen, best = run.standings.best_by_validation, run.standings.best
    masked = ", known by masked sums alone" * (run.setting("privacy", "sums") == "masked")
    begins = (run.summary or {}).get("begins") or "warm-up"
    rows = [
        ["Data", f"{run.setting('data', 'name')}: {_number_of_classes(run)}"],
        [
            "Training images",
            f"{count(labelled)} labelled, {count(unlabelled)} unlabelled ({percent(share)} % have "
            "a label)",
        ],
        [
            "Images to measure on",
            f"{count(val)} for validation, {count(test)} for testing; each site is measured on its "
            "own",
        ],
        ["Sites", f"{_number_of_sites(run)}{masked}; a round asks {_cohort(run)}"],
        ["Privacy", privacy_words(bool(masked), run.setting("privacy", "epsilon"))],
        ["Method", method_of(run)],
        ["Network", _network(run)],
        ["Rounds", f"{run.last_round} of {run.setting('rounds', 'num_rounds')} after the {begins}"],
        ["Seed", str(run.settings.get("seed"))],
        ["Time", duration(run.state.get("wall_seconds"))],
        [
            "Selected on validation images",
            DASH
            if chosen is None
            else f"round {chosen['round']}: "
            f"{percent(chosen['mean_test_accuracy'])} % mean test accuracy",
        ],
        [
            "Best by test images",
            DASH
            if best is None
            else f"round {best['round']}: "
            f"{percent(best['mean_test_accuracy'])} %; chosen by looking at the test images, so "
            "too good: for comparison with papers only",
        ],
    ]
    return Table("Data, method and rounds", ["", ""], rows, labels=2)


def _network(run: RunRecord) -> str:
    """Return the network, or that there is none: sums of fixed features need none."""
    features = run.setting("method", "features")
    if method_of(run) == "one_round" and features != "network":
        return f"none: sites send sums of features ({features})"
    return str(run.setting("model", "name"))


def _cohort(run: RunRecord) -> str:
    share = run.setting("rounds", "sample_rate")
    return "all" if share in {None, 1} else f"{percent(float(share))} % of them"


def side_by_side(runs: list[RunRecord]) -> Table:
    """Return a table with the results of each run in a row."""
    rows = []
    for run in runs:
        chosen = run.standings.best_by_validation or {}
        final = run.rounds[-1] if run.rounds else {}
        rows.append(
            [
                run.name,
                method_of(run),
                str(len(run.sites)),
                f"{run.last_round} of {run.setting('rounds', 'num_rounds')}",
                percent(chosen.get("mean_test_accuracy")),
                percent(final.get("mean_test_accuracy")),
                percent(final.get("worst_decile_accuracy")),
                count(final.get("models_sent")),
            ]
        )
    columns = [
        *("Run", "Method", "Sites", "Rounds", "Selected, %", "Final, %", "Worst decile, %"),
        "Models sent",
    ]
    notes = [
        "Mean accuracy over sites, each on its own test images. Selected: at the round with the "
        "best mean validation accuracy. Runs with other data, sites or splits cannot be compared.",
    ]
    splits = {site.standing.facts.split_digest for run in runs for site in run.sites}
    if len(splits) > 1:
        notes.append("These runs have different splits, which may explain their differences.")
    return Table("The runs", columns, rows, notes)


def traffic(run: RunRecord) -> Block:
    """Return the models sent by round, beside the bound that the method's paper gives."""
    title = "What was sent"
    reading = (
        "Models sent since the beginning, to the sites and back. Where the method's paper bounds "
        "them, the dashed line is that bound for the whole run: the run should end below it."
    )
    sent = [
        (row["round"], row["models_sent"] + row.get("models_up", 0))
        for row in run.rounds
        if row.get("models_sent") is not None
    ]
    if not sent:
        return Block(title, reading, missing="This run did not record what it sent.")
    bound = (run.summary or {}).get("cost_bound_models")
    most = max(sent[-1][1], bound or 0)
    lines = [Line(f"sent {count(sent[-1][1])}", sent, "c0")]
    if bound:
        lines.append(
            Line(f"bound {count(bound)}", [(0, bound), (run.last_round, bound)], "c2", True)
        )
    last = run.rounds[-1]
    said = f"{count(sent[-1][1])} models sent" if sent[-1][1] else "No models, but sums, were sent"
    if bound:
        said += f", {percent(sent[-1][1] / bound)} % of the paper's bound of {count(bound)}"
    said += (
        f": {size(last.get('bytes_down'))} to the sites and {size(last.get('bytes_up'))} back"
        + (
            f"; {size(measured)} more for measuring alone."
            if (measured := last.get("bytes_evaluation"))
            else "."
        )
    )
    if len({number for _, number in sent}) < 2:  # a flat line
        return Block(title, reading, lines=[said])
    picture = line_chart(
        "Models sent", lines, rounds_axis(run.last_round), axis_up_to(most, count), said
    )
    rows = [
        [
            *(str(row["round"]), count(row.get("models_sent")), count(row.get("models_up"))),
            *(size(row.get("bytes_down")), size(row.get("bytes_up"))),
        ]
        for row in run.rounds
    ]
    columns = ["Round", "To sites", "Back", "Bytes to sites", "Bytes back"]
    table = Table("Sent since the beginning", columns, rows, labels=1)
    notes = [] if bound else ["The method's paper gives no bound, or the run is not over."]
    return Block(title, reading, [Figure(picture, said, table)], lines=notes)


def time_spent(run: RunRecord) -> Block:
    """Return the seconds of every kind of phase."""
    title = "Time"
    reading = (
        "Where the time went, as the server saw it: waiting for sites in each kind of phase, and "
        "its own work. On one machine the sites take turns."
    )
    spent: Counter[str] = Counter()
    for row in run.history.values():
        spent.update(row.get("seconds", {}))
    if not spent:
        why = "This run did not record its phases (sites.jsonl)."
        return Block(title, reading, missing=why)
    total = sum(spent.values())
    given = [Bar(name, [(seconds, "c0")], _time(seconds)) for name, seconds in spent.most_common()]
    said = f"{duration(total)} in all phases; most in {spent.most_common(1)[0][0]}."
    rows = [
        [name, _time(seconds), percent(seconds / total if total else None)]
        for name, seconds in spent.most_common()
    ]
    table = Table("Time by phase", ["Phase", "Time", "%"], rows, labels=1)
    return Block(title, reading, [Figure(bars("By phase", given, said), said, table)])


def _time(seconds: float) -> str:
    return "under 1 s" if seconds < 1 else duration(seconds)


def settings_and_versions(run: RunRecord) -> Block:
    """Return the settings that differ from the preset's, and the versions."""
    title = "Settings and versions"
    reading = "What to give to run it again. config.yaml in the run's folder has every setting."
    name = str(run.settings.get("name"))
    rows, lines = [], []
    try:
        preset = _preset(name)
    except FedAppError:
        preset = None
    if preset is None:
        lines.append(f"Preset {name}: not one of this version's, so nothing is compared with it.")
    else:
        found = differing(preset, run.settings)
        rows = [[key, _cell(theirs), _cell(ours)] for key, theirs, ours in found]
        lines.append(f"Preset {name}: {len(rows) or 'no'} settings differ.")
    tables = []
    if rows:
        tables.append(Table("Settings that differ", ["Setting", "Preset", "Here"], rows, labels=3))
    versions = [[key, str(value)] for key, value in (run.facts.get("versions") or {}).items()]
    split = run.sites[0].standing.facts.split_digest
    begun = [
        ["started", str(run.facts.get("started", "-"))],
        ["code", str(run.facts.get("code", "-"))],
        ["split", split[:16]],
    ]
    tables.append(Table("Versions", ["", ""], [*begun, *versions], labels=2))
    return Block(title, reading, tables=tables, lines=lines)


def warnings(run: RunRecord) -> Block:
    """Return everything that went wrong or makes a number weak."""
    found = [*_of_rounds(run), *_of_sites(run), *_of_models(run)]
    more = [f"And {len(found) - _MOST_WARNINGS} more."] if len(found) > _MOST_WARNINGS else []
    reading = "What went wrong or makes a number weak."
    return Block("Warnings", reading, lines=[*found[:_MOST_WARNINGS], *more] or ["None."])


def _of_rounds(run: RunRecord) -> list[str]:
    names = {str(site.number): site.name for site in run.sites}
    found: list[str] = []
    planned = run.setting("rounds", "num_rounds")
    if run.summary is None or (isinstance(planned, int) and run.last_round < planned):
        found.append(f"The run is not over: round {run.last_round} of {planned}.")
    before: dict[str, Any] = {}
    for row in run.rounds:
        if warning := accuracy_drop_warning(row, before):
            found.append(f"{warning[:1].upper()}{warning[1:]}.")
        for site, reason in (row.get("skipped") or {}).items():
            who = names.get(site, f"site {site}")
            found.append(f"Round {row['round']}: {who} skipped: {reason}.")
        if late := row.get("joined"):
            who = ", ".join(names.get(str(site), f"site {site}") for site in late)
            found.append(f"Round {row['round']}: joined: {who}.")
        before = row
    for number, row in sorted(run.history.items()):
        for site, said in row.get("sites", {}).items():
            if said.get("memory_lost"):
                who = names.get(site, f"site {site}")
                found.append(f"Round {number}: {who} lost its private state.")
    return found


def _number_of_classes(run: RunRecord) -> str:
    """Return the number of classes, or of findings."""
    names = len(run.sites[0].standing.facts.classes)
    return f"{names} findings" if run.counting_notes else f"{names} classes"


def _of_sites(run: RunRecord) -> list[str]:
    found = []
    facts = [(site.name, site.standing) for site in run.sites]
    for label, names in (
        ("No test images, so nothing is known", [n for n, s in facts if not s.facts.test]),
        (
            f"Fewer than {MIN_TEST_IMAGES} test images, mostly chance",
            [f"{n} ({s.facts.test})" for n, s in facts if 0 < s.facts.test < MIN_TEST_IMAGES],
        ),
        (
            "Classes without test images",
            [
                f"{n} ({len(s.facts.classes) - s.test_classes} of {len(s.facts.classes)})"
                for n, s in facts
                if s.facts.test and s.test_classes is not None
                and s.test_classes < len(s.facts.classes)
            ],
        ),
    ):  # fmt: skip
        if names:
            found.append(f"{label}: {first_names(names, 12)}.")
    return found


def _of_models(run: RunRecord) -> list[str]:
    """Return the warnings about single sites' models, by their answers to test images."""
    return [
        f"{site.name[:1].upper()}{site.name[1:]}: {light}"
        for site in run.sites
        if (tested := site.standing.latest.get("test")) and tested.samples
        for light in warnings_about(tested, site.standing.facts.labelled, run.classes)
    ]


def _preset(name: str) -> Mapping[str, Any] | None:
    """Return the settings of a preset by the name in config.yaml, such as `digits_demo-fixavg`.

    None where this version has no such preset, or where it needs further settings.
    """
    for known in presets():
        if name == known:
            return to_plain(load_experiment(known))
        for method in method_presets():
            if name == f"{known}-{method}":
                try:
                    return to_plain(load_experiment(known, {"method.preset": method}))
                except ConfigError:  # the run had further settings, such as split.bags
                    return None
    return None


def _cell(value: Any) -> str:
    return "-" if value is None or value == "" else str(value)
