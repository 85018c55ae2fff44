"""The model card: what a person should know about a site's model before using it.

It is Markdown with the front matter that Hugging Face reads, and has the fields of CHAI's applied
model card, which health systems use. Fields that only people can fill in are left open and marked.
"""

from typing import Any

import yaml

from fedapp.core.formatting import counted, percent
from fedapp.core.names import markdown_escaped
from fedapp.evaluation.confidence_intervals import MIN_TEST_IMAGES
from fedapp.evaluation.model_selection import USED, Candidate
from fedapp.evaluation.verdict import SiteJoining
from fedapp.models.conformal import DEFAULT_COVERAGE, coverage_caution
from fedapp.models.description import (
    DESCRIPTION,
    TENSORS,
    AllSitesSummary,
    Description,
    MeasuredAccuracy,
    ModelPart,
    Recipe,
)

CARD = "README.md"

ANSWER_NAMES = {
    USED: "the answer that the site used",
    "own": "the site's own model",
    "common": "the server's model",
    "tuned": "the site's model after it trained the server's last",
    "alone": "the model that the site trained alone, on its labelled images",
}
"""Names, in texts for people, of a site's answers and of the networks that give them."""
MIN_VALIDATION_IMAGES = 50
"""With fewer validation images the selection among models is mostly luck."""


def model_card(description: Description) -> str:
    """Return the model card, as Markdown."""
    origin, recipe, results = description.origin, description.model, description.results
    method, classes = (
        markdown_escaped(origin.method),
        ", ".join(map(markdown_escaped, recipe.classes)),
    )
    matter = yaml.safe_dump(_front_matter(description), sort_keys=False, allow_unicode=True)
    blocks = [
        f"---\n{matter}---",
        f"# Model of site {markdown_escaped(origin.called)}",
        f"**{joining_verdict(description)}**",
        "\n".join(f"- {said}" for said in description.cautions),
        *(
            f"**Warning.** {light}"
            for light in description.lights
            if light not in description.cautions
        ),
        *([f"**Privacy.** {description.claim}"] if description.claim else []),
        "**Research software, no medical device: not for the care of a patient.**",
        f"A classifier of {len(recipe.classes)} {_what(recipe)}, trained by federated learning "
        f"({method}, round {origin.round}) for the data of one site. `{TENSORS}` holds "
        f"its tensors, `{DESCRIPTION}` all that is needed to use them:",
        "```\nfedapp predict THIS_FOLDER IMAGES --out answers.csv\n```",
        _asked("Developer, contact", "who answers for this model, and how they are reached"),
        _asked("Release", "date, version, stage (research, pilot, in use), approvals"),
        "## Intended use",
        _asked(
            "",
            "what it is for, in which work flow, who may use it, on whose images, and who checked "
            "it. It has not been tested for any purpose",
        ),
        _asked("Out of scope", "what it must not be used for"),
        "## Data",
        f"Trained at the site on {origin.labelled} labelled and {origin.unlabelled} unlabelled "
        "images, and through the federation on what other sites learned from theirs. Inputs: "
        f"{_inputs(description)}. {_what(recipe).capitalize()}: {classes}.",
        _asked(
            "", "where the images come from, which people and devices they show, who labelled them"
        ),
        "## What answers",
        "\n".join(map(_part, recipe.parts)),
        "## Why this model",
        *_why(description),
        "## Performance",
        "On labelled images of the same site that it did not learn from:",
        "\n".join(
            [
                f"| {'findings' if recipe.finds else 'images'} | right / of | accuracy, % "
                "| 95 % interval | calibration error, % |",
                "|---|---|---|---|---|",
                _row("validation", results.val),
                _row("test", results.test),
            ]
        ),
        _exact(description),
        *_others(description.others),
        "## Limits and known risks",
        "\n".join(f"- {limit}" for limit in _limits(description)),
        "## Bias",
        "It was measured over all test images of the site together, not by groups of people.",
        _asked("", "for whom it is worse: by age, sex, origin, device"),
        "## Maintenance",
        _asked("", "who watches how often it is right, how often, and when it is withdrawn"),
        "## Origin",
        f"Run {markdown_escaped(origin.run)} (preset {markdown_escaped(origin.preset)}, "
        f"seed {origin.seed}), split "
        f"`{origin.split[:16]}`, code `{origin.code}`, torch {origin.versions.get('torch', '-')}.",
    ]
    return "\n\n".join(filter(None, blocks)) + "\n"


def _what(recipe: Recipe) -> str:
    return "findings" if recipe.finds else "classes"


def _asked(field: str, what: str) -> str:
    """Return a field that only people can fill in."""
    return f"{f'**{field}:** ' if field else ''}*To be filled in: {what}.*"


