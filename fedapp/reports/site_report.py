"""The page of one site, from up to three sources: a run's folder, its kept model, its own record.

A view of a run's folder shows only what the site may see: its own counts, results and pseudo-
labels. Of the other sites it shows quartiles without names, and these only if at least `ENOUGH`
other sites were measured: quartiles of fewer would reveal single sites.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedapp.core.errors import ConfigError, FedAppError, RunError, name_suggestion, one_line
from fedapp.core.formatting import counted, percent, size
from fedapp.evaluation.findings import COUNTS_NOTE
from fedapp.evaluation.reliability_warnings import cautions, warnings_about
from fedapp.experiment.run_folder import RunFolder
from fedapp.models.card import ANSWER_NAMES, joining_verdict, when
from fedapp.models.description import DESCRIPTION, Description, read_description
from fedapp.models.evidence import model_cautions, read_evidence
from fedapp.protocol.messages import EPSILON
from fedapp.reports.charts import Bar, Line, band, bars, intervals, over_rounds
from fedapp.reports.layout import DASH, Block, Figure, Table, blocks_page
from fedapp.reports.run_accuracy import (
    BY_IMAGE,
    NO_CHANGE,
    before_after_row,
    joining_row,
    quartiles,
    warm_up_is_common,
)
from fedapp.reports.run_classes import (
    MOST_CLASSES,
    PSEUDO,
    calibration,
    class_counts,
    confusion_block,
    latest_pseudo_labels,
    pseudo_label_block,
)
from fedapp.reports.run_record import RightAnswers, RunRecord, SiteRecord
from fedapp.reports.run_summary import method_of
from fedapp.site.record import Line as RecordLine
from fedapp.site.record import Record, by_run, minute

ENOUGH = 5
"""At least this many other sites must have results before their quartiles are shown."""
SPECIFICITY = 0.9
"""The specificity at which sensitivities are reported by default."""
MOST_ROWS = 20
"""Rows of a table of the record, the latest first."""


@dataclass(frozen=True)
class SiteView:
    """What one source tells about a site.

    `title`, `lead` and `care` (what to know before the model is used) are the head of the page if
    this view comes first; `called` is the site's name.
    """

    title: str
    lead: Sequence[str]
    blocks: Sequence[Block]
    called: str = ""
    care: Sequence[str] = ()


def site_page(*views: SiteView) -> str:
    """Return a page with the blocks of all these views, under the head of the first one."""
    subjects = [[(views[0].called, block)] for view in views for block in view.blocks]
    return blocks_page(views[0].title, views[0].lead, subjects, care=views[0].care)


def view_of_run(run: RunRecord, name: str) -> SiteView:
    """Return what a run's folder tells about the site of this name or number.

    Raises RunError where the run has no such site.
    """
    site = find_site(run, name)
    tested = site.standing.latest.get("test")
    evaluations = [tested] if tested and tested.samples else []
    labelled = site.standing.facts.labelled
    seen, learned = class_counts(site, len(run.classes)), None if labelled else [0]
    care = cautions(evaluations[0] if evaluations else None, run.classes, learned, seen)
    lead = [
        _verdict_line(run, site),
        *(
            f"Warning: {said}"
            for one in evaluations
            for said in warnings_about(one, labelled, run.classes)
            if said not in care
        ),
        f"What run {run.name} ({method_of(run)}, {counted(run.last_round, 'rounds')}) brought this "
        "site. The page shows the site's own numbers; it names no other site.",
        *run.counting_notes,
    ]
    blocks = [
        _joining(run, site),
        _mix(run, site),
        confusion_block(evaluations, run.classes),
        calibration(evaluations),
        _curve(run, site),
        _pseudo(run, site),
        _model(run, site),
        _counts(site),
    ]
    return SiteView(_title(site.name.removeprefix("site ")), lead, blocks, site.name, care)


def view_of_model(folder: Path, at: float = SPECIFICITY) -> SiteView:
    """Return what a kept model's folder tells, and the single answers in the file beside it.

    Args:
        folder: the model's folder.
        at: the specificity, in (0, 1), at which sensitivities are reported.

    Raises:
        RunError: there is no model, or its answers are NaN.
        ConfigError: `at` is not in (0, 1).
    """
    if not 0 < at < 1:
        raise ConfigError(f"specificity is {at:g}, must lie between 0 and 1: write 0.9 for 90 %")
    description, evidence = read_description(folder), read_evidence(folder)
    test, finds = description.results.test, description.model.finds
    blocks, care = list[Block](), description.cautions
    answered = evidence is not None and "kept" in evidence.answers and len(evidence.labels)
    if evidence is not None and answered:
        from fedapp.reports.site_answers import answer_blocks  # imports scikit-learn: seconds

        blocks = answer_blocks(description, evidence, at)
        care = care or model_cautions(description, evidence)
    lead = [joining_verdict(description)]
    lead += [f"Warning: {light}" for light in description.lights if light not in care]
    lead += [description.claim] if description.claim else []
    if test.images:
        what = "findings read in test images" if finds else "test images"
        interval = "" if finds else f" (95 % interval {test.ends})"
        lead.append(
            f"The model kept here is right on {test.right} of {test.images} {what}: "
            f"{percent(test.accuracy)} %{interval}."
        )
    lead += [COUNTS_NOTE] * finds
    if not answered:
        lead.append("Single answers to test images are not here, so no more can be measured.")
    called = description.origin.called
    return SiteView(_title(called), lead, [*blocks, _about(description, folder)], called, care)


def view_of_record(folder: Path, run: str) -> SiteView:
    """Return what the record in a site's folder tells about a run.

    Raises RunError where the record has no line of that run.
    """
    record = Record(folder).readable()
    lines = [line for line in record if line.get("run") == run]
    if not lines:
        known = sorted({str(line["run"]) for line in record if line.get("run")})
        raise RunError(f"{folder}: its record has no run {run!r}; {name_suggestion(run, known)}")
    sent, said = [line for line in lines if line["event"] == "sent"], _epsilon(record, run)
    lead = [f"What this site has in its record of run {run}. It names no other site."]
    blocks = [
        Block("The site's record", _integrity(folder), tables=[_runs(lines)]),
        Block("What left", f"{counted(len(sent), 'answers')}, by line.", tables=[_sent(sent)]),
        Block("What was refused", "The latest first.", tables=[_refused(lines)]),
        Block("Epsilon so far", "Of the models that left, at the runs' delta.", lines=said),
    ]
    return SiteView(f"Run {run} at this site", lead, blocks)


def _title(called: str) -> str:
    return f"Site {called}: did joining pay?"


def _about(description: Description, folder: Path) -> Block:
    origin, choice = description.origin, description.choice
    rows = [
        ["Run", f"{origin.run}, {origin.method}"],
        ["Kept", f"{ANSWER_NAMES[choice.answer]}, {when(description)}"],
        ["Why", choice.rule],
        ["Learned from", f"{origin.labelled} labelled, {origin.unlabelled} unlabelled images"],
        ["Calibration error", f"{percent(description.results.test.calibration_error)} points"],
        ["Folder", str(folder)],
    ]
    return Block("The model", "", tables=[Table("Where it comes from", ["", ""], rows, labels=2)])


def _verdict_line(run: RunRecord, site: SiteRecord) -> str:
    """Return the verdict on joining."""
    joining = site.standing.joining
    return replace(joining, verdict=replace(joining.verdict, lone=run.lone)).line


def find_site(run: RunRecord, name: str) -> SiteRecord:
    """Return a site by its name, else by its number. Raises RunError, with the nearest name."""
    by_number = {str(site.number): site for site in run.sites}
    # A site may be called "1" and have number 0: a name goes before a number, so that nobody reads
    # the page of another site.
    by_name = {site.name: site for site in run.sites}
    if found := by_name.get(name) or by_number.get(name.removeprefix("site ")):
        return found
    known = [site.name for site in run.sites]
    raise RunError(f"--site {name!r}: no such site in {run.name}; {name_suggestion(name, known)}")


def _joining(run: RunRecord, site: SiteRecord) -> Block:
    title = "Did joining help?"
    reading = "Right answers to the site's own test images, before and after. " + BY_IMAGE
    now, rows, begun = site.latest(), [], site.after_warm_up
    start = "the common warm-up" if warm_up_is_common(run) else "its own warm-up model"
    if now is None:
        why = "the site has no test images, so nobody can tell. Label some and check."
        return Block(title, reading, missing=why)
    known = [(start, begun)] if begun and begun != now else []
    for what, before in (*known, *_compared(site)):
        rows.append([what, str(before), percent(before.share), _ends(before)])
    rows.append(["the model now", str(now), percent(now.share), _ends(now)])
    table = Table("Right answers", ["Model", "Right", "%", "95 % interval, %"], rows, labels=1)
    drawn = []
    if site.standing.verdict.pairs or not site.standing.facts.labelled:
        drawn.append(joining_row(site, "joining"))
    drawn += [before_after_row("warm-up, now", before, now, site.group) for _, before in known]
    if not drawn:
        return Block(title, reading, tables=[table])
    said = f"Now {now}."
    picture = intervals("Before and now", drawn, said)
    return Block(title, reading, [Figure(picture, said, table)])


def _compared(site: SiteRecord) -> list[tuple[str, RightAnswers]]:
    """Return the two models that the verdict compares; [] where there are not two."""
    if (pairs := site.standing.verdict.pairs) is None:
        return []
    every = ("the best made alone", pairs.alone), ("the best made together", pairs.together)
    return [(what, RightAnswers(right, pairs.images)) for what, right in every]


def _ends(found: RightAnswers) -> str:
    return " to ".join(map(percent, found.interval))


def _curve(run: RunRecord, site: SiteRecord) -> Block:
    title = "Its learning curve"
    reading = "The site's accuracy by round; round 0 is the warm-up."
    own = run.curve(site.number)
    if len(own) < 2:
        why = "the run did not record single sites by round, or the site was not measured."
        return Block(title, reading, missing=why)
    lines = [
        Line("test", [(n, r.share) for n, r in own.items()], "c0"),
        Line("validation", [(n, r.share) for n, r in run.curve(site.number, "val").items()], "c1",
             dashed=True),
    ]  # fmt: skip
    others = [other for other in run.sites if other.number != site.number and other.latest()]
    bands: list[Line] = []
    if len(others) >= ENOUGH:
        spread = quartiles(run, others)
        bands = band(((n, low, high) for n, (low, _, high) in spread.items()), "c3")
        reading += " The band is the middle half of the other sites."
        missing = ""
    else:
        missing = f"the other sites: with fewer than {ENOUGH} each could be told."
    if len({right.right for right in own.values()}) < 2:
        return Block(title, reading, missing=NO_CHANGE)
    last = own[max(own)]
    said = f"Test accuracy {percent(last.share)} % ({last}) at the end."
    picture = over_rounds(run.last_round, "Accuracy", lines, said, bands)
    rows = [[str(n), str(r), percent(r.share)] for n, r in own.items()]
    table = Table("Test images by round", ["Round", "Right", "%"], rows, labels=1)
    return Block(title, reading, [Figure(picture, said, table)], missing=missing)


def _counts(site: SiteRecord) -> Block:
    facts = site.standing.facts
    rows = [
        ["labelled, to train", str(facts.labelled)],
        ["unlabelled, to train", str(facts.unlabelled)],
        ["for validation", str(facts.val)],
        ["for testing", str(facts.test)],
        ["share of labels, %", percent(facts.mu)],
        ["rounds it trained in", str(site.standing.rounds_trained)],
        ["rounds it was skipped in", str(site.standing.rounds_skipped)],
    ]
    reading = "What the site told the server of its images."
    return Block("Its images", reading, tables=[Table("Images", ["", ""], rows, labels=1)])


def _mix(run: RunRecord, site: SiteRecord) -> Block:
    title = "Its class mix"
    reading = "Its labelled validation and test images by class."
    counts = class_counts(site, len(run.classes))
    if not sum(counts):
        return Block(title, reading, missing="the site has none.")
    if len(counts) > MOST_CLASSES:
        return Block(title, reading, missing=f"{len(counts)} classes are too many for a picture.")
    given = [Bar(name, [(n, "c0")], str(n)) for name, n in zip(run.classes, counts, strict=True)]
    lacking = [name for name, n in zip(run.classes, counts, strict=True) if not n]
    none = f" None of: {', '.join(lacking)}." if lacking else ""
    said = f"{counted(sum(counts), 'images')}.{none}"
    rows = [[name, str(n)] for name, n in zip(run.classes, counts, strict=True)]
    table = Table("Images by class", ["Class", "Images"], rows, labels=1)
    return Block(title, reading, [Figure(bars("Images by class", given, said), said, table)])


def _pseudo(run: RunRecord, site: SiteRecord) -> Block:
    found = latest_pseudo_labels(run, site.number)
    if found is None:
        why = "the site had none, or the run did not count them."
        return Block(PSEUDO, "Labels that models gave to its images.", missing=why)
    return pseudo_label_block([found], run.classes)


def _model(run: RunRecord, site: SiteRecord) -> Block:
    called = site.standing.facts.name or str(site.number)
    folder = run.path / "models" / called
    if not (folder / DESCRIPTION).is_file():
        remedy = RunFolder(run.path).models_elsewhere
        remedy = remedy or f"fedapp site {run.name} --check rebuilds it"
        lines = [f"Its model for use is not here: {remedy}."]
    else:
        found = read_description(folder)
        taken = f"of {when(found)}" if found.origin.round else when(found)
        measured = {"validation": found.results.val, "test": found.results.test}
        right = [f"{m.right} of {m.images} {what}" for what, m in measured.items() if m.images]
        worth = f", right on {' and '.join(right)} images" if right else ""
        lines = [
            f"Its model for use: models/{called} in the run's folder.",
            f"It is {ANSWER_NAMES[found.choice.answer]}, {taken}{worth}. All else on this page is "
            "of the last round.",
        ]
    reading = "The model that the site keeps; it need not be the last."
    return Block("Its model", reading, lines=lines)


def _sent(sent: list[RecordLine]) -> Table:
    rows = [
        [
            minute(one),
            one["asked"],
            "; ".join([*sorted(one["digests"]), *one.get("told", [])]) or DASH,
            size(one["bytes"]),
        ]
        for one in sent[: -MOST_ROWS - 1 : -1]
    ]
    total = ["all", str(len(sent)), "", size(sum(one["bytes"] for one in sent))]
    return Table(
        "The latest first", ("at, UTC", "asked", "contents", "size"), [total, *rows], labels=3
    )


def _epsilon(lines: list[RecordLine], run: str) -> list[str]:
    spent = [(one.run, one.epsilon) for one in by_run(lines) if one.epsilon is not None]
    total = sum(cost for _, cost in spent)
    of_run = sum(cost for name, cost in spent if name == run)
    if not spent:
        return ["None: no run has sent models with noise, so that nothing bounds what they tell."]
    return [
        f"This run: {of_run:.4g}." if of_run else "This run: none, its models left without noise.",
        f"All runs in the record, added up: {total:.4g}. Runs without noise count nothing, though "
        "they tell most.",
    ]


def _integrity(folder: Path) -> str:
    """Return a sentence on whether the record's chain of hashes is intact."""
    try:
        count, remarks = Record(folder).verify()
    except FedAppError as broken:
        return f"The record is BROKEN: {one_line(broken)}"
    more = f" {len(remarks)} remarks: fedapp audit." if remarks else ""
    return f"The record is whole: {counted(count, 'lines')}.{more}"


