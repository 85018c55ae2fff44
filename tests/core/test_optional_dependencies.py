"""What an extra brings, and the advice where it is not there."""

import pytest

from fedapp.core.errors import ConfigError
from fedapp.core.optional_dependencies import needs


def test_what_is_not_is_named_with_its_extra():
    with pytest.raises(ConfigError, match=r"absent_one is not installed: pip .*fedapp\[dicom\]"):
        needs("dicom", "absent_one.part")


@pytest.mark.parametrize(("code", "said"), [
    ("import absent_two", "half_there needs absent_two, which is absent: pip"),
    ("raise RuntimeError('no operator nms')", r"half_there cannot be imported \(no operator nms\)"),
])  # fmt: skip
def test_what_is_there_and_cannot_be_imported_is_named(tmp_path, monkeypatch, code, said):
    (tmp_path / "half_there.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=said):
        needs("onnx", "half_there")
