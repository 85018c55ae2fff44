"""The evidence: answers of a site's models to its test images, image by image.

It stays at the site and is sent to nobody. The file lies beside the model's folder and not in it,
because a model may be handed on and the evidence may not. The verdict, the confidence intervals and
the pictures on the site's own page are made from it.
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
    cautions,
    drift_warnings,
    label_mix_warnings,
    warnings_about,
)
from fedapp.learn.metrics import evaluation
from fedapp.learn.params import to_bytes
from fedapp.models.description import Description

EVIDENCE_SUFFIX: Final = ".evidence.safetensors"
MAX_MISTAKES: Final = 8
"""The images of so many mistakes are kept."""

Kind = Literal["joined", "alone", "kept"]
"""Whose answers. joined: the model that the site would keep of those with a part of other sites.
alone: the one that it would keep of those it trained alone. kept: the model in its folder, which is
one of these two."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """Answers to a site's n test images.

    labels: int64 [n], or [n, F] of findings. learned: number of labels that the site learned from,
    by class (of a finding: how often it is there), int64 [C]. answers: probabilities by kind of
    model, float32 [n, C]. rounds: by kind, which candidate gave the answers (`Candidate.when`).
    mistakes: indices of test images that the kept model answers wrongly, the most confident first,
    int64 [k]; images: these images as they are, [k, *inputs]. groups: the number of each test
    image's patient, int64 [n]; empty: not known.
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
        """The number of each test image's patient, [n]; None: not known."""
        return self.groups.numpy() if len(self.groups) else None

    def compared(self, choice: Choice) -> tuple[Tensor | None, ...]:
        """Return the answers of the joined and the lone candidate that a verdict compares, [n, C].

        None: there is no such candidate, or its answers are not here.
        """
        here = {when: self.answers[kind] for kind, when in self.rounds.items()}
        return tuple(here.get(one.when) if one else None for one in choice.compared)

    def with_answers(self, kind: Kind, candidate: Candidate, answers: Tensor) -> Self:
        """Return the evidence with the answers of a candidate, [n, C], added or replaced."""
        return replace(
            self,
            answers={**self.answers, kind: answers},
            rounds={**self.rounds, kind: candidate.when},
        )

    def with_mistakes(self, inputs: Tensor) -> Self:
        """Return the evidence with the kept model's most confident mistakes.

        inputs: the test images, [n, *inputs].
        """
        sure, wrong = surest_wrong(self.answers["kept"], self.labels)
        first = wrong[sure[wrong].argsort(descending=True, stable=True)][:MAX_MISTAKES]
        return replace(self, mistakes=first, images=inputs[first.to(inputs.device)].cpu())


def surest_wrong(answers: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the confidence of each image's answer, [n], and the indices of the wrong answers.

    answers: probabilities [n, C]. labels: int64 [n], or [n, F] of findings. For findings the
    confidence is that of the most confident wrong answer of the image, and 0 without a wrong one.
    """
    if labels.ndim == 1:
        sure, answered = answers.max(1)
        return sure, (answered != labels).nonzero()[:, 0]
    wrong = (labels >= 0) & ((answers > 0.5) != (labels == 1))
    sure = torch.where(wrong, torch.maximum(answers, 1 - answers), 0).amax(1)
    return sure, wrong.any(1).nonzero()[:, 0]


def evidence_path(folder: Path) -> Path:
    """Return the path of the evidence of the model in a folder."""
    return folder.with_name(folder.name + EVIDENCE_SUFFIX)


def write_evidence(folder: Path, evidence: Evidence) -> None:
    """Write the evidence beside a model's folder. Raises StoreError."""
    tensors = {
        "labels": evidence.labels, "learned": evidence.learned,
        "mistakes": evidence.mistakes, "images": evidence.images, "groups": evidence.groups,
        **{f"answers.{kind}": answers for kind, answers in evidence.answers.items()},
        **{f"rounds.{kind}": torch.tensor(when) for kind, when in evidence.rounds.items()},
    }  # fmt: skip
    write_atomic(evidence_path(folder), to_bytes(tensors), durable=False)


def read_evidence(folder: Path) -> Evidence | None:
    """Return the evidence beside a model's folder; None where there is none, or it is damaged.

    Only a run can make it anew. Everything else works without it.
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


def model_cautions(made: Description, evidence: Evidence) -> tuple[str, ...]:
    """Return what to know before the kept model is used, in three sentences."""
    if (answers := evidence.answers.get("kept")) is None:  # lost: the earlier ones stay
        return made.cautions
    found, learned = evaluation(answers, evidence.labels), evidence.learned.tolist()
    finds, alone = made.model.finds, made.choice.helped is False
    return tuple(cautions(found, made.model.classes, learned, finds=finds, alone=alone))


def model_warnings(made: Description, evidence: Evidence, choice: Choice) -> tuple[str, ...]:
    """Return the warnings about the kept model, from its answers to the site's test images."""
    classes, labels = made.model.classes, evidence.labels
    if (answers := evidence.answers.get("kept")) is None:  # lost: the earlier warnings stay
        return made.lights
    found = warnings_about(
        evaluation(answers, labels),
        made.origin.labelled,
        two_class_names(classes) if made.model.finds else classes,
    )
    if made.model.finds:
        return (*found, *drift_warnings(choice.candidates))
    answer_mix = torch.bincount(answers.argmax(1), minlength=len(classes)).tolist()
    mixes = (
        label_mix_warnings(evidence.learned.tolist(), answer_mix, "test images")
        if made.origin.labelled
        else []
    )
    return (*found, *mixes, *drift_warnings(choice.candidates))
