"""A site's own page: verdict first, numbers that are the metrics', no number of a few images."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedapp.core.errors import ConfigError, RunError
from fedapp.evaluation.classification_metrics import confusion_matrix, one_vs_rest, sensitivity
from fedapp.evaluation.model_selection import Candidate, Choice
from fedapp.evaluation.verdict import verdict
from fedapp.models.description import read_description
from fedapp.models.evidence import (
    MAX_MISTAKES,
    Evidence,
    evidence_path,
    read_evidence,
    write_evidence,
)
from fedapp.models.folder import write_model
from fedapp.reports.site_report import site_page, view_of_model
from tests.models.made import pictures, written
from tests.reports.pages import check

ONE, LONE = Candidate(3, "used", False, 9, 10, 0, 0), Candidate(0, "alone", True, 1, 10, 0, 0)


def evidence(labels, classes=4, seed=0):
    """A joined model that is right nearly always, one trained alone that hardly ever is."""
    stream = torch.Generator().manual_seed(seed)
    labels = torch.as_tensor(labels)
    hot = torch.nn.functional.one_hot(labels, classes).float()
    noise = torch.rand(2, len(labels), classes, generator=stream)
    joined, alone = (torch.softmax(3 * (part + way * hot), 1)
                     for part, way in zip(noise, (0.7, 0.1), strict=True))  # fmt: skip
    found = Evidence(labels, torch.bincount(labels, minlength=classes))
    for kind, of, answers in (
        ("joined", ONE, joined),
        ("alone", LONE, alone),
        ("kept", ONE, joined),
    ):
        found = found.with_answers(kind, of, answers)
    return found.with_mistakes(pictures(len(labels)))


def folder_of(tmp_path, found):
    """A model's folder with the evidence beside it, and the verdict that it has."""
    folder = tmp_path / "model"
    written(folder)
    write_evidence(folder, found)
    both = (found.answers[kind].double().numpy() for kind in ("joined", "alone"))
    said = verdict(*both, found.labels.numpy())
    held = read_description(folder)
    choice = replace(held.choice, verdict=said, candidates=(LONE, ONE))
    write_model(folder, replace(held, choice=choice))
    return folder


def shown(folder, **more):
    """Return the page's text; its pictures' bytes are no addresses."""
    text = site_page(view_of_model(folder, **more))
    return check(re.sub(r"base64,[A-Za-z0-9+/=]+", "", text)).text


def test_the_verdict_stands_first_and_the_numbers_are_the_metrics(tmp_path):
    found = evidence([0, 1, 2, 3] * 30)
    folder = folder_of(tmp_path, found)
    text, said = shown(folder), read_description(folder).choice.verdict
    assert said.said == "paid"
    assert text.index(said.line) < text.index("What joining brought") < text.index("The model")
    answers, labels = found.answers["kept"].double().numpy(), found.labels.numpy()
    share = sensitivity(confusion_matrix(answers, labels))[2] * 100
    assert f"{share:.1f} (" in text
    for one in one_vs_rest(answers / answers.sum(1, keepdims=True), labels, 0.9):
        assert f"{one.auroc * 100:.1f}" in text
    assert "Protocol" not in text and "Left out" not in text


def test_a_class_of_few_images_has_no_number(tmp_path):
    labels = [0] * 40 + [1] * 40 + [2] * 3
    text = shown(folder_of(tmp_path, evidence(labels)))
    assert "2: 3 images; class 3: 0 images: cannot be said." in text
    assert "as means over classes cannot be said: some class has 3 test images." in text
    assert "Balanced accuracy 9" not in text


