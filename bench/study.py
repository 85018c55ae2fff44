"""The studies of docs/RESULTS.md: tune every method, compare all methods, write the tables.

`python -m bench.study [NAME ...]`: all grids results_*, second_* and crossing of conf/sweeps, or
those named. What was run before is kept, what was cut goes on; so a second call only writes the
pages anew. The tables and the numbers of each run go into docs/results/NAME/; its page there is
tables.md, to which docs/results/all_tables.md links. Of its figures only those go there that a page
under docs/ shows: all others stay in the comparison's own folder.

What a grid says of tuning decides: `tune`: its methods are tuned, then compared; `tuned_from`: they
have what was chosen for that grid, which is tuned first; neither: they are compared as they are.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapp.core.disk import write_atomic
from fedapp.core.errors import FedAppError
from fedapp.core.formatting import percent
from fedapp.experiment.preset_files import sweeps
from fedapp.reports.comparison.document import condition
from fedapp.reports.comparison.style import looks
from fedapp.reports.layout import escaped
from fedapp.tools.compare.compare import compare, tune
from fedapp.tools.compare.grid import read_grid
from fedapp.tools.compare.tuning import chosen_values, laid_over, write_grid

FIRST = ("results_fashion_mnist", "results_cifar10")
"""The studies that run first; the others follow by name."""
DOCUMENT = Path(__file__).parents[1] / "docs" / "results" / "all_tables.md"
NUMBERS = "results.csv"
"""The file of a comparison that is copied beside its page; it has a row for each run."""
PAGE = "tables.md"
"""A study's page in its folder."""


@dataclass(frozen=True)
class Study:
    """A study that ran.

    Attributes:
        name: its grid in conf/sweeps.
        comparison: the comparison's folder.
        grid: file with the tuned values of its methods; None where nothing was tuned.
        tuning: folder of its own tuning; None where it has none.
        source: the study whose tuned values it takes, where it has no tuning of its own.
    """

    name: str
    comparison: Path
    grid: Path | None = None
    tuning: Path | None = None
    source: str = ""


def studies() -> list[str]:
    """Return the names of all studies in the order in which they run."""
    found = [name for name in sweeps() if name.startswith(("results_", "second_", "crossing"))]
    return sorted(
        found, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name)
    )


def run(name: str, root: Path) -> Study:
    """Tune, where the grid says so, and compare. Raises SystemExit where a cell failed."""
    grid, comparison = read_grid(name), root / f"compare-{name}"
    if grid.tune:
        tuning = _tuned(name, root)
        study = Study(name, comparison, tuning / f"{name}.yaml", tuning)
    elif grid.tuned_from:
        tuning = _tuned(grid.tuned_from, root)
        chosen = chosen_values(_facts(tuning))
        laid = laid_over(grid, read_grid(grid.tuned_from), chosen)
        file = root / f"tuned-{name}" / f"{name}.yaml"
        head = f"# {grid.origin} with the values that tuning chose for {grid.tuned_from}.\n"
        write_grid(file, head, laid.to_file())
        study = Study(name, comparison, file, source=grid.tuned_from)
    else:
        study = Study(name, comparison)
    _succeeded(compare(str(study.grid or name), {}, out=comparison))
    return study


def _tuned(name: str, root: Path) -> Path:
    """Tune a grid and return the folder; what was tuned before is kept."""
    tuning = root / f"tune-{name}"
    _succeeded(tune(name, {}, out=tuning))
    return tuning


def _succeeded(code: int) -> None:
    if code:
        raise SystemExit(code)


def _facts(tuning: Path) -> Mapping[str, Any]:
    facts: Mapping[str, Any] = json.loads((tuning / "tuning.json").read_text(encoding="utf-8"))
    return facts


def published(study: Study, folder: Path, shown: Collection[str] = ()) -> None:
    """Write a study's page into its folder; copy its numbers and the figures `shown` beside it."""
    name, comparison = study.name, study.comparison
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("*.png"), folder / "tuning.json", folder / f"{name}.yaml"):
        old.unlink(missing_ok=True)
    files = [comparison / NUMBERS]
    files += [study.grid] if study.grid else []
    files += [study.tuning / "tuning.json"] if study.tuning else []
    for file in (*files, *(comparison / "figures" / figure for figure in sorted(shown))):
        shutil.copyfile(file, folder / file.name)
    report = (comparison / "tables.md").read_text(encoding="utf-8")
    _, _, body = report.partition("\n")  # the page has a title of its own
    first = condition_of(folder / NUMBERS)
    body = body.replace(f"{escaped(first)}\n\n", "", 1)  # it stands above
    text = page(name, first, _head(study), with_figures(body, shown))
    write_atomic(folder / PAGE, text.encode(), durable=False)


