"""What an extra brings, and the advice where it is not there."""

import pytest

from fedapp.core.errors import ConfigError
from fedapp.core.optional_dependencies import needs


def test_what_is_not_is_named_with_its_extra():
    with pytest.raises(ConfigError, match=r"absent_one is not installed: pip .*fedapp\[dicom\]"):
        needs("dicom", "absent_one.part")


def test_what_it_lacks_itself_is_not_taken_for_it(tmp_path, monkeypatch):
    (tmp_path / "half_there.py").write_text("import absent_two")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="absent_two"):
        needs("onnx", "half_there")
