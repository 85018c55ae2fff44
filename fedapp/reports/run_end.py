"""What a person reads on the screen when a run is over.

Files hold shares in [0, 1], the screen shows percent. Each percentage stands beside the counts that
it is made of, because a percentage of a few images says little. The functions read rows of
`per_site.csv`; a value that was not measured (a site without test images) is absent or None there.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from textwrap import wrap

from fedapp.core.formatting import counted, duration, first_names, percent, size
from fedapp.evaluation.confidence_intervals import MIN_TEST_IMAGES, wilson
from fedapp.evaluation.verdict import Pairs, SiteJoining, Verdict, joining_lines, verdict_of
from fedapp.experiment.run_folder import Row, runs_root
from fedapp.learn.metrics import SHARES_OF_LABELS, label_group, worst_decile
from fedapp.protocol.messages import ALL_SITES

FEW_SITES = 10
"""With at most this many sites each site has a line; with more, groups of sites have one."""
MOST_FINDINGS = 6
"""How many findings have a line."""
MOST_NAMED = 4
"""How many sites are named in a list that could be long."""
WORTH_TRAINING = 0.01
"""Accuracy that training must add to the closed form: a smaller gain is not worth the time."""
LABEL_WIDTH, CELL_WIDTH = 48, 13
"""Characters of a line's first column, and of each column of numbers."""
WIDTH = 100
"""Characters of a line, at most."""
WARMUP, ALONE, COMMON, FINAL, VALIDATION = (
    "warmup_accuracy",
    "alone_accuracy",
    "common_accuracy",
    "final_accuracy",
    "by_validation_accuracy",
)
"""Columns of per_site.csv."""
COPIES = "test_inputs_learned_from"
"""Key of summary.json: how many test inputs equal a training input. Absent where none does."""


