"""Data in memory: what is taken, what is refused in a line, and that a run knows its own again."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

from fedapp import FedAppError, Federation, Site
from fedapp.core.errors import DataError
from fedapp.data.in_memory import GivenSites, digest_of, in_memory, registered

ROWS = torch.arange(24, dtype=torch.float32).view(8, 3)
LABELS = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1])
PIXELS = torch.arange(4 * 64, dtype=torch.uint8).view(4, 1, 8, 8)


class Pictures(Dataset):
    """As torchvision's data sets are: Pillow's images, and names of the classes."""

    classes = ["cat", "dog"]  # noqa: RUF012

    def __init__(self, mode="L"):
        self.mode = mode

    def __len__(self):
        return 3

    def __getitem__(self, k):
        return Image.new(self.mode, (9, 8), 40 * k if self.mode == "L" else (k, 0, 7)), k % 2


def kept(federation):
    return registered(federation.settings["data.name"])


def test_tensors_arrays_and_data_sets_are_the_same_data():
    digests = {
        digest_of(kept(Federation.dealt(data)))
        for data in (
            (ROWS, LABELS),
            (ROWS.numpy(), LABELS.numpy()),
            (ROWS.double(), LABELS.tolist()),
            TensorDataset(ROWS, LABELS),
        )
    }
    assert len(digests) == 1


def test_data_changed_in_place_afterwards_are_not_the_federations():
    rows, labels, numbers = ROWS.clone(), LABELS.clone(), ROWS.numpy().copy()
    federations = [
        Federation.dealt((rows, labels)),
        Federation([Site(labelled=(rows, labels), unlabelled=numbers, val=(numbers, labels))]),
    ]
    names = [federation.settings["data.name"] for federation in federations]
    rows += 1
    labels.zero_()
    numbers *= 2
    for name, federation in zip(names, federations, strict=True):
        assert name == f"memory:sha256_{digest_of(kept(federation))}"
    assert torch.equal(kept(federations[0]).inputs, ROWS)
    assert torch.equal(kept(federations[0]).labels, LABELS)
    assert torch.equal(kept(federations[1]).sites[0].parts["unlabelled"].inputs, ROWS)


def test_the_other_order_of_bytes_is_the_same_data_and_long_floats_are_refused():
    other = ROWS.numpy().astype(">f4")
    assert torch.equal(kept(federation := Federation.dealt((other, LABELS))).inputs, ROWS)
    assert federation.inputs == (3,)
    with pytest.raises(DataError, match="must be a tensor or array of uint8 or floats"):
        Federation.dealt((other.astype(np.longdouble), LABELS))


def test_equal_data_stay_as_long_as_one_holds_them():
    first = Federation.dealt((ROWS * 5, LABELS))
    name = Federation.dealt((ROWS * 5, LABELS)).settings["data.name"]  # and lets go of it
    assert torch.equal(registered(name).inputs, ROWS * 5)
    del first
    with pytest.raises(DataError, match="given in memory: give the same data again"):
        registered(name)


def test_the_name_of_the_data_is_their_content():
    first, same = Federation.dealt((ROWS, LABELS)), Federation.dealt((ROWS.clone(), LABELS))
    name = first.settings["data.name"]
    assert in_memory(name) and name == same.settings["data.name"]
    others = [
        Federation.dealt((ROWS + 1, LABELS)),
        Federation.dealt((ROWS, 1 - LABELS)),
        Federation.dealt((ROWS, LABELS), classes=["a", "b"]),
        Federation.dealt((ROWS.view(8, 3, 1), LABELS)),
        Federation([Site(labelled=(ROWS, LABELS))]),
    ]
    assert len({name, *(other.settings["data.name"] for other in others)}) == 6


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3)])
def test_a_data_set_of_pictures_becomes_pixels_and_names_its_classes(mode, channels):
    federation = Federation.dealt(Pictures(mode))
    data = kept(federation)
    assert data.inputs.shape == (3, channels, 8, 9) and data.inputs.dtype == torch.uint8
    assert data.inputs[2, 0, 0, 0] == (80 if mode == "L" else 2)
    assert federation.classes == ("cat", "dog") and federation.inputs == (channels, 8, 9)


def test_sites_keep_their_parts_and_are_standardised_by_their_training_inputs():
    half = (ROWS[4:], LABELS[4:])
    federation = Federation(
        [
            Site(labelled=(ROWS[:2], LABELS[:2]), unlabelled=ROWS[2:4], test=half),
            Site(unlabelled=TensorDataset(ROWS[:4], LABELS[:4]), val=half),
        ],
        classes=["no", "yes"],
    )  # fmt: skip
    sites = kept(federation)
    assert isinstance(sites, GivenSites) and federation.brings_sites
    first, second = sites.sites
    assert [len(part) for part in first.parts.values()] == [2, 0, 4, 2]
    assert torch.equal(second.unlabelled, ROWS[:4]) and second.labelled.shape == (0, 3)
    assert first.mean == second.mean == tuple(ROWS[:4].mean(0).tolist())
    assert first.audit is None and first.mu == 0.5 and second.mu == 0.0


PAIR = (ROWS, LABELS)
FINDINGS = torch.stack([LABELS, 1 - LABELS], 1)


@pytest.mark.parametrize(("wrong", "says"), [
    (lambda: Federation([]), "no sites"),
    (lambda: Federation([PAIR]), "site 0: tuple, must be a fedapp.Site"),
    (lambda: Federation([Site(test=PAIR)]), "site 0: nothing to learn from"),
    (lambda: Federation([Site(PAIR, name="a/b")]), "site 'a/b': a name is"),
    (lambda: Federation([Site(PAIR, name="a"), Site(PAIR)]), "give each a name"),
    (lambda: Federation([Site(PAIR, name="a"), Site(PAIR, name="a")]), "give each a name"),
    (lambda: Federation([Site(PAIR), Site((ROWS[:, :2], LABELS))]), "must be of one kind"),
    (lambda: Federation([Site(PAIR, test=(PIXELS, [0] * 4), name="a")]), "must be of one kind"),
    (lambda: Federation([Site((ROWS, LABELS[:3]), name="north")]), "site north: labelled: labels"),
    (lambda: Federation.dealt(ROWS), "must be inputs and labels"),
    (lambda: Federation.dealt((ROWS, LABELS.float())), "must be integers"),
    (lambda: Federation.dealt((ROWS, ["a"] * 8)), "must be integers"),
    (lambda: Federation.dealt((ROWS, LABELS - 1)), "number the classes from 0"),
    (lambda: Federation.dealt(PAIR, classes=["one"]), "2|name them all"),
    (lambda: Federation.dealt(PAIR, classes=["one", "one"]), "all different"),
    (lambda: Federation.dealt((ROWS, LABELS * 0)), "two or more"),
    (lambda: Federation.dealt((ROWS.long(), LABELS)), "torch.int64, must be"),
    (lambda: Federation.dealt((np.array(["x"] * 8), LABELS)), "must be a tensor or array"),
    (lambda: Federation.dealt((PIXELS[:, 0], [0, 1, 0, 1])), "must be uint8"),
    (lambda: Federation.dealt((ROWS / 0, LABELS)), "NaN or infinity"),
    (lambda: Federation.dealt(TensorDataset(ROWS)), r"items must be \(input, label\)"),
    (lambda: Federation.dealt(TensorDataset(ROWS[:0], LABELS[:0])), "is empty"),
    (lambda: Federation.dealt(Pictures("CMYK")), "mode CMYK"),
    (lambda: Federation.dealt((ROWS, FINDINGS)), "findings are not dealt by class"),
    (lambda: Federation([Site((ROWS, FINDINGS * 2))]), "must be 1 "),
    (lambda: Federation([Site((ROWS, FINDINGS[:3]))]), "one per input"),
    (lambda: Federation([Site((ROWS, np.ones((8, 2))))]), "must be integers"),
    (lambda: Federation([Site((ROWS, FINDINGS))], classes=["a"]), "labels have 2: name each"),
    (lambda: Federation([Site((ROWS, FINDINGS))], classes=["a,b", "c"]), "no comma"),
    (lambda: Federation([Site((ROWS, FINDINGS)), Site((ROWS, FINDINGS[:, :1]))]), "of 1 and 2 fin"),
    (lambda: Federation([Site((ROWS, FINDINGS)), Site(PAIR)]), "of no and 2 findings"),
])  # fmt: skip
def test_what_cannot_be_used_is_refused_in_a_line(wrong, says):
    with pytest.raises(FedAppError, match=says) as error:
        wrong()
    assert len(str(error.value).splitlines()) == 1


def test_patients_of_data_that_are_dealt():
    whose = ["p", "q", "p", "r", "s", "r", "q", "s"]
    pool = kept(Federation.dealt((ROWS, LABELS), patients=whose))
    assert pool.patients.tolist() == [0, 1, 0, 2, 3, 2, 1, 3]
    plain = Federation.dealt((ROWS, LABELS))
    other = Federation.dealt((ROWS, LABELS), patients=LABELS.tolist())
    assert kept(plain).patients is None
    assert len({digest_of(kept(one)) for one in (plain, other)} | {digest_of(pool)}) == 3
    with pytest.raises(DataError, match="patients are 2, must be 8"):
        Federation.dealt((ROWS, LABELS), patients=["p", "q"])


def test_patients_of_a_sites_own_parts():
    def site(**patients):
        return Site((ROWS[:3], LABELS[:3]), test=(ROWS[3:], LABELS[3:]), patients=patients)

    [one] = kept(Federation([site(labelled="aab", test="cdcde")])).sites
    assert one.test_groups.tolist() == [0, 1, 0, 1, 2] and one.by_patient
    assert one.patients["labelled"].unique(return_counts=True)[1].tolist() == [2, 1]
    without = Federation([Site((ROWS[:3], LABELS[:3]), test=(ROWS[3:], LABELS[3:]))])
    [plain] = kept(without).sites
    assert not plain.by_patient and plain.test_groups is None
    # The same images of other patients are other data, while both are held.
    other = Federation([site(labelled="abc", test="dedef")])
    assert len({one.digest, plain.digest, kept(other).sites[0].digest}) == 3
    assert len({f.settings["data.name"] for f in (without, other)}) == 2
    for wrong, said in (
        ({"labelled": "aab"}, "site 0: patients must name those of labelled, test: give all"),
        ({"labelled": "aab", "test": "accde"}, "site 0: patient 'a' is in two parts: choose one"),
        ({"labelled": "aa", "test": "cdcdef"}, "site 0: labelled: 2 patients of 3 inputs: give"),
        ({"labelled": ["a", "", "b"], "test": "cdcde"}, "site 0: input 1 and 0 more have no"),
    ):
        with pytest.raises(DataError, match=said):
            Federation([site(**wrong)])


def test_a_patient_in_both_training_parts_is_one():
    patients = {"labelled": "aab", "unlabelled": "bcccc"}
    [one] = kept(Federation([Site((ROWS[:3], LABELS[:3]), ROWS[3:], patients=patients)])).sites
    labelled, unlabelled = (one.patients[part].tolist() for part in ("labelled", "unlabelled"))
    assert labelled[2] == unlabelled[0] and len({*labelled, *unlabelled}) == 3


def test_patients_follow_their_images_where_nothing_is_read_in_some():
    findings = torch.tensor([[1, 0], [-1, -1], [0, 1]])
    test = torch.tensor([[-1, -1], [1, 1], [0, 0], [0, 1], [1, 0]])
    patients = {"labelled": "abc", "test": "defgh"}
    given = Site((ROWS[:3], findings), test=(ROWS[3:], test), patients=patients)
    [one] = kept(Federation([given], classes=["effusion", "mass"])).sites
    found = {part: of.tolist() for part, of in one.patients.items()}
    assert found == {"labelled": [0, 2], "unlabelled": [1], "test": [4, 5, 6, 7]}
    assert one.by_patient
