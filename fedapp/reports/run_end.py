"""What a person reads when a run is over: in plain words, or in the paper's terms.

Files hold shares in [0, 1], the screen shows percent. Shares are shown with what they are shares
of: a percentage of a few images is hardly a number.
Rows: of `per_site.csv`. What was not measured (a site without test images) is absent or None.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from fedapp.core.formatting import count, duration, percent, points, size
from fedapp.evaluation.confidence_intervals import MIN_TEST_IMAGES, wilson
from fedapp.experiment.run_folder import Row, runs_root
from fedapp.learn.metrics import LABEL_GROUPS, SHARES_OF_LABELS, label_group, worst_decile
from fedapp.protocol.messages import ALL_SITES
from fedapp.server.standings import spread

FEW_SITES = 10
"""Runs of at most as many sites show each site's accuracy with its counts and its interval."""
SHOWN = 3
"""Sites shown of those that gained and that lost most."""
_FINDINGS = 6
"""Findings that have a line."""
_NAMED = 4
"""Sites named where a list of sites could be long."""
_LABEL, _CELL = 48, 13
"""Columns of what a line begins with, and of each of its numbers."""
_PAPER_LABEL, _PAPER_CELL = 42, 14
"""The same, in the paper's terms."""
_PAPER_ANSWERS = {
    "common": "the server's model",
    "tuned": "their own after local training",
    "alone": "their own, trained alone",
    "online": "the server's online network",
    "one_round": "the closed form, before any training",
}
_PAPER_SPREAD = ("mean_test", "std_test", "worst_decile")
_FILES = (
    "summary.json",
    "per_site.csv",
    "metrics.jsonl",
    "evaluations.json",
    "sites.jsonl",
    "traffic.csv",
    "config.yaml",
    "run.json",
    "manifest.safetensors",
    "checkpoint.json",
)
"""Of a run's folder, in the order in which they are named."""
WARMUP, ALONE, COMMON, FINAL, VALIDATION = (
    "warmup_accuracy",
    "alone_accuracy",
    "common_accuracy",
    "final_accuracy",
    "by_validation_accuracy",
)
"""Columns of per_site.csv."""
COPIES = "test_inputs_learned_from"
"""In summary.json: test inputs that equal one of a training part; absent where there is none."""


