"""What a site's models said of its test images, image by image: kept at the site, sent to nobody.

The file lies beside the model's folder, not in it: a model may be handed on, this may not. Of it
come the verdict, the intervals and the pictures of the site's own page.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load
from torch import Tensor

from fedapp.core.disk import write_atomic
from fedapp.evaluation.findings import two_class_names
from fedapp.evaluation.model_selection import Candidate, Choice
from fedapp.evaluation.reliability_warnings import (
    drift_warnings,
    label_mix_warnings,
    warnings_about,
)
from fedapp.learn.metrics import evaluation
from fedapp.learn.params import to_bytes
from fedapp.models.description import Description

EVIDENCE_SUFFIX: Final = ".evidence.safetensors"
MAX_MISTAKES: Final = 8
"""Mistakes whose images are kept."""

Kind = Literal["joined", "alone", "kept"]
"""joined: what the site would keep of what others had a part in. alone: of what it trained alone.
kept: the model in its folder, which is one of the two."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """Answers to a site's test images.

    labels: int64 [n], or [n, F] of findings. learned: the labels that it learned from, by class (or
    finding that is there), int64 [C]. answers:
    float32 [n, C] by kind. rounds: after which each was, with its place in a round's answers.
    mistakes: the kept model's wrong answers, the surest first, as places in the test images, int64
    [k]; images: of these, [k, *inputs], as they are. groups: which test images are of one patient,
    int64 [n]; empty: not known.
    """

    labels: Tensor
    learned: Tensor
    answers: Mapping[Kind, Tensor] = field(default_factory=dict)
    rounds: Mapping[Kind, tuple[int, int]] = field(default_factory=dict)
    mistakes: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    images: Tensor = field(default_factory=lambda: torch.empty(0))
    groups: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))

    @property
    def patients(self) -> NDArray[np.int64] | None:
        """Which test images are of one patient, [n]; None: not known."""
        return self.groups.numpy() if len(self.groups) else None

    def of(self, kind: Kind, candidate: Candidate | None) -> Tensor | None:
        """Return the answers of a candidate; None: they are not here."""
        if candidate is None or self.rounds.get(kind) != candidate.when:
            return None
        return self.answers[kind]

    def with_answers(self, kind: Kind, candidate: Candidate, answers: Tensor) -> Self:
        """Return it with what a candidate said."""
        return replace(
            self,
            answers={**self.answers, kind: answers},
            rounds={**self.rounds, kind: candidate.when},
        )

    def with_mistakes(self, inputs: Tensor) -> Self:
        """Return it with the kept model's surest mistakes. inputs: the test images, [n, ...]."""
        sure, wrong = surest_wrong(self.answers["kept"], self.labels)
        first = wrong[sure[wrong].argsort(descending=True, stable=True)][:MAX_MISTAKES]
        return replace(self, mistakes=first, images=inputs[first.to(inputs.device)].cpu())


def surest_wrong(answers: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return how sure the answer to each image is, [n], and which images are answered wrongly.

    answers: [n, C]. labels: int64 [n]; or [n, F], where it is the surest of an image's wrong ones.
    """
    if labels.ndim == 1:
        sure, said = answers.max(1)
        return sure, (said != labels).nonzero()[:, 0]
    wrong = (labels >= 0) & ((answers > 0.5) != (labels == 1))
    sure = torch.where(wrong, torch.maximum(answers, 1 - answers), 0).amax(1)
    return sure, wrong.any(1).nonzero()[:, 0]


def evidence_path(folder: Path) -> Path:
    """Return where the evidence of the model in a folder lies."""
    return folder.with_name(folder.name + EVIDENCE_SUFFIX)


def write_evidence(folder: Path, evidence: Evidence) -> None:
    """Write it beside a model's folder. Raises StoreError."""
    tensors = {
        "labels": evidence.labels, "learned": evidence.learned,
        "mistakes": evidence.mistakes, "images": evidence.images, "groups": evidence.groups,
        **{f"answers.{kind}": answers for kind, answers in evidence.answers.items()},
        **{f"rounds.{kind}": torch.tensor(when) for kind, when in evidence.rounds.items()},
    }  # fmt: skip
    write_atomic(evidence_path(folder), to_bytes(tensors), durable=False)


def read_evidence(folder: Path) -> Evidence | None:
    """Return what lies beside a model's folder; None: nothing, or not as it was written.

    It can be made anew by a run alone; without it all else works.
    """
    try:
        found = load(evidence_path(folder).read_bytes())
        kinds: tuple[Kind, ...] = ("joined", "alone", "kept")
        there = [kind for kind in kinds if f"answers.{kind}" in found]
        evidence = Evidence(
            labels=found["labels"],
            learned=found["learned"],
            answers={kind: found[f"answers.{kind}"] for kind in there},
            rounds={kind: _when(found[f"rounds.{kind}"]) for kind in there},
            mistakes=found["mistakes"],
            images=found["images"],
            groups=found.get("groups", torch.empty(0, dtype=torch.int64)),
        )
    except Exception:  # safetensors and torch have their own kinds
        return None
    shape = len(evidence.labels), len(evidence.learned)
    whole = all(answers.shape == shape for answers in evidence.answers.values())
    whole = whole and len(evidence.groups) in (0, len(evidence.labels))
    return evidence if whole and len(evidence.images) == len(evidence.mistakes) else None


def _when(pair: Tensor) -> tuple[int, int]:
    number, place = pair.tolist()
    return number, place


def model_warnings(made: Description, evidence: Evidence, choice: Choice) -> tuple[str, ...]:
    """Return the warnings about the kept model, from what it said of the site's test images."""
    classes, labels = made.model.classes, evidence.labels
    if (answers := evidence.answers.get("kept")) is None:  # it was lost: what was seen stands
        return made.lights
    found = warnings_about(
        evaluation(answers, labels),
        made.origin.labelled,
        two_class_names(classes) if made.model.finds else classes,
    )
    if made.model.finds:
        return (*found, *drift_warnings(choice.candidates))
    said = torch.bincount(answers.argmax(1), minlength=len(classes)).tolist()
    mixes = (
        label_mix_warnings(evidence.learned.tolist(), said, "test images")
        if made.origin.labelled
        else []
    )
    return (*found, *mixes, *drift_warnings(choice.candidates))
