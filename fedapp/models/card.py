"""A model card: what a person should know of a site's model before using it."""

from typing import Any

import yaml

from fedapp.ground.text import percent
from fedapp.learn.metrics import FEW
from fedapp.models.conformal import COVERAGE, caution
from fedapp.models.description import DESCRIPTION, TENSORS, Description, Measured, Part

CARD = "README.md"

_SAID = {
    "own": "the site's own model",
    "common": "the server's model",
    "tuned": "the site's model after it trained the server's last",
    "alone": "the model that the site trained alone, on its labelled images",
}


def card(description: Description) -> str:
    """Return the card, Markdown with the front matter that Hugging Face reads."""
    origin, recipe, results = description.origin, description.model, description.results
    matter = yaml.safe_dump(_front_matter(description), sort_keys=False, allow_unicode=True)
    blocks = [
        f"---\n{matter}---",
        f"# Model of site {origin.called}",
        f"A classifier of {len(recipe.classes)} classes, trained by federated learning "
        f"({origin.method}, round {origin.round}) for the data of one site. `{TENSORS}` holds "
        f"its tensors, `{DESCRIPTION}` all that is needed to use them:",
        "```\nfedapp predict THIS_FOLDER IMAGES --out answers.csv\n```",
        "## Intended use",
        "*To be filled in by the people who answer for this model: what it is for, who may use it, "
        "what it must not be used for, who checked it.* It has not been tested for any purpose.",
        "## Data",
        f"Trained at the site on {origin.labelled} labelled and {origin.unlabelled} unlabelled "
        "images, and through the federation on what other sites learned from theirs. *To be filled "
        "in: where the images come from, which people and devices they show, who labelled them.*",
        f"Inputs: {_inputs(description)}. Classes: {', '.join(recipe.classes)}.",
        "## What answers",
        "\n".join(map(_part, recipe.parts)),
        "## Results",
        "On labelled images of the same site that it did not learn from:",
        "\n".join(
            [
                "| images | right / of | accuracy, % | 95 % interval (Wilson) |",
                "|---|---|---|---|",
                _row("validation", results.val),
                _row("test", results.test),
            ]
        ),
        _exact(description),
        "## Limits",
        "\n".join(f"- {limit}" for limit in _limits(description)),
        "## Origin",
        f"Run `{origin.run}` (preset {origin.preset}, seed {origin.seed}), split "
        f"`{origin.split[:16]}`, code `{origin.code}`, torch {origin.versions.get('torch', '-')}.",
    ]
    return "\n\n".join(blocks) + "\n"


def _front_matter(description: Description) -> dict[str, Any]:
    """Return the metadata of the Hub's model cards; the licence is for people to choose."""
    origin, test = description.origin, description.results.test
    matter: dict[str, Any] = {
        "library_name": "um-pfssl",
        "tags": ["federated-learning", "semi-supervised", origin.method],
    }
    if description.model.images:
        matter["pipeline_tag"] = "image-classification"
    if test.accuracy is not None:
        task = "image-classification" if description.model.images else "tabular-classification"
        data = {
            "name": f"site {origin.called}, own test images",
            "type": "private",
            "split": "test",
        }
        metric = {"type": "accuracy", "value": round(test.accuracy, 4), "name": "accuracy"}
        found = {"task": {"type": task}, "dataset": data, "metrics": [metric]}
        matter["model-index"] = [{"name": f"{origin.run}-{origin.called}", "results": [found]}]
    return matter


def _inputs(description: Description) -> str:
    shape = " x ".join(map(str, description.model.inputs))
    return f"images of {shape} (channels, height, width)" if description.model.images else shape


def _part(part: Part) -> str:
    mix = "" if part.class_mix is None else ", times the site's class mix"
    return f"- {_SAID[part.name]}{mix}: {percent(part.weight)} %"


def _row(name: str, found: Measured) -> str:
    ends = " to ".join(map(percent, found.interval)) if found.images else "-"
    return f"| {name} | {found.right} / {found.images} | {percent(found.accuracy)} | {ends} |"


def _exact(description: Description) -> str:
    exact, note = description.results.exact, description.results.note
    if exact is None:
        return "The site has no test images: how good the model is is not known."
    return "These are the run's own numbers." if exact else f"Note: {note}."


def _limits(description: Description) -> list[str]:
    test = description.results.test
    limits = [
        "It answers for images like this site's: same devices, same kind of people, same mix of "
        "classes. Elsewhere it is untested.",
        "It always names one of its classes, for images of anything else too.",
        "Nobody has checked whether its probabilities are right as often as they say.",
        "A model can tell of the images that it learned from: it is as confidential as they are.",
    ]
    if test.images < FEW:
        limits.insert(0, f"It was tested on {test.images} images only: that says next to nothing.")
    if note := caution(description.calibration, COVERAGE):
        limits.append(f"Prediction sets of a coverage of {COVERAGE:g}: {note}.")
    if len(description.model.parts) > 1:
        limits.append("The weights of its networks come from the validation images.")
    if any(part.class_mix is not None for part in description.model.parts):
        limits.append(
            "It holds the site's class mix: how often each class occurs there, as the site "
            "estimates."
        )
    return limits
