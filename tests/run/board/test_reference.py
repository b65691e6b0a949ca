from pathlib import Path

import pytest

from longhaul.core.errors import UsageError
from longhaul.run.board.reference import read_reference


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "other.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_curve_is_read_by_its_heading_in_the_order_of_its_axis(tmp_path):
    found = read_reference(written(tmp_path, "note,loss,tokens\na,2.5,2e9\nb,3.5,1e9\n"))
    assert (found.name, found.axis) == ("other", "tokens")
    assert (found.x, found.loss) == ((1e9, 2e9), (3.5, 2.5))
    assert read_reference(written(tmp_path, "\ufeffstep,loss\r\n1,2\r\n")).axis == "step"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "columns are none"),
        ("a,b\n1,2\n", "columns are a, b"),
        ("step,loss\n", "no row"),
        ("step,loss\n1,two\n", "line 2: 'two' is no number"),
        ("step,loss\n1,nan\n", "line 2: 'nan' is no number"),
        ("step,loss\n1\n", "line 2: None is no number"),
        (b"step,loss\n\xff\xfe", "cannot be read"),
    ],
)
def test_a_file_that_is_none_is_refused_by_name(tmp_path, text, told):
    with pytest.raises(UsageError, match=r"other\.csv") as refused:
        read_reference(written(tmp_path, text))
    assert told in refused.value.message
    with pytest.raises(UsageError, match=r"missing\.csv: cannot be read"):
        read_reference(tmp_path / "missing.csv")
