import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longhaul.core.errors import DataError
from longhaul.data import subwords
from longhaul.data.dataset import load_tokenizer
from longhaul.data.subwords import SubwordTokenizer, train_bpe
from longhaul.data.tokenizing import END_OF_TEXT

TEXTS = [f"The {kind} ship no. {n} sails\nand returns, doesn't it?\n\n" for n, kind in
         enumerate(["old", "quick", "heavy", "quiet"] * 10)]  # fmt: skip
BPE = train_bpe(TEXTS, 320, end_of_text=True)


@settings(deadline=None, max_examples=50)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=80))
def test_any_text_comes_back_whether_or_not_it_was_trained_on(text):
    assert BPE.decode(BPE.encode(text)) == text


def test_the_vocabulary_has_the_size_asked_for_with_end_of_text():
    assert (BPE.vocab_size, BPE.end_of_text) == (320, 0)
    assert len(BPE.encode(TEXTS[0])) < len(TEXTS[0]) / 2
    assert train_bpe(TEXTS, 320, end_of_text=False).end_of_text is None


def test_the_same_texts_give_the_same_vocabulary_in_another_process():
    script = (
        "from longhaul.data.subwords import train_bpe\n"
        f"print(train_bpe({TEXTS!r}, 320, True).sha256)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert ended.stdout.decode().strip() == BPE.sha256


def test_text_that_spells_end_of_text_does_not_become_it():
    ids = BPE.encode(f"a{END_OF_TEXT}b").tolist()
    assert BPE.end_of_text not in ids
    assert BPE.decode(ids) == f"a{END_OF_TEXT}b"


def edited(change) -> bytes:
    vocabulary = json.loads(BPE.content())
    change(vocabulary)
    return json.dumps(vocabulary).encode()


def test_nor_in_files_that_do_not_declare_it_special():
    content = edited(lambda v: v["added_tokens"][0].update(special=False))
    tokenizer = SubwordTokenizer(content, True, "x")
    assert tokenizer.end_of_text == 0
    assert 0 not in tokenizer.encode(f"a{END_OF_TEXT}b")


def test_truncation_and_padding_in_a_file_do_not_touch_documents():
    def change(vocabulary):
        vocabulary["truncation"] = {
            "direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0,
        }  # fmt: skip
        vocabulary["padding"] = {
            "strategy": {"Fixed": 100}, "direction": "Right", "pad_to_multiple_of": None,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "!",
        }  # fmt: skip

    tokenizer = SubwordTokenizer(edited(change), True, "x")
    assert tokenizer.encode(TEXTS[0]).tolist() == BPE.encode(TEXTS[0]).tolist()


@pytest.mark.parametrize("name", ["</s>", "<eos>", "<|end_of_text|>"])
def test_end_of_text_is_found_under_its_other_names(tmp_path, name):
    def change(vocabulary):
        vocabulary["added_tokens"][0]["content"] = name
        vocabulary["model"]["vocab"][name] = vocabulary["model"]["vocab"].pop(END_OF_TEXT)

    (tmp_path / "tokenizer.json").write_bytes(edited(change))
    assert load_tokenizer(tmp_path / "tokenizer.json").end_of_text == 0
    assert load_tokenizer(tmp_path / "tokenizer.json", end_of_text=False).end_of_text is None


def test_a_saved_tokenizer_is_the_same_tokenizer(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(BPE.content())
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert loaded.sha256 == BPE.sha256
    assert loaded.encode(TEXTS[0]).tolist() == BPE.encode(TEXTS[0]).tolist()


def test_long_texts_are_encoded_in_pieces_that_add_up(monkeypatch):
    text = "".join(TEXTS)
    monkeypatch.setattr(subwords, "_PIECE_CHARACTERS", 200)
    monkeypatch.setattr(subwords, "_BATCH_CHARACTERS", 500)
    first, second, third = BPE.encode_batch([text, "", "end"])
    assert BPE.decode(first) == text
    assert (len(second), BPE.decode(third)) == (0, "end")


def test_what_the_library_cannot_read_is_a_data_error():
    with pytest.raises(DataError, match=r"mine\.json: not a tokenizer"):
        SubwordTokenizer(b'{"model": {"type": "nothing"}}', True, "mine.json")
