"""`fedapp check` of images with more than 8 bits: what they are, and the window they need."""

import numpy as np
import pytest

from fedapp.core import optional_dependencies
from fedapp.data.own import list_own
from fedapp.data.window import Ramp, StoredImage
from fedapp.models.listing import list_images
from fedapp.tools.check.inputs import Depth, depth_of, kinds, remarks_on_depth, suggested
from tests.imagefiles import dicom, raster
from tests.own import agreed, experiment
from tests.tools.check.test_check import findings, roomy, said

__all__ = ["roomy"]

VALUES = np.arange(1000).reshape(40, 25).astype(np.uint16)
DEEP = depth_of(StoredImage("16-bit PNG", VALUES))
SHALLOW = Depth("8-bit PNG")


def seen(values=(0, 4095), usual=(0, 4095), window=None, kind="12-bit DICOM"):
    return Depth(kind, values, usual, window)


def test_the_depth_of_an_image_by_hand():
    assert DEEP.values == (0, 999) and DEEP.usual == pytest.approx((4.995, 994.005))
    assert depth_of(StoredImage("8-bit PNG", VALUES.astype(np.uint8))) == SHALLOW
    own = depth_of(StoredImage("12-bit DICOM", VALUES, Ramp(5, 9)))
    assert own.window == (5, 9)


def test_kinds_and_values_of_all():
    said_of = kinds([SHALLOW, DEEP, seen((-5, 50), kind="16-bit PNG")])
    assert said_of == "16-bit PNG, values -5 to 999; 8-bit PNG"
    assert kinds([]) == "none could be read"


def test_which_window_is_suggested():
    assert suggested([DEEP, DEEP]) == "'5, 994'"
    assert suggested([seen(window=(0, 99))] * 2) == "'0, 99'"
    assert suggested([seen(window=(0, 99)), seen(window=(1, 99))]).startswith("dicom ")
    assert suggested([seen(window=(0, 99)), seen()]) == "'0, 4095'"
    assert suggested([seen(usual=(7, 7))]) == "'7, 8'"


@pytest.mark.parametrize(
    ("window", "depths", "what"),
    [
        ("", [SHALLOW], []),
        ("0, 4095", [seen()], []),
        ("dicom", [seen(window=(0, 9))], []),
        ("", [seen()], ["DICOM of more than 8 bits, values 0 to 4095: data.window is not set"]),
        ("dicom", [seen(window=(0, 9)), DEEP],
         ["PNG of more than 8 bits, values 0 to 999: some have no window of their own"]),
        ("0, 65535", [seen()],
         ["data.window = '0, 65535': the middle 99 % of your values take 17 of 256 levels"]),
        ("9000, 9999", [seen()],
         ["data.window = '9000, 9999': the middle 99 % of your values take 1 of 256 levels"]),
        ("0, 4095", [seen(), SHALLOW], ["8-bit images among DICOM of more bits"]),
    ],
)  # fmt: skip
def test_what_is_said_of_the_window(window, depths, what):
    found = list(remarks_on_depth(depths, agreed(window=window)))
    assert [remark.what for remark in found] == what
    assert [f.fault for f in found] == ["more than 8 bits" in text for text in what]


def test_without_a_preset_it_is_a_note():
    [found] = remarks_on_depth([seen()], None)
    assert not found.fault and "these images suggest '0, 4095'" in found.remedy


def folder(path):
    for k in range(3):
        raster(path / "unlabelled" / f"{k}.png", VALUES * 4 + k)
        dicom(path / "unlabelled" / f"{k}.dcm", VALUES * 4 + k)
    return path


def test_a_folder_of_several_kinds(tmp_path):
    code, output = said(folder(tmp_path))
    [fault] = findings(output)
    assert code == 1 and fault.startswith("DICOM and PNG of more than 8 bits, values 0 to 3998: ")
    assert "16-bit PNG, values 0 to 3998" in " ".join(output.split())
    fit = experiment(tmp_path, data=agreed(window="0, 4095"))
    code, output = said(tmp_path, experiment=fit)
    assert code == 0 and findings(output) == []
    assert any("all of 6 images" in n or "6 of 6 images" in n for n in findings(output, "note"))


def test_without_the_extra_it_is_said_once(tmp_path, monkeypatch):
    folder(tmp_path)

    def absent(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(optional_dependencies, "import_module", absent)
    code, output = said(tmp_path, experiment=experiment(tmp_path, data=agreed(window="0, 9999")))
    [fault] = findings(output)
    assert code == 1 and fault.startswith("DICOM files, but pydicom is not installed | pip install")


def test_dicom_without_its_ending_is_read(tmp_path):
    folder(tmp_path)
    for name in ("IM0001", "1.2.840.113619.2.55"):
        dicom(tmp_path / "unlabelled" / name, VALUES)
    (tmp_path / "unlabelled" / "notes").write_text("no DICOM")
    _, output = said(tmp_path)
    assert any(line.startswith("1 file ignored, by ending: none (1)") for line in
               findings(output, "note"))  # fmt: skip
    fit = experiment(tmp_path, data=agreed(window="0, 4095"))
    assert findings(said(tmp_path, experiment=fit)[1]) == []
    assert len(list_own(tmp_path, ()).entries) == len(list_images(tmp_path)) == 8


def test_a_damaged_file_is_one_line_each(tmp_path):
    folder(tmp_path)
    (tmp_path / "unlabelled" / "0.dcm").write_bytes(b"no DICOM")
    (tmp_path / "unlabelled" / "1.png").write_bytes(b"no PNG")
    fit = experiment(tmp_path, data=agreed(window="0, 4095"))
    found = findings(said(tmp_path, experiment=fit)[1])
    assert [line.partition(":")[0] for line in found] == ["unlabelled/0.dcm", "unlabelled/1.png"]
