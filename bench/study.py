"""The study of docs/RESULTS.md: tune every method, compare them all, write what came out.

`python -m bench.study [NAME ...]`: the grids of `STUDIES`, or those named. What was run before is
kept, what was cut goes on; so a second call only writes the document anew. Tables and figures of
each go between `<!-- results:NAME -->` and `<!-- /results:NAME -->`, its figures and its numbers
into docs/results/NAME/.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedapp.compare.command import compare, tune
from fedapp.disk import write_atomic
from fedapp.errors import ConfigError, FedAppError
from fedapp.figures import percent
from fedapp.report.looks import looks

STUDIES = ("results_fashion_mnist", "results_cifar10")
DOCUMENT = Path(__file__).parents[1] / "docs" / "RESULTS.md"
KEPT = ("results.csv", "rounds.csv")
"""Files of a comparison that lie beside its figures."""


def run(name: str, root: Path) -> tuple[Path, Path]:
    """Tune and compare a grid; return both folders. Raises SystemExit where a cell failed."""
    tuning, comparison = root / f"tune-{name}", root / f"compare-{name}"
    for code in (
        tune(name, {}, out=tuning),
        compare(str(tuning / f"{name}.yaml"), {}, out=comparison),
    ):
        if code:
            raise SystemExit(code)
    return tuning, comparison


def published(text: str, name: str, tuning: Path, comparison: Path, folder: Path) -> str:
    """Return the document with a study's block filled; copy its figures and numbers to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.png"):
        old.unlink()
    for file in (*(comparison / kept for kept in KEPT), tuning / f"{name}.yaml"):
        shutil.copyfile(file, folder / file.name)
    shutil.copyfile(tuning / "tuning.json", folder / "tuning.json")
    for figure in sorted((comparison / "figures").glob("*.png")):
        shutil.copyfile(figure, folder / figure.name)
    facts = json.loads((tuning / "tuning.json").read_text(encoding="utf-8"))
    report = (comparison / "tables.md").read_text(encoding="utf-8")
    _, _, body = report.partition("\n")  # the document has its own title
    body = body.replace("](figures/", f"](results/{name}/")
    lower = re.sub(r"^#", "##", body, flags=re.MULTILINE).strip()  # below the data set's heading
    return filled(text, name, f"{tuning_section(facts)}\n\n{lower}")


def filled(text: str, name: str, content: str) -> str:
    """Return the document with one block filled. Raises ConfigError where it has none."""
    opening, closing = f"<!-- results:{name} -->", f"<!-- /results:{name} -->"
    block = re.compile(f"{re.escape(opening)}\n.*?{re.escape(closing)}", re.DOTALL)
    if not block.search(text):
        raise ConfigError(f"block {name}: is missing; write {opening} and {closing} on two lines")
    return block.sub(lambda _: f"{opening}\n{content}\n{closing}", text)


def tuning_section(facts: Mapping[str, Any]) -> str:
    """Return what was tried and chosen, a row a method."""
    methods = list(dict.fromkeys(c["method"] for c in facts["candidates"]))
    names = looks(methods, {})
    lines = [
        "| Method | Candidates: accuracy on validation images, %; **chosen** |",
        "| --- | --- |",
    ]
    for method in methods:
        own = [c for c in facts["candidates"] if c["method"] == method]
        lines.append(f"| {names[method].label} | {'; '.join(map(_candidate, own))} |")
    seeds = ", ".join(map(str, facts["seeds"]))
    intro = (
        f"{facts['budget']} candidates of every method, on {', '.join(facts['settings'])}, seed "
        f"{seeds}; the best mean accuracy on validation images is chosen."
    )
    return f"### Tuning\n\n{intro}\n\n" + "\n".join(lines)


def _candidate(candidate: Mapping[str, Any]) -> str:
    values = ", ".join(f"{k.rpartition('.')[2]} {v}" for k, v in candidate["values"].items())
    text = f"{values}: {percent(candidate['validation_accuracy'])}".replace("_", " ")
    return f"**{text}**" if candidate["chosen"] else text


def main(names: Sequence[str]) -> None:
    """Run and publish the studies named, or all; an error is one line and exit code 2."""
    root = Path(os.environ.get("FEDAPP_OUT") or "~/um-pfssl-runs").expanduser()
    try:
        for name in names or STUDIES:
            folders = run(name, root)
            text = DOCUMENT.read_text(encoding="utf-8")
            text = published(text, name, *folders, DOCUMENT.parent / "results" / name)
            write_atomic(DOCUMENT, text.encode(), durable=False)
            print(f"{DOCUMENT.name}: block {name} written")
    except FedAppError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main(sys.argv[1:])