def end_block(summary: Row, per_site: Sequence[Row], run: Path) -> str:
    """Return the result of a run as text: at most 36 lines of 100 columns.

    Paths and long names may make a line longer. A value that was not measured (a site without test
    images) is shown as a dash or left out.

    Args:
        summary: content of summary.json.
        per_site: rows of per_site.csv.
        run: the run's folder.
    """
    few = len(per_site) <= FEW_SITES
    blocks = [
        [headline(summary)],
        _overall(summary, per_site),
        (_by_site if few else _by_labels)(per_site, _round_zero(summary)),
        _findings(summary),
        [
            *(
                part
                for line in joining_of(summary, per_site)
                for part in wrap(line, WIDTH, subsequent_indent="  ")
            ),
            *([] if few else _untested_sites(summary, per_site)),
            *_caveats_of_sites(per_site),
            *_caveats_of_run(summary),
            *_kept_models(summary, per_site),
            *_costs(summary),
            _privacy(summary, per_site),
        ],
        [*_next_steps(run), *_training(summary)],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def headline(summary: Row) -> str:
    """Return the first line: what ran, and how long it took."""
    sites = summary["sites"]
    expected = summary.get("sites_expected") or sites  # runs of earlier versions lack the key
    parts = [
        str(summary["method"]),
        ("" if sites == expected else f"{sites} of ") + counted(expected, "sites"),
        counted(summary["rounds"], "rounds"),
        f"seed {summary['seed']}",
        duration(summary.get("wall_seconds")),
    ]
    return f"{summary['preset']}: {', '.join(parts)}"


def _overall(summary: Row, per_site: Sequence[Row]) -> list[str]:
    """Return right answers over the images of all sites, beside the mean of the sites' shares."""
    mean, answers = summary.get("mean_test_accuracy") or {}, {**(summary.get("answers") or {})}
    per_site = _without_repeats(per_site)
    last, chosen = summary["rounds"], mean.get("best_by_validation_round")
    best = ", best on validation"
    table = [
        (
            f"after the {_round_zero(summary)}",
            WARMUP,
            None if _is_one_sum(per_site) else _mean(_known(per_site, WARMUP)),
        ),
        (f"after round {last}, the last{best * (last == chosen)}", FINAL, mean.get("final")),
    ]
    if chosen not in {None, last}:
        chosen_mean = mean.get("best_by_validation")
        table.append((f"after round {chosen}{best}", VALIDATION, chosen_mean))
    table = [line for line in table if line[1] != WARMUP or _known(per_site, WARMUP)]
    for name, column, label in (
        ("one_round", "one_round_accuracy", "the closed form, before any training"),
        ("common", COMMON, "the server's average of all sites, at the end"),
        ("alone", ALONE, "each site's model trained alone, at the end"),
    ):
        if name == "alone" and _is_one_sum(per_site):  # not every site has it: of how many images?
            continue
        if name in answers and _known(per_site, column):
            if name == "alone" and (without := answers[name].get("sites_without")):
                label = f"each site trained alone, without {without} that cannot"
                answers["alone"] = {"final": _mean(_known(per_site, ALONE))}
            table.append((label, column, answers[name]["final"]))
    head = _line("Right answers on the sites' own test images", "right / of", "%", "sites' mean")
    return [
        head,
        *(
            _line(f"  {label}", *_sum_of_right(per_site, column), percent(mean))
            for label, column, mean in table
        ),
    ]


def _without_repeats(per_site: Sequence[Row]) -> list[Row]:
    """Return the rows without columns that repeat the last round's at every site.

    A method that trains nothing has the same answers before round 1, after it, and on average.
    """
    repeats = [
        column
        for column in (WARMUP, COMMON)
        if all(row.get(column) == row.get(FINAL) for row in per_site)
    ]
    return [{key: row[key] for key in row if key not in repeats} for row in per_site]


def _findings(summary: Row) -> list[str]:
    """Return a line for each finding, that with the lowest sensitivity first.

    A finding is one of several labels that an image can have. Without findings there are no lines.
    """
    rows = [row for row in summary.get("by_class") or () if "read" in row]
    if not rows:
        return []
    reliable = [row for row in rows if row["sensitivity"] is not None]
    lines = [_line("By finding, at all sites", "with / read", "found, %", "spared, %")]
    for row in sorted(reliable, key=lambda row: row["sensitivity"])[:MOST_FINDINGS]:
        shares = percent(row["sensitivity"]), percent(row["specificity"])
        counts = f"{row['images']} / {row['read']}"
        lines.append(_line(f"  {row['class']}"[:LABEL_WIDTH], counts, *shares))
    if few := [f"{row['class']} ({row['images']})" for row in rows if row not in reliable]:
        lines.append(f"  too few images with it, cannot be said: {', '.join(few[:MOST_FINDINGS])}")
    return lines


def _is_one_sum(per_site: Sequence[Row]) -> bool:
    """Whether one row stands for all sites, because the server knows masked sums only."""
    return [row["site"] for row in per_site] == [ALL_SITES]


def _round_zero(summary: Row) -> str:
    """Return the name of round 0; runs of earlier versions do not record one."""
    return str(summary.get("begins", "warm-up"))


def _by_site(per_site: Sequence[Row], round_zero: str) -> list[str]:
    """Return a line for each site, that with the fewest labels first."""
    if not _measured(per_site):
        return []
    per_site = _without_repeats(per_site)
    shown = [(WARMUP, f"{round_zero}, %"), (ALONE, "alone, %"), (FINAL, "last, %")]
    shown = [(column, head) for column, head in shown if _known(per_site, column)]
    heads = "".join(f"{head:>12}" for _, head in shown)
    head = f"{'Sites by number of labels':<26}{'labelled':>10}{heads}"
    lines = [f"{head}{'right / of':>13}{'95 % by image':>15}"]
    for row in sorted(per_site, key=_number_of_labels):
        shares = "".join(f"{percent(row.get(column)):>12}" for column, _ in shown)
        line = f"{f'  {_short_name(row)}'[:20]:<21}{_labelled(row):>15}{shares}"
        if (found := right_answers(row, FINAL)) is None:
            line += "  no test images" if row.get("test") == 0 else ""
        else:
            low, high = map(percent, wilson(found, row["test"]))
            line += f"{_ratio(found, row['test']):>13}{f'{low} to {high}':>15}"
        lines.append(line)
    return lines


def _number_of_labels(row: Row) -> tuple[int, float, int]:
    """Return what sites are sorted by; runs of earlier versions know the share alone."""
    return row.get("labelled") or 0, row.get("mu") or 0.0, row["site"]


def _by_labels(per_site: Sequence[Row], round_zero: str) -> list[str]:
    """Return a line for each group of sites by share of labels, and one for the worst tenth."""
    groups: dict[str, list[Row]] = {name: [] for name in SHARES_OF_LABELS}
    for row in per_site:
        if row.get("mu") is not None:
            groups[SHARES_OF_LABELS[label_group(row["mu"])]].append(row)
    heads = "sites", f"{round_zero}, %", "last, %", "right / of"
    lines = [_line("By share of labelled images", *heads)]
    for label, rows in groups.items():
        start, end = (percent(_mean(_known(rows, column))) for column in (WARMUP, FINAL))
        ratio, _ = _sum_of_right(rows, FINAL)
        lines.append(_line(f"  {label} labelled", str(len(rows)), start, end, ratio))
    if final := _known(per_site, FINAL):
        before, tenth = _known(per_site, WARMUP), max(len(final) // 10, 1)
        worst = [percent(worst_decile(values)) if values else "-" for values in (before, final)]
        lines.append(_line("  the tenth of sites that does worst", str(tenth), *worst))
    return lines


def joining_of(summary: Row, per_site: Sequence[Row]) -> list[str]:
    """Return whether joining paid, a sentence a line; [] in runs of versions without pairs."""
    if (lone := summary.get("lone_model")) is None:
        return []
    if _is_one_sum(per_site):
        return joining_lines([], lone, Pairs.read(per_site[0]))
    return joining_lines([site_joining(row) for row in per_site], lone) + _kept_or_last(per_site)


def _kept_or_last(per_site: Sequence[Row]) -> list[str]:
    """Return which model "together" is, where it is not that of the last round."""
    compared = [(row, pairs) for row in per_site if (pairs := Pairs.read(row))]
    last = [right_answers(row, FINAL) for row, _ in compared]
    together, images = (sum(getattr(of, n) for _, of in compared) for n in ("together", "images"))
    known = sum(n for n in last if n is not None)
    if None in last or known == together or images != sum(row["test"] for row, _ in compared):
        return []
    return [
        f"Together: the models that sites keep; after the last round {known} of {images} are right."
    ]


def site_joining(row: Row) -> SiteJoining:
    """Return what a site's row tells of joining."""
    found, pairs = right_answers(row, FINAL), Pairs.read(row)
    why = "without a model of each kind"
    said = verdict_of(pairs) if pairs else Verdict("unknown", "accuracy", 0, why=why)
    right = None if found is None else (found, row["test"])
    one_answer = row.get("one_answer")
    one = "" if one_answer is None else str(one_answer)
    return SiteJoining(site_name(row), said, row.get("labelled") or 0, right, one)


def _kept_models(summary: Row, per_site: Sequence[Row]) -> list[str]:
    """Return how good the models are that sites keep, and which sites keep their own alone."""
    found = summary.get("kept") or {}
    if found.get("mean") is None:
        return []
    lines = [f"Kept for use        {percent(found['mean'])} % right, the sites' mean"]
    if found["told"]:
        alone = [_short_name(row) for row in per_site if str(row["site"]) in found["alone"]]
        names = f": {first_names(alone, MOST_NAMED)}, what they trained alone" if alone else ""
        told = f"{_ratio(len(alone), found['told'])} sites, chosen on validation images{names}"
        kept = [row for row in per_site if str(row["site"]) not in found["alone"]]
        # Validation images choose, and test images say who lost: the two may disagree.
        harmed = [_short_name(row) for row in kept if site_joining(row).verdict.outcome == "harmed"]
        despite = f"; lost on test images: {first_names(harmed, MOST_NAMED)}" if harmed else ""
        lines.append(f"Keep their own      {told}{despite}")
    return lines


def _costs(summary: Row) -> list[str]:
    error, measuring = summary.get("pseudo_label_error"), summary.get("bytes_evaluation")
    wrong = f"Wrong pseudo-labels {percent(error)} % in the last round that could count them"
    traffic = f"{size(summary.get('bytes_down'))} to sites, {size(summary.get('bytes_up'))}"
    more = f"; {size(measuring)} more to measure" if measuring else ""
    sent = f"Sent                {traffic} to the server{more}"
    return [*([] if error is None else [wrong]), sent]


def _privacy(summary: Row, per_site: Sequence[Row]) -> str:
    """Return how far the server could read single sites and images in this run."""
    return f"Privacy             {privacy_words(_is_one_sum(per_site), summary.get('epsilon'))}"


def privacy_words(masked: bool, epsilon: float | None) -> str:
    """Return what a run does against readers of what sites send; epsilon: None or 0 if none."""
    who = "masked sums" if masked else "no masks: the server reads what each site sends"
    return f"{f'epsilon {epsilon:g}' if epsilon else 'no epsilon'}, {who}"


def _next_steps(run: Path) -> list[str]:
    """Return where the files are, and the commands that show more."""
    name = run_name(run)
    # A run that simulated its sites has their models in its own folder.
    models = f"   the sites' models: fedapp site {name}" if (run / "models").is_dir() else ""
    return [f"Files in {run}", f"Pictures: fedapp report {name}{models}"]


def _training(summary: Row) -> list[str]:
    """Return what training added to the closed form, where a run measured both."""
    found = (summary.get("answers") or {}).get("one_round") or {}
    before, after = found.get("final"), (summary.get("mean_test_accuracy") or {}).get("final")
    if before is None or after is None:
        return []
    said = f"Training added {100 * (after - before):+.1f} points to the closed form"
    return [said if after - before >= WORTH_TRAINING else f"{said}: take method.preset=one_round"]


def right_answers(row: Row, column: str) -> int | None:
    """Return how many test images were answered right; None where that is not known."""
    if not row.get("test") or row.get(column) is None:
        return None
    found: int = round(row[column] * row["test"])
    return found


def _sum_of_right(rows: Sequence[Row], column: str) -> tuple[str, str]:
    """Return "right / of" over the images of all sites, and the same in percent."""
    found = [(n, row["test"]) for row in rows if (n := right_answers(row, column)) is not None]
    total, of = sum(n for n, _ in found), sum(of for _, of in found)
    return (_ratio(total, of), percent(total / of)) if of else ("-", "-")


def _labelled(row: Row) -> str:
    """Return how many of a site's training images have a label, else their share."""
    if row.get("train") is None:
        return "-" if row.get("mu") is None else f"{percent(row['mu'])} %"
    return _ratio(row["labelled"], row["train"])


def _ratio(part: int, whole: int) -> str:
    return f"{part} / {whole}"


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _line(label: str, *values: str) -> str:
    """Return a line of a table: a label on the left, numbers flush right in columns."""
    return f"{label:<{LABEL_WIDTH}}" + "".join(f"{value:>{CELL_WIDTH}}" for value in values)


def _caveats_of_run(summary: Row) -> list[str]:
    """Return a line for each fact that weakens all numbers of the run."""
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


def _untested_sites(summary: Row, per_site: Sequence[Row]) -> list[str]:
    sites = summary.get("sites_without_test_images")
    if sites is None:
        sites = [row["site"] for row in per_site if row.get("test") == 0]
    named = first_names([str(site) for site in sites], MOST_NAMED)
    return [f"No test images      sites {named}"] if sites else []


def _caveats_of_sites(per_site: Sequence[Row]) -> list[str]:
    """Return a line for each fact that weakens the numbers of some sites."""
    skipped = [row for row in per_site if row.get("rounds_skipped")]
    skipped.sort(key=lambda row: (-row["rounds_skipped"], row["site"]))
    lines = []
    if len(per_site) <= FEW_SITES:
        rows = _measured(per_site)
        if few := [
            f"{_short_name(row)} ({row['test']})" for row in rows if row["test"] < MIN_TEST_IMAGES
        ]:
            under = f"under {MIN_TEST_IMAGES}, mostly chance"
            lines.append(f"Few test images     sites {first_names(few, MOST_NAMED)}: {under}")
        lacking = [(row, n) for row in rows if (n := _untested_classes(row))]
        if partial := [f"{_short_name(row)}: {n} of {row['classes']}" for row, n in lacking]:
            lines.append(f"Classes untested    at sites {first_names(partial, MOST_NAMED)}")
    if skipped:
        named = [f"{row['site']} ({row['rounds_skipped']})" for row in skipped]
        lines.append(f"Skipped (rounds)    sites {first_names(named, MOST_NAMED)}")
    return lines


def _measured(per_site: Sequence[Row]) -> list[Row]:
    """Return the rows of sites that have test images and a final accuracy."""
    return [row for row in per_site if right_answers(row, FINAL) is not None]


def _untested_classes(row: Row) -> int:
    """Return the number of classes without test images at a site; 0 where it is not known."""
    tested: int | None = row.get("test_classes")
    return 0 if tested is None else row["classes"] - tested


def _known(rows: Sequence[Row], column: str) -> list[float]:
    """Return the values of a column that were measured."""
    return [row[column] for row in rows if row.get(column) is not None]


def site_name(row: Row) -> str:
    """Return a site's name, such as "north", else "site 3"."""
    return str(row.get("name") or f"site {row['site']}")


def _short_name(row: Row) -> str:
    """Return a site's name, else its bare number."""
    return str(row.get("name") or row["site"])


def run_name(run: Path) -> str:
    """Return what a command finds this run by: its name among your runs, else its folder."""
    return run.name if run.parent == runs_root() else str(run)
