import json

import pytest
import tokenizers

from longhaul.core.errors import UsageError
from longhaul.data.dataset import load_tokenizer
from longhaul.data.tokenizing import NumberTokenizer


def test_numbers_are_written_and_read_and_nothing_else_is(tmp_path):
    made = NumberTokenizer(300, end_of_text=True)
    assert made.end_of_text == 299
    assert made.encode("7 0 299").tolist() == [7, 0, 299]
    assert made.decode([7, 0, 299]) == "7 0 299"
    for word in ("300", "-1", "dog", "٣", "9" * 5000):
        with pytest.raises(UsageError, match="is no token"):
            made.encode(f"1 {word}")


def test_its_file_is_recognised_and_read_alike_by_the_library(tmp_path):
    made = NumberTokenizer(300, end_of_text=True)
    (tmp_path / "tokenizer.json").write_bytes(made.content())
    loaded = load_tokenizer(tmp_path / "tokenizer.json", end_of_text=False)
    assert isinstance(loaded, NumberTokenizer)
    assert (loaded.sha256, loaded.end_of_text) == (made.sha256, None)
    library = tokenizers.Tokenizer.from_str(made.content().decode())
    assert library.encode("7 0 299").ids == [7, 0, 299]
    assert json.loads(made.content())["model"]["vocab"]["299"] == 299
