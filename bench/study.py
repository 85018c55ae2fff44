"""The studies of docs/RESULTS.md: tune every method, compare them all, write what came out.

`python -m bench.study [NAME ...]`: all grids results_*, second_* and crossing of conf/sweeps, or
those named. What was run before is kept, what was cut goes on; so a second call only writes the
document anew. Tables and figures of each go between `<!-- results:NAME -->` and
`<!-- /results:NAME -->`, its figures and its numbers into docs/results/NAME/.

What a grid says of tuning decides: `tune`: its methods are tuned, then compared; `tuned_from`: they
have what was chosen for that grid, which is tuned first; neither: they are compared as they are.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapp.experiment.presetfiles import sweeps
from fedapp.ground.disk import write_atomic
from fedapp.ground.errors import ConfigError, FedAppError
from fedapp.ground.text import percent
from fedapp.results.comparison.looks import looks
from fedapp.tools.compare.command import compare, tune
from fedapp.tools.compare.grid import read_grid
from fedapp.tools.compare.tuning import as_file, chosen_values, laid_over, write_grid

FIRST = ("results_fashion_mnist", "results_cifar10")
"""The studies that come first; the others follow by name."""
DOCUMENT = Path(__file__).parents[1] / "docs" / "RESULTS.md"
KEPT = ("results.csv", "rounds.csv")
"""Files of a comparison that lie beside its figures."""


@dataclass(frozen=True)
class Study:
    """A study that ran. comparison: its folder.

    grid: the file of its methods' tuned values; None where nothing was tuned.
    tuning: the folder of its own tuning; None where it has none. source: whose values it has then.
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
        write_grid(file, head, as_file(laid))
        study = Study(name, comparison, file, source=grid.tuned_from)
    else:
        study = Study(name, comparison)
    _succeeded(compare(str(study.grid or name), {}, out=comparison))
    return study


def _tuned(name: str, root: Path) -> Path:
    """Tune a grid and return the folder; quickly done where it was tuned before."""
    tuning = root / f"tune-{name}"
    _succeeded(tune(name, {}, out=tuning))
    return tuning


def _succeeded(code: int) -> None:
    if code:
        raise SystemExit(code)


def _facts(tuning: Path) -> Mapping[str, Any]:
    facts: Mapping[str, Any] = json.loads((tuning / "tuning.json").read_text(encoding="utf-8"))
    return facts


def published(text: str, study: Study, folder: Path) -> str:
    """Return the document with a study's block filled; copy its figures and numbers to `folder`."""
    name, comparison = study.name, study.comparison
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("*.png"), folder / "tuning.json", folder / f"{name}.yaml"):
        old.unlink(missing_ok=True)
    files = [comparison / kept for kept in KEPT]
    files += [study.grid] if study.grid else []
    files += [study.tuning / "tuning.json"] if study.tuning else []
    for file in (*files, *sorted((comparison / "figures").glob("*.png"))):
        shutil.copyfile(file, folder / file.name)
    report = (comparison / "tables.md").read_text(encoding="utf-8")
    _, _, body = report.partition("\n")  # the document has its own title
    body = body.replace("](figures/", f"](results/{name}/")
    lower = re.sub(r"^#", "##", body, flags=re.MULTILINE).strip()  # below the data set's heading
    return filled(text, name, f"{_head(study)}\n\n{lower}")


def filled(text: str, name: str, content: str) -> str:
    """Return the document with one block filled. Raises ConfigError where it has none."""
    opening, closing = f"<!-- results:{name} -->", f"<!-- /results:{name} -->"
    block = re.compile(f"{re.escape(opening)}\n.*?{re.escape(closing)}", re.DOTALL)
    if not block.search(text):
        raise ConfigError(f"block {name}: is missing; write {opening} and {closing} on two lines")
    return block.sub(lambda _: f"{opening}\n{content}\n{closing}", text)


def _head(study: Study) -> str:
    """Return the section that says where the methods' values come from."""
    if study.tuning:
        return tuning_section(_facts(study.tuning))
    if study.source:
        file = f"{study.name}.yaml"
        return (
            "### Tuning\n\nNone of its own: every method has the values that tuning chose for it "
            f"in `{study.source}`, except those that this grid gives it. "
            f"[{file}](results/{study.name}/{file}) has them all."
        )
    return (
        "### Tuning\n\nNone: every method has the values of "
        f"[its grid](../conf/sweeps/{study.name}.yaml)."
    )


def tuning_section(facts: Mapping[str, Any]) -> str:
    """Return what was tried and chosen, a row a method, and a column a setting tuned by itself."""
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
    return f"### Tuning\n\n{intro}\n\n" + "\n".join(lines)


def _candidate(candidate: Mapping[str, Any]) -> str:
    values = ", ".join(f"{k.rpartition('.')[2]} {v}" for k, v in candidate["values"].items())
    text = f"{values}: {percent(candidate['validation_accuracy'])}".replace("_", " ")
    return f"**{text}**" if candidate["chosen"] else text


def main(names: Sequence[str]) -> None:
    """Run and publish the studies named, or all; an error is one line and exit code 2."""
    chosen = names or studies()
    root = Path(os.environ.get("FEDAPP_OUT") or "~/um-pfssl-runs").expanduser()
    try:
        for name in chosen:  # before hours of work
            filled(DOCUMENT.read_text(encoding="utf-8"), name, "")
        for name in chosen:
            study = run(name, root)
            text = DOCUMENT.read_text(encoding="utf-8")
            text = published(text, study, DOCUMENT.parent / "results" / name)
            write_atomic(DOCUMENT, text.encode(), durable=False)
            print(f"{DOCUMENT.name}: block {name} written")
    except FedAppError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main(sys.argv[1:])