def _front_matter(description: Description) -> dict[str, Any]:
    """Return the metadata of Hugging Face's model cards, without a licence: people choose it."""
    origin, test = description.origin, description.results.test
    matter: dict[str, Any] = {
        "library_name": "fedapp",
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


def _part(part: ModelPart) -> str:
    mix = "" if part.class_mix is None else ", times the site's class mix"
    return f"- {ANSWER_NAMES[part.name]}{mix}: {percent(part.weight)} %"


def _why(description: Description) -> list[str]:
    """Return the blocks that say by which rule the model was selected, and from what."""
    choice = description.choice
    rule = f"Chosen by the site itself: {choice.rule}."
    head = "| round | answer | validation, right | test, right |\n|---|---|---|---|"
    rows = [_candidate(one, description) for one in choice.candidates]
    return [rule, "\n".join([head, *rows]), *filter(None, [preferred(choice.helped)])]


def joining_verdict(description: Description) -> str:
    """Return the sentence that says whether joining paid, as far as the test images tell."""
    if (verdict := description.choice.verdict) is None:
        return "Whether joining paid was not asked: the run did not keep what it takes."
    origin, test = description.origin, description.results.test
    right = (test.right, test.images) if test.images else None
    return SiteJoining(origin.called, verdict, origin.labelled, right).line


def when(description: Description) -> str:
    """Return the round after which the model was taken, as text."""
    number = description.origin.round
    return f"round {number}" if number else "after the warm-up"


def preferred(helped: bool | None) -> str:
    """Return the sentence that says which kind of model the rule prefers; "": it had no choice."""
    if helped is None:
        return ""
    kept = "what other sites had a part in" if helped else "what the site trained alone"
    return f"Of what it was chosen from, the rule keeps {kept}."


def _candidate(one: Candidate, description: Description) -> str:
    origin, answer = description.origin, description.choice.answer
    kept = " **(kept)**" if (one.round, one.answer) == (origin.round, answer) else ""
    alone = ", trained alone" if one.alone and one.answer != "alone" else ""
    counts = (one.val_right, one.val_images), (one.test_right, one.test_images)
    val, test = (f"{right} / {images}" if images else "-" for right, images in counts)
    return f"| {one.round} | {ANSWER_NAMES[one.answer]}{alone}{kept} | {val} | {test} |"


def _row(name: str, found: MeasuredAccuracy) -> str:
    ends = found.ends if found.images else "-"
    worth = f"{percent(found.accuracy)} | {ends} | {percent(found.calibration_error)}"
    return f"| {name} | {found.right} / {found.images} | {worth} |"


def _exact(description: Description) -> str:
    exact, note = description.results.exact, description.results.note
    if exact is None:
        return "The site has no test images, so nobody knows how good the model is."
    return "These are the run's own numbers." if exact else f"Note: {note}."


def _others(others: AllSitesSummary | None) -> list[str]:
    """Return the blocks that say how good the models of all sites are, where that is known."""
    if others is None:
        return ["How good the models of the other sites are is not known here."]
    rows = ["| share of labels (mu) | sites | right / of | accuracy, % |", "|---|---|---|---|"]
    for group in others.groups:
        share = percent(group.right / group.images if group.images else None)
        rows.append(
            f"| {group.labels} | {group.sites} | {group.right} / {group.images} | {share} |"
        )
    return [
        "The models of all sites of the run, on their own test images, by share of labels:",
        "\n".join(rows),
    ]


def _limits(description: Description) -> list[str]:
    val, test = description.results.val, description.results.test
    limits = [
        "It is made for images like this site's: same devices, same kind of people, same mix of "
        "classes. Elsewhere it is untested.",
        "It answers for images of anything else too. Nobody has chosen from which probability on a "
        "finding counts as present."
        if description.model.finds
        else "It always names one of its classes, for images of anything else too.",
        "Whether its probabilities can be trusted was checked only by the calibration error above.",
        "A model can reveal something about its training images: it is as confidential as they "
        "are. Neither clipping nor noise (`privacy`) protects what the site keeps.",
    ]
    if description.model.finds:
        limits.append(
            "Counts and intervals above are of findings read, each for itself; several of one "
            "image say less than as many of different ones, so the intervals are too narrow."
        )
    if test.images < MIN_TEST_IMAGES:
        tested = counted(test.images, "images")
        limits.insert(0, f"It was tested on only {tested}, which says almost nothing.")
    if 0 < val.images < MIN_VALIDATION_IMAGES:
        limits.append(
            f"Chosen by only {counted(val.images, 'validation images')}, largely by chance."
        )
    note = (
        ""
        if description.model.finds
        else coverage_caution(description.calibration, DEFAULT_COVERAGE)
    )
    if note:
        limits.append(f"Prediction sets of a coverage of {DEFAULT_COVERAGE:g}: {note}.")
    if len(description.model.parts) > 1:
        limits.append("The weights of its networks come from the validation images.")
    if any(part.class_mix is not None for part in description.model.parts):
        limits.append(
            "It holds the site's class mix: how often each class occurs there, as the site "
            "estimates."
        )
    return limits