def end_block(summary: Row, per_site: Sequence[Row], run: Path) -> str:
    """Return the result of a run: at most 30 lines of 100 columns, paths and long names apart.

    summary: as in summary.json; per_site: as in per_site.csv; run: the run's folder. What was not
    measured (a site without test images) shows as a dash or not at all.
    """
    few = len(per_site) <= FEW_SITES
    blocks = [
        [title(summary)],
        _overall(summary, per_site),
        (_by_site if few else _by_labels)(per_site, _begins(summary)),
        _findings(summary),
        [
            *_movers(per_site, few, _begins(summary)),
            *([] if few else untested(summary, per_site)),
            *exceptions(per_site),
            *doubts(summary),
            *_kept(summary, per_site),
            *_costs(summary),
        ],
        _next(run),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _overall(summary: Row, per_site: Sequence[Row]) -> list[str]:
    """Count right answers over all sites' images, beside the mean of the sites' own shares."""
    mean, answers = summary.get("mean_test_accuracy") or {}, summary.get("answers") or {}
    last, chosen = summary["rounds"], mean.get("best_by_validation_round")
    best = ", best on validation"
    table = [
        (
            f"after the {_begins(summary)}",
            WARMUP,
            None if _as_one(per_site) else _mean(known(per_site, WARMUP)),
        ),
        (f"after round {last}, the last{best * (last == chosen)}", FINAL, mean.get("final")),
    ]
    if chosen not in {None, last}:
        chosen_mean = mean.get("best_by_validation")
        table.append((f"after round {chosen}{best}", VALIDATION, chosen_mean))
    for name, column, label in (
        ("one_round", "one_round_accuracy", "the closed form, before any training"),
        ("common", COMMON, "the server's average of all sites, at the end"),
        ("alone", ALONE, "each site's model trained alone, at the end"),
    ):
        if name in answers:
            if name == "alone" and (without := answers[name].get("sites_without")):
                label = f"each site trained alone; {without} without: guesses"
            table.append((label, column, answers[name]["final"]))
    head = _cells("Right answers on the sites' own test images", "right / of", "%", "sites' mean")
    every = [guessing(row) for row in per_site]
    rows = [(label, *_counted(every, column), percent(of)) for label, column, of in table]
    return [head, *(_cells(f"  {label}", *values) for label, *values in rows)]


def _findings(summary: Row) -> list[str]:
    """Return a line for each finding, the one that is found least first; none where there are none.

    Counts of right answers elsewhere are shares of findings, as so many of the images.
    """
    rows = [row for row in summary.get("by_class") or () if "read" in row]
    if not rows:
        return []
    said = [row for row in rows if row["sensitivity"] is not None]
    lines = [_cells("By finding, at all sites", "with / read", "found, %", "spared, %")]
    for row in sorted(said, key=lambda row: row["sensitivity"])[:_FINDINGS]:
        shares = percent(row["sensitivity"]), percent(row["specificity"])
        lines.append(
            _cells(f"  {row['class']}"[:_LABEL], f"{row['images']} / {row['read']}", *shares)
        )
    if few := [f"{row['class']} ({row['images']})" for row in rows if row not in said]:
        lines.append(f"  too few images with it, cannot be said: {', '.join(few[:_FINDINGS])}")
    return lines


def _as_one(per_site: Sequence[Row]) -> bool:
    """Whether sites are known by masked sums alone, and so all of them in one row."""
    return [row["site"] for row in per_site] == [ALL_SITES]


def _begins(summary: Row) -> str:
    """Return what round 0 is called; runs of earlier versions do not say it."""
    return str(summary.get("begins", "warm-up"))


def guessing(row: Row) -> Row:
    """Return a site's row; one that has no model trained alone would guess evenly in its place."""
    if row.get(ALONE) is not None or not row.get("classes"):
        return row
    return {**row, ALONE: 1 / (2 if row.get("findings") else row["classes"])}


def _by_site(per_site: Sequence[Row], begins: str) -> list[str]:
    """Return a line for each site, that with the smallest share of labels first."""
    if not measured(per_site):
        return []
    shown = [(WARMUP, f"{begins}, %"), (ALONE, "alone, %"), (FINAL, "last, %")]
    shown = [(column, head) for column, head in shown if known(per_site, column)]
    heads = "".join(f"{head:>12}" for _, head in shown)
    head = f"{'By site, few labels first':<26}{'labelled':>10}{heads}"
    lines = [f"{head}{'right / of':>13}{'95 % by image':>15}"]
    for row in sorted(per_site, key=lambda row: (row.get("mu") or 0.0, row["site"])):
        shares = "".join(f"{percent(row.get(column)):>12}" for column, _ in shown)
        line = f"{f'  {brief(row)}'[:20]:<21}{_labelled(row):>15}{shares}"
        if right(row, FINAL) is None:
            line += "  no test images" if row.get("test") == 0 else ""
        else:
            line += "{:>13}{:>15}".format(*counted(row))
        lines.append(line)
    return lines


def _by_labels(per_site: Sequence[Row], begins: str) -> list[str]:
    """Return a line for each group of sites by their share of labels, and one for the worst."""
    lines = [
        _cells("By share of labelled images", "sites", f"{begins}, %", "last, %", "right / of")
    ]
    for label, rows in by_label_group(per_site, SHARES_OF_LABELS).items():
        start, end = (percent(_mean(known(rows, column))) for column in (WARMUP, FINAL))
        right_of, _ = _counted(rows, FINAL)
        lines.append(_cells(f"  {label} labelled", str(len(rows)), start, end, right_of))
    if final := known(per_site, FINAL):
        before, tenth = known(per_site, WARMUP), max(len(final) // 10, 1)
        worst = [percent(worst_decile(of)) if of else "-" for of in (before, final)]
        lines.append(_cells("  the tenth of sites that does worst", str(tenth), *worst))
    return lines


def _movers(per_site: Sequence[Row], few: bool, begins: str) -> list[str]:
    """Say which sites are worse off, and of many which gained most: in images."""
    if _as_one(per_site):
        return []
    column, than = (ALONE, "alone") if known(per_site, ALONE) else (WARMUP, begins)
    moved = [(change, row) for row in per_site if (change := _images(row, column)) is not None]
    moved.sort(key=lambda mover: (-mover[0] / mover[1]["test"], mover[1]["site"]))
    lines = []
    if not few:
        gained = [mover for mover in moved if mover[0] > 0]
        lines.append(f"Better than {than:<8}{_named(gained, len(moved))}")
    worse = [mover for mover in reversed(moved) if mover[0] < 0]
    if moved:
        lines.append(f"Worse than {than:<9}{_named(worse, len(moved))}")
    return lines


def _named(movers: Sequence[tuple[int, Row]], of: int) -> str:
    if not movers:
        return f"none of {of} sites"
    named = [f"{brief(row)} {change:+d} of {row['test']}" for change, row in movers[:SHOWN]]
    more = ", ..." if len(movers) > SHOWN else ""
    return f"{len(movers)} of {of} sites, in images: {', '.join(named)}{more}"


def _kept(summary: Row, per_site: Sequence[Row]) -> list[str]:
    """Say what the models are worth that sites keep, and which of them keep their own alone."""
    found = summary.get("kept") or {}
    if found.get("mean") is None:
        return []
    lines = [f"Kept for use        {percent(found['mean'])} % right, the sites' mean"]
    if found["told"]:
        alone = [brief(row) for row in per_site if str(row["site"]) in found["alone"]]
        who = f": {some(alone)}, what they trained alone" if alone else ""
        lines.append(f"Keep their own      {_of(len(alone), found['told'])} sites{who}")
    said = found.get("verdicts") or {}
    if any(said.values()):
        lines.append(
            f"Joining             paid at {said['paid']} sites, did harm at {said['harmed']}, "
            f"changed little at {said['same']}; cannot tell at {said['unknown']}"
        )
    return lines


def _costs(summary: Row) -> list[str]:
    error, measuring = summary.get("pseudo_label_error"), summary.get("bytes_evaluation")
    wrong = f"Wrong pseudo-labels {percent(error)} % in the last round that could count them"
    traffic = f"{size(summary.get('bytes_down'))} to sites, {size(summary.get('bytes_up'))}"
    more = f"; {size(measuring)} more to measure" if measuring else ""
    sent = f"Sent                {traffic} to the server{more}"
    return [*([] if error is None else [wrong]), sent]


def _next(run: Path) -> list[str]:
    """Say where all numbers are, and the commands that go on from here."""
    name = run_name(run)
    # Where the run simulated the sites, their models are here too.
    models = f"   the sites' models: fedapp site {name}" if (run / "models").is_dir() else ""
    return [f"Files in {run}", f"Pictures: fedapp report {name}{models}"]


def right(row: Row, column: str) -> int | None:
    """Return how many test images were answered right; None where that is not known."""
    if not row.get("test") or row.get(column) is None:
        return None
    found: int = round(row[column] * row["test"])
    return found


def _images(row: Row, column: str) -> int | None:
    """Return the right answers at the end less those of another column; None where unknown."""
    start, end = right(row, column), right(row, FINAL)
    return None if start is None or end is None else end - start


def _counted(rows: Sequence[Row], column: str) -> tuple[str, str]:
    """Return the right answers of all sites together, and their share in percent."""
    found = [(n, row["test"]) for row in rows if (n := right(row, column)) is not None]
    total, of = sum(n for n, _ in found), sum(of for _, of in found)
    return (_of(total, of), percent(total / of)) if of else ("-", "-")


def _labelled(row: Row) -> str:
    """Return how many of a site's training images have a label; else their share."""
    if row.get("train") is None:
        return "-" if row.get("mu") is None else f"{percent(row['mu'])} %"
    return _of(row["labelled"], row["train"])


def _of(part: int, whole: int) -> str:
    return f"{part} / {whole}"


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _cells(label: str, *values: str) -> str:
    return _columns(label, values, _LABEL, _CELL)


def _columns(label: str, values: Sequence[str], first: int, each: int) -> str:
    """Return a line whose first column is so many signs wide, and each of the others so many."""
    return f"{label:<{first}}" + "".join(f"{value:>{each}}" for value in values)


def title(summary: Row) -> str:
    """Return the first line: what ran, and how long."""
    what = [
        str(summary["method"]),
        _came(summary),
        f"{summary['rounds']} rounds",
        f"seed {summary['seed']}",
        duration(summary.get("wall_seconds")),
    ]
    return f"{summary['preset']}: {', '.join(what)}"


def _came(summary: Row) -> str:
    """Return how many sites took part, of how many where some never came."""
    sites = summary["sites"]
    expected = summary.get("sites_expected", sites)  # runs of earlier versions do not say it
    return f"{sites} sites" if sites == expected else f"{sites} of {expected} sites"


def doubts(summary: Row) -> list[str]:
    """Return a line for each thing that makes the numbers of the whole run say less."""
    sites, lines = summary["sites"], []
    if (expected := summary.get("sites_expected", sites)) > sites:
        lines.append(
            f"Took part           {sites} of {expected} sites; {expected - sites} never came, and "
            "no number here is of them"
        )
    if copies := summary.get(COPIES):
        lines.append(
            f"Too good            {copies} test inputs equal ones that are learned from: copies?"
        )
    return lines


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
        if few := [
            f"{brief(row)} ({row['test']})" for row in known if row["test"] < MIN_TEST_IMAGES
        ]:
            lines.append(
                f"Few test images     sites {some(few)}: under {MIN_TEST_IMAGES}, mostly chance"
            )
        lacking = [(row, n) for row in known if (n := untested_classes(row))]
        if partial := [f"{brief(row)}: {n} of {row['classes']}" for row, n in lacking]:
            lines.append(f"Classes untested    at sites {some(partial)}")
    if skipped:
        named = some([f"{row['site']} ({row['rounds_skipped']})" for row in skipped])
        lines.append(f"Skipped (rounds)    sites {named}")
    return lines


def measured(per_site: Sequence[Row]) -> list[Row]:
    """Return the rows of sites whose final accuracy and its images are known."""
    return [row for row in per_site if row.get("test") and row.get(FINAL) is not None]


def untested_classes(row: Row) -> int:
    """Return of how many classes a site has no test images; 0 where that is not known."""
    known: int | None = row.get("test_classes")
    return 0 if known is None else row["classes"] - known


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


def by_label_group(per_site: Sequence[Row], names: Sequence[str]) -> dict[str, list[Row]]:
    """Return the sites by share of labels; names: of `label_group`'s groups."""
    groups: dict[str, list[Row]] = {name: [] for name in names}
    for row in per_site:
        if row.get("mu") is not None:
            groups[names[label_group(row["mu"])]].append(row)
    return groups


def counted(row: Row) -> tuple[str, str]:
    """Return a measured site's right answers of how many, and their interval in percent."""
    found, of = round(row[FINAL] * row["test"]), row["test"]
    low, high = map(percent, wilson(found, of))
    return f"{found} / {of}", f"{low} to {high}"


def paper_block(summary: Row, per_site: Sequence[Row], run: Path) -> str:
    """Return the result of a run as plain text of 100 columns, paths apart.

    At most 30 lines; of a run of at most `FEW_SITES` sites 14 more.

    summary: as in summary.json; per_site: as in per_site.csv; run: the run's folder. What was not
    measured (a site without test images, a method without a bound) shows as a dash or not at all.
    """
    blocks = [
        [title(summary)],
        _paper_accuracies(summary, per_site),
        _paper_answers(summary),
        _paper_by_site(per_site),
        _paper_by_labels(per_site),
        _paper_movers(per_site),
        _paper_costs(summary),
        [*untested(summary, per_site), *exceptions(per_site), *doubts(summary)],
        _files(run),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _paper_accuracies(summary: Row, per_site: Sequence[Row]) -> list[str]:
    mean = summary.get("mean_test_accuracy") or {}
    best, chosen = (
        "-" if (found := mean.get(f"{at}_round")) is None else found
        for at in ("best", "best_by_validation")
    )
    start, spreads = spread(known(per_site, WARMUP)), _PAPER_SPREAD[1:]
    table = [
        ("after warm-up", *(start[f"{of}_accuracy"] for of in _PAPER_SPREAD)),
        *(
            (
                label,
                mean.get(at),
                *(summary.get(f"{kind}{of}_accuracy") for of in spreads),
            )
            for label, at, kind in (
                (f"final, round {summary['rounds']}", "final", ""),
                (f"best, round {best}", "best", "best_"),
                (f"best by validation, round {chosen}", "best_by_validation", "by_validation_"),
            )
        ),
    ]
    head = _paper_cells("Accuracy on the sites' own test images, %", "mean", "std", "worst decile")
    return [head, *(_paper_cells(f"  {label}", *map(percent, row)) for label, *row in table)]


def _paper_answers(summary: Row) -> list[str]:
    """What the sites could answer with, where they have more than one answer."""
    found = summary.get("answers") or {}
    if len(found) < 2:
        return []
    head = _paper_cells("What sites could answer with, mean, %", "final", "by validation")
    rows = (
        (name, percent(row["final"]), percent(row["best_by_validation"]))
        for name, row in found.items()
    )
    return [head, *(_paper_cells(f"  {_PAPER_ANSWERS[name]}", *shares) for name, *shares in rows)]


def _paper_by_site(per_site: Sequence[Row]) -> list[str]:
    """Return counts and intervals: a percentage of a few images is hardly a number."""
    if len(per_site) > FEW_SITES or not (rows := measured(per_site)):
        return []
    lines = [_paper_cells("By site, final", "right / of", "%", "95 % interval")]
    for row in rows:
        found, interval = counted(row)
        label = f"  {who(row)}"[: _PAPER_LABEL - 1]
        lines.append(_paper_cells(label, found, percent(row[FINAL]), interval))
    return lines


def _paper_by_labels(per_site: Sequence[Row]) -> list[str]:
    lines = [_paper_cells("By share of labels, %", "sites", "after warm-up", "final", "change")]
    for label, rows in by_label_group(per_site, LABEL_GROUPS).items():
        values = ["-", "-", "-"]
        if both := [row for row in rows if _gain(row) is not None]:
            start, end = (fmean(row[column] for row in both) for column in (WARMUP, FINAL))
            values = [percent(start), percent(end), points(end - start)]
        lines.append(_paper_cells(f"  {label}", str(len(rows)), *values))
    return lines


def _paper_movers(per_site: Sequence[Row]) -> list[str]:
    gains = [(change, row) for row in per_site if (change := _gain(row)) is not None]
    gains.sort(key=lambda mover: (-mover[0], mover[1]["site"]))
    best = [_mover(*mover) for mover in gains if mover[0] > 0][:SHOWN]
    worst = [_mover(*mover) for mover in reversed(gains) if mover[0] < 0][:SHOWN]
    return [
        "Against the site's own warm-up model, points",
        f"  gained most  {'  '.join(best) or 'none'}",
        f"  lost most    {'  '.join(worst) or 'none'}",
    ]


def _gain(row: Row) -> float | None:
    """Return the final accuracy less the warm-up's, or None where one is unknown."""
    start, end = row.get(WARMUP), row.get(FINAL)
    return None if start is None or end is None else end - start


def _mover(change: float, row: Row) -> str:
    mu = "" if row.get("mu") is None else f" (mu {row['mu']:.2f})"
    return f"{who(row)} {points(change)}{mu}"


def _paper_costs(summary: Row) -> list[str]:
    down, up = summary.get("models_sent"), summary.get("models_up")
    error = summary.get("pseudo_label_error")
    lines = [
        f"Pseudo-label error  {percent(error)}{'' if error is None else ' %, last measured'}",
        f"Models sent         {count(down)} to sites, {count(up)} to the server",
    ]
    bound = summary.get("cost_bound_models")
    total = None if down is None else down + (up or 0)
    if bound is not None:
        share = f"; sent: {percent(total / bound)} % of it" if bound and total is not None else ""
        lines.append(f"  paper's bound     {count(bound)} models (Eq. 28){share}")
        saved = (greedy := summary["cost_greedy_models"]) - bound  # Eq. 29
        kept = f"; the bound saves {count(saved)}" if saved > 0 else ""
        lines.append(f"  greedy search     {count(greedy)} models (Eq. 27){kept}")
    traffic = f"{size(summary.get('bytes_down'))} to sites, {size(summary.get('bytes_up'))}"
    lines.append(f"Bytes sent          {traffic} to the server")
    if measuring := summary.get("bytes_evaluation"):
        lines.append(f"  for measuring     {size(measuring)}, not counted above")
    return lines


def _files(run: Path) -> list[str]:
    there = [name for name in _FILES if (run / name).exists()]
    return [f"Files in {run}", f"  {' '.join(there)}"] if there else [f"Files in {run}"]


def _paper_cells(label: str, *values: str) -> str:
    return _columns(label, values, _PAPER_LABEL, _PAPER_CELL)
