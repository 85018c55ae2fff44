"""The benchmark of prototypes beside models: who is related, what labels are worth, its table."""

import torch

from bench.labelling import REFERENCE, TOP, most_related, worth
from bench.measure import spread
from bench.prototypes import by_seed, drawn, rows_of
from fedapp.data.parts import LABELLED, TEST, UNLABELLED, VAL, Part
from fedapp.data.sites import Audit, SiteData


def site(labels, hidden):
    def part(labels):
        count = 0 if labels is None else len(labels)
        return Part(torch.zeros(count, 1, 8, 8, dtype=torch.uint8), labels)

    none = torch.zeros(0, dtype=torch.int64)
    parts = {name: part(none) for name in (VAL, TEST)}
    parts |= {LABELLED: part(torch.tensor(labels))}
    parts |= {UNLABELLED: Part(torch.zeros(len(hidden), 1, 8, 8, dtype=torch.uint8), None)}
    return SiteData(0, parts, 2, (0.0,), (1.0,), Audit(torch.tensor(hidden)))


def test_what_labels_are_worth_by_hand():
    data = site([0], [0, 1, 1, 0])
    answers = torch.tensor([[0.96, 0.04], [0.97, 0.03], [0.4, 0.6], [0.6, 0.4]])
    assert worth(answers, data) == {
        "right, %": 75.0, "sure, %": 50.0, "right of the sure, %": 50.0,
    }  # fmt: skip
    unsure = worth(torch.full((4, 2), 0.5), data)
    assert (unsure["sure, %"], unsure["right of the sure, %"]) == (0.0, None)


def test_peers_that_are_right_and_tell_classes_apart_are_related_most():
    data = site([0, 1], [0, 1])
    good = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    one_sided = torch.tensor([[1.0, 0.0]] * 4)
    wrong = 1 - good
    wrong[2:] = 0.5
    answers = [wrong, one_sided, good, good, good, good]
    assert TOP == 4
    assert most_related(answers, data) == [2, 3, 4, 5]
    assert most_related([wrong, one_sided], data) == [1, 0]


def cells(kilobytes, right, sure=None):
    return {"kB": kilobytes, "right, %": right, "right of the sure, %": sure}


def results(first, second):
    """Two seeds of one site each."""
    ways = {REFERENCE: cells(100.0, 50.0), "prototypes": cells(1.0, first, 90.0)}
    others = {REFERENCE: cells(100.0, 60.0), "prototypes": cells(1.0, second)}
    return {("recommended", 0): {"3": ways}, ("recommended", 1): {"4": others}}


def test_the_table_by_hand():
    models, prototypes = rows_of(results(40.0, 80.0))
    assert models["right, %"] == "55.0 ± 7.1"
    assert (models["minus by models"], models["better, worse at"]) == ("+0.0", "0, 0 of 2")
    assert prototypes["kB"] == "1.0 ± 0.0"
    assert prototypes["right, %"] == "60.0 ± 28.3"
    assert prototypes["right of the sure, %"] == "90.0"  # of one seed alone
    assert prototypes["minus by models"] == "+5.0"  # -10 and +20
    assert prototypes["better, worse at"] == "1, 1 of 2"


def test_what_no_site_knows_is_empty():
    runs = list(results(1.0, 2.0).values())
    assert by_seed(runs, REFERENCE, "right of the sure, %") == []
    assert spread([]) == ""


def test_the_figure_has_a_panel_a_method_and_a_mark_a_way():
    found = results(40.0, 80.0)
    found |= {("um_pfssl_mi", seed): sites for (_, seed), sites in found.items()}
    figure = drawn(found, "made up")
    assert len(figure.axes) == 2
    labels = figure.axes[0].get_legend_handles_labels()[1]
    assert labels == [REFERENCE, "prototypes"]
    assert figure.axes[0].lines[0].get_xydata().tolist() == [[100.0, 55.0]]