def figures_shown(name: str) -> set[str]:
    """Return the figures of a study that a page under docs/ shows, by their file names."""
    docs = DOCUMENT.parents[1]
    pages = [*docs.glob("*.md"), *docs.glob("results/*.md")]
    text = "\n".join(file.read_text(encoding="utf-8") for file in pages)
    return set(re.findall(rf"[(/]{re.escape(name)}/([\w.-]+\.png)\)", text))


def with_figures(report: str, shown: Collection[str]) -> str:
    """Return a comparison's report with the sections of tables, and of the figures `shown`.

    A section is a heading with what stands below it. The heading of a part of which no section is
    left goes too. The figures lie in the page's own folder.
    """
    sections = re.split(r"^(?=##+ )", report, flags=re.MULTILINE)
    drawn = [
        re.search(r"^!\[[^]]*\]\((?:figures/)?([^)]*)\)$", part, re.MULTILINE) for part in sections
    ]
    kept = [
        part
        for part, figure in zip(sections, drawn, strict=True)
        if not figure or figure[1] in shown
    ]
    follows = [part.startswith("###") for part in kept[1:]] + [False]
    whole = [
        part
        for part, has_section in zip(kept, follows, strict=True)
        if has_section or not re.fullmatch(r"## [^\n]*\s*", part)
    ]
    return "".join(whole).replace("](figures/", "](")


def condition_of(numbers: Path) -> str:
    """Return a comparison's data, sites, rounds, alpha and seeds; numbers: its results.csv."""
    from pandas import read_csv

    cells = read_csv(numbers)
    return condition(cells, cells["seed"].unique())


def page(name: str, first: str, head: str, body: str) -> str:
    """Return a study's page.

    first: its condition. head: the section on tuning. body: the comparison's report.
    """
    intro = (
        f"Made by `python -m bench.study {name}`: not written by hand. "
        "[Results](../../RESULTS.md) says what was found."
    )
    return f"# All tables: {name}\n\n{escaped(first)}\n\n{intro}\n\n{head}\n\n{body.strip()}\n"


def _head(study: Study) -> str:
    """Return the section that says where the methods' values come from."""
    if study.tuning:
        return tuning_section(_facts(study.tuning))
    if study.source:
        file = f"{study.name}.yaml"
        return (
            "## Tuning\n\nNone of its own: every method has the values that tuning chose for it "
            f"in `{study.source}`, except those that this grid gives it. "
            f"[{file}]({file}) has them all."
        )
    return (
        "## Tuning\n\nNone: every method has the values of "
        f"[its grid](../../../conf/sweeps/{sweeps()[study.name].name})."
    )


def tuning_section(facts: Mapping[str, Any]) -> str:
    """Return a table of candidates and choices: a row for each method.

    Where each setting was tuned by itself, it has a column.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for one in facts["candidates"]:
        of_method = found.setdefault(one["method"], {})
        of_method.setdefault(one.get("setting", ""), []).append(_candidate(one))
    names = looks(list(found), {})
    settings = list(
        dict.fromkeys(setting for by_setting in found.values() for setting in by_setting)
    )
    what = "Candidates: accuracy on validation images, %; **chosen**"
    heads = [f"{setting}: {what}" if setting else what for setting in settings]
    lines = [f"| Method | {' | '.join(heads)} |", "| --- |" + " --- |" * len(settings)]
    for method, by_setting in found.items():
        tried = ["; ".join(by_setting.get(setting, ())) for setting in settings]
        lines.append(f"| {names[method].label} | {' | '.join(tried)} |")
    seeds = ", ".join(map(str, facts["seeds"]))
    each = ", in each setting by itself" if any(settings) else ""
    intro = (
        f"{facts['budget']} candidates of every method, on {', '.join(facts['settings'])}, seed "
        f"{seeds}; the best mean accuracy on validation images is chosen{each}."
    )
    return f"## Tuning\n\n{intro}\n\n" + "\n".join(lines)


def _candidate(candidate: Mapping[str, Any]) -> str:
    values = ", ".join(f"{k.rpartition('.')[2]} {v}" for k, v in candidate["values"].items())
    text = f"{values}: {percent(candidate['validation_accuracy'])}".replace("_", " ")
    return f"**{text}**" if candidate["chosen"] else text


def main(names: Sequence[str]) -> None:
    """Run and publish the studies named, or all; an error prints one line and gives exit code 2."""
    chosen = names or studies()
    root = Path(os.environ.get("FEDAPP_OUT") or "~/fedapp-runs").expanduser()
    try:
        for name in chosen:
            published(run(name, root), DOCUMENT.parent / name, figures_shown(name))
            print(f"docs/results/{name}/{PAGE} is written")
            if f"]({name}/{PAGE})" not in DOCUMENT.read_text(encoding="utf-8"):
                print(f"{DOCUMENT.name} has no link to it: add [{name}]({name}/{PAGE})")
    except FedAppError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main(sys.argv[1:])