def _runs(lines: list[RecordLine]) -> Table:
    """Return a table of what a site did for a run, the latest first."""
    work = [line for line in lines if line["event"] in ("introduced", "asked", "sent")]
    rows = []
    for one in reversed(by_run(work)[-MOST_ROWS:]):
        sent, last = one.of("sent"), one.lines[-1]
        waits = len(one.of("asked")) <= len(sent) or last["event"] != "asked"
        rows.append(
            [
                one_line(one.run),
                "waiting" if waits else "at work",
                last.get("asked", "who are you"),
                minute(last),
                _accuracy(sent, "val"),
                _accuracy(sent, "test"),
                size(one.bytes_sent),
                DASH if one.epsilon is None else f"{one.epsilon:.4g}",
            ]
        )
    heads = ("run", "state", "last", "at, UTC", "validation, %", "test, %", "sent", EPSILON)
    return Table("By run, the latest first", heads, rows, labels=4)


def _accuracy(sent: list[RecordLine], part: str) -> str:
    """Return the last accuracy on a part of the images, with its counts."""
    for line in reversed(sent):
        right, of = line["evaluations"].get(part, (0, 0))
        if of:
            return f"{percent(right / of)} ({right} of {of})"
    return DASH


def _refused(lines: list[RecordLine]) -> Table:
    """Return a table of what the site refused, the latest first."""
    refused = [line for line in lines if line["event"] == "refused"][-MOST_ROWS:]
    rows = [
        [minute(one), one_line(one["why"], 300), one["asked"], one_line(one["run"])]
        for one in reversed(refused)
    ]
    return Table("By time", ("at, UTC", "why", "asked", "run"), rows, labels=4)