@pytest.mark.parametrize(("labels", "said"), [
    ([1] * 21, "class 1: 21 of 21 found."),
    ([0, 1, 2, 3] * 10, "Of each of the 4 100.0 % are found."),
])  # fmt: skip
def test_where_all_is_right_nothing_is_found_least_and_no_interval_has_no_width(
    tmp_path, labels, said
):
    found = evidence(labels)
    sure = torch.nn.functional.one_hot(found.labels, 4).float()
    found = replace(found.with_answers("kept", ONE, sure), mistakes=found.mistakes[:0])
    found = replace(found, images=found.images[:0])
    text = shown(folder_of(tmp_path, found))
    assert said in text and "Found least" not in text
    assert "0.000 -" in text and "No interval (-): all resamples" in text
    assert not re.search(r"([0-9.]{3,}) to \1(?![0-9.])", text)
    assert "Before you use it" in text


def test_its_surest_mistakes_are_shown_and_no_more(tmp_path):
    found = evidence([0, 1, 2, 3] * 30, seed=1)
    sure, said = found.answers["kept"].max(1)
    wrong = said != found.labels
    assert wrong.sum() > 1
    first = found.mistakes.tolist()
    assert len(first) == min(MAX_MISTAKES, int(wrong.sum()))
    assert sure[first].tolist() == sorted(sure[wrong].tolist(), reverse=True)[: len(first)]
    text = site_page(view_of_model(folder_of(tmp_path, found)))
    assert text.count("data:image/png;base64,") == 2 * len(first), "narrow and wide"


def test_without_evidence_or_test_images_it_says_so(tmp_path):
    found = evidence([0, 1] * 30)
    folder = folder_of(tmp_path, found)
    evidence_path(folder).unlink()
    assert read_evidence(folder) is None
    assert "no more can be measured" in shown(folder)
    nothing = evidence(torch.empty(0, dtype=torch.int64))
    assert "without test images" in shown(folder_of(tmp_path / "other", nothing))


def test_evidence_comes_back_as_it_was_and_damage_is_nothing(tmp_path):
    found = evidence([0, 1, 2, 3] * 10)
    folder = folder_of(tmp_path, found)
    again = read_evidence(folder)
    assert torch.equal(again.labels, found.labels) and again.rounds == found.rounds
    joined, alone = again.compared(Choice((LONE, ONE)))
    assert torch.equal(joined, found.answers["joined"])
    assert torch.equal(alone, found.answers["alone"])
    assert again.compared(Choice((replace(LONE, round=1), replace(ONE, round=4)))) == (None, None)
    assert again.compared(Choice()) == (None, None)
    path = evidence_path(folder)
    whole = path.read_bytes()
    for damaged in (b"", whole[:-9], b"no tensors at all"):
        path.write_bytes(damaged)
        assert read_evidence(folder) is None
    assert path.parent == folder.parent, "not in the folder, which may be handed on"


def test_bad_input_is_refused_in_one_line(tmp_path):
    found = evidence([0, 1, 2, 3] * 10)
    folder = folder_of(tmp_path, found)
    with pytest.raises(ConfigError, match=r"specificity is 90, must lie between 0 and 1"):
        view_of_model(folder, at=90)
    answers = found.answers["kept"].clone()
    answers[3, 1] = np.nan
    write_evidence(folder, found.with_answers("kept", ONE, answers))
    with pytest.raises(RunError, match="the model answers NaN"):
        view_of_model(folder)


def test_where_patients_are_known_intervals_are_theirs(tmp_path):
    """Every answer stands there six times: by patient as wide as once, by image far narrower."""
    labels = torch.arange(40).repeat_interleave(6) % 4
    found = evidence(labels)
    first = torch.arange(240) // 6 * 6
    answers = {kind: one[first] for kind, one in found.answers.items()}
    plain = replace(found, answers=answers)
    by_patient = replace(plain, groups=torch.arange(240) // 6)
    pages = [shown(folder_of(tmp_path / name, one))
             for name, one in (("a", plain), ("b", by_patient))]  # fmt: skip
    assert "by patient" not in pages[0] and "240 images of 40 patients" in pages[1]
    assert pages[0] != pages[1]
    assert read_evidence(tmp_path / "b" / "model").patients.tolist() == [i // 6 for i in range(240)]
