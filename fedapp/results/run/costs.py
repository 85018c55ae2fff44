"""What a run cost: models and bytes sent against the paper's bound, and time by phase."""

from collections import Counter
from collections.abc import Sequence

from fedapp.ground.text import count, duration, percent, size
from fedapp.results.layout import Table
from fedapp.results.run.blocks import Block, Figure
from fedapp.results.run.charts import Bar, Line, bars, line_chart, rounds_axis, upto
from fedapp.results.run.record import Row, RunRecord


def traffic(run: RunRecord) -> Block:
    """Return models sent by round, beside the bound where the method has one."""
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
        lines.append(Line(f"bound {count(bound)}", [(0, bound), (run.last, bound)], "c2", True))
    last = run.rounds[-1]
    said = f"{count(sent[-1][1])} models sent"
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
    up = upto(most, "", [count(0), count(most / 2), count(most)])
    picture = line_chart("Models sent", lines, rounds_axis(run.last), up, said)
    rows = [
        [
            str(row["round"]),
            count(row.get("models_sent")),
            count(row.get("models_up")),
            size(row.get("bytes_down")),
            size(row.get("bytes_up")),
        ]
        for row in run.rounds
    ]
    columns = ["Round", "To sites", "Back", "Bytes to sites", "Bytes back"]
    table = Table("Sent since the beginning", columns, rows, labels=1)
    lines_ = [] if bound else ["The method's paper gives no bound, or the run is not over."]
    return Block(title, reading, [Figure(picture, said, table)], lines=lines_)


def times(run: RunRecord) -> Block:
    """Return the seconds of every kind of phase, and of every round."""
    title = "Time"
    reading = (
        "Where the time went, as the server saw it: waiting for sites in each kind of phase, and "
        "its own work. On one machine the sites take turns."
    )
    spent: Counter[str] = Counter()
    for row in run.history.values():
        spent.update(row.get("seconds", {}))
    figures = [_rounds(run)] if len(_with_before(run.rounds)) > 1 else []
    if not spent:
        why = "This run did not record its phases (sites.jsonl)."
        return Block(title, reading, figures, missing=why)
    total = sum(spent.values())
    given = [Bar(name, [(seconds, "c0")], _time(seconds)) for name, seconds in spent.most_common()]
    said = f"{duration(total)} in all phases; most in {spent.most_common(1)[0][0]}."
    rows = [
        [name, _time(seconds), percent(seconds / total if total else None)]
        for name, seconds in spent.most_common()
    ]
    table = Table("Time by phase", ["Phase", "Time", "%"], rows, labels=1)
    return Block(title, reading, [Figure(bars("By phase", given, said), said, table), *figures])


def _time(seconds: float) -> str:
    return "under 1 s" if seconds < 1 else duration(seconds)


def _rounds(run: RunRecord) -> Figure:
    """Return how long each round took; a run that was resumed counts its own time alone."""
    taken: list[tuple[float, float]] = [
        (row["round"], max(row["wall_seconds"] - before, 0.0))
        for before, row in _with_before(run.rounds)
    ]
    most = max((seconds for _, seconds in taken), default=0.0)
    said = f"The longest round took {duration(most)}."
    up = upto(most, "", [duration(most * part) for part in (0, 0.5, 1)])
    picture = line_chart(
        "Seconds by round", [Line("", taken, "c0")], rounds_axis(run.last), up, said
    )
    rows = [[f"{number:g}", duration(seconds)] for number, seconds in taken]
    return Figure(picture, said, Table("Time by round", ["Round", "Time"], rows, labels=1))


def _with_before(rows: Sequence[Row]) -> list[tuple[float, Row]]:
    """Return each round's row with the seconds before it."""
    timed = [row for row in rows if row.get("wall_seconds") is not None]
    before = [0.0, *(row["wall_seconds"] for row in timed)]
    return list(zip(before, timed, strict=False))  # nothing comes after the last
