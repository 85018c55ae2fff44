"""`fedapp models` and `fedapp predict` as a person sees them."""

import sys
from pathlib import Path

from rich.console import Console
from rich.progress import Progress as Bar

from fedapp.experiment.runpaths import find_run
from fedapp.ground.devices import pick_device
from fedapp.ground.disk import write_atomic
from fedapp.ground.text import percent, size
from fedapp.models.listing import list_images
from fedapp.models.model import load_model
from fedapp.models.predict import predict_all
from fedapp.server.peers import finished_run
from fedapp.tools.models.export import Exported, export


def write_models(run: str, console: Console) -> None:
    """Write the models of the run of this name or folder, and say where they are."""
    finished = finished_run(find_run(run))
    notes = set()
    for done in export(finished):
        console.print(_line(done), highlight=False, soft_wrap=True, markup=False)
        notes.add(done.description.results.note)
    for note in sorted(notes - {""}):
        console.print(f"Note: {note}", highlight=False, soft_wrap=True, markup=False)


def _line(done: Exported) -> str:
    test = done.description.results.test
    worth = "no test images"
    if test.images:
        ends = " to ".join(map(percent, test.interval))
        worth = f"{test.right} of {test.images} test images right, {ends} %"
    return f"{done.folder}  {size(done.size)}  {worth}"


def predict(model: Path, images: Path, out: Path | None) -> None:
    """Write a model's answers to images to a CSV file, or to standard output."""
    loaded, description = load_model(model, pick_device("auto"))
    listed = list_images(images)
    # Not to standard output, where the answers may go.
    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("images", total=len(listed))
        text = predict_all(
            loaded, description.model, listed, lambda done: bar.update(task, completed=done)
        )
    if out is None:
        sys.stdout.write(text)
    else:
        write_atomic(out, text.encode(), durable=False)
        print(f"{out}: {len(listed)} images", file=sys.stderr)
