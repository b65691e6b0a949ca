import pytest

from longhaul.core.errors import DataError
from longhaul.data.dataset import load_tokenizer


@pytest.mark.parametrize("content", [b"", b"no json", b"[]", b'{"a": 1}', b"\xff"])
def test_what_is_no_tokenizer_says_so(tmp_path, content):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(DataError, match=r"not a tokenizer\.json"):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_a_missing_tokenizer_says_so(tmp_path):
    with pytest.raises(DataError, match=r"gone\.json"):
        load_tokenizer(tmp_path / "gone.json")
