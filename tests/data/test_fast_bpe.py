import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longhaul.data import subwords
from longhaul.data.fast_bpe import fast_bpe
from longhaul.data.sources import stdlib_folder
from longhaul.data.subwords import SubwordTokenizer, from_gpt2, train_bpe
from longhaul.data.tokenizing import END_OF_TEXT, byte_symbols

STDLIB = [path.read_text() for path in sorted(stdlib_folder().glob("[a-h]*.py"))]
BPE = train_bpe(STDLIB[:40], 2000, end_of_text=True)
FAST = fast_bpe(BPE.content())
HOSTILE = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.sampled_from(" \n\r\t'sSſtdmlLvReK09٣²Ⅷé\u0301\u200b\u00a0\u3000\x1c\x85"),
    ),
    max_size=60,
)


def same(tokenizer, fast, texts) -> bool:
    slow = tokenizer._by_library(texts)
    return all(map(np.array_equal, slow, fast.encode_batch(texts)))


@settings(deadline=None, max_examples=200)
@given(HOSTILE)
def test_any_text_has_the_same_tokens(text):
    assert same(BPE, FAST, [text])


def test_so_has_a_large_body_of_text():
    assert sum(map(len, STDLIB)) > 1_000_000
    assert same(BPE, FAST, STDLIB)


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["a{}b ", "1{}2", " {} ", "'{}x", "{}\n", "!{}!", "\n{}  "])
def test_every_character_has_the_same_tokens_wherever_it_stands(shape):
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    texts = ["".join(map(shape.format, characters[at::23])) for at in range(23)]
    assert same(BPE, FAST, texts)


def test_gpt2s_files_have_the_same_tokens():
    model = json.loads(BPE.content())["model"]
    symbols = {c: n for n, c in enumerate(byte_symbols())}
    vocabulary, merges = dict(symbols), []
    for left, right in model["merges"]:
        vocabulary[left + right] = len(vocabulary)
        merges.append(f"{left} {right}")
    content = from_gpt2(json.dumps(vocabulary).encode(), "\n".join(merges).encode(), "gpt2")
    fast = fast_bpe(content)
    assert fast is not None
    assert same(SubwordTokenizer(content, False, "gpt2"), fast, STDLIB[:30])


def test_what_tiktoken_gives_up_on_is_left_to_the_library(monkeypatch):
    monkeypatch.setattr(subwords, "_BATCH_CHARACTERS", 100)
    tokenizer = SubwordTokenizer(BPE.content(), True, "x")
    tokenizer.encode_batch(["some text to begin with " * 10])
    assert tokenizer._fast is not None
    run = " " * 1_040_000 + "a"
    assert tokenizer._fast.encode(run) is None
    assert tokenizer.decode(tokenizer.encode(run)) == run


def test_text_that_spells_end_of_text_stays_text(monkeypatch):
    monkeypatch.setattr(subwords, "_BATCH_CHARACTERS", 10)
    tokenizer = SubwordTokenizer(BPE.content(), True, "x")
    tokenizer.encode("long enough to begin with")
    assert tokenizer._fast is not None
    assert tokenizer.end_of_text not in tokenizer.encode(f"a{END_OF_TEXT}b").tolist()


def edited(change) -> bytes:
    vocabulary = json.loads(BPE.content())
    change(vocabulary)
    return json.dumps(vocabulary).encode()


def swap_merges(vocabulary):
    merges = vocabulary["model"]["merges"]
    merges[0], merges[-1] = merges[-1], merges[0]


def split_a_token_elsewhere(vocabulary):
    """Three letters from another pair than their own bytes end with."""
    merges = vocabulary["model"]["merges"]
    known = vocabulary["model"]["vocab"]
    for at, (left, right) in enumerate(merges):
        if len(left) == 2 and len(right) == 1 and left[1] + right in known:
            merges[at] = [left[0], left[1] + right]
            return
    raise AssertionError("no such token")


def steps(vocabulary):
    return vocabulary["pre_tokenizer"]["pretokenizers"]


CHANGES = {
    "order of merges": swap_merges,
    "another pair": split_a_token_elsewhere,
    "a normalizer": lambda v: v.update(normalizer={"type": "NFC"}),
    "dropout": lambda v: v["model"].update(dropout=0.1),
    "plain added tokens": lambda v: v["added_tokens"][0].update(special=False),
    "a prefix space": lambda v: steps(v)[1].update(add_prefix_space=True),
    "another split": lambda v: steps(v)[0].update(behavior="Removed"),
    "no splitter": lambda v: v.update(pre_tokenizer=None),
    "another model": lambda v: v["model"].update(type="Unigram"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_asks_for_more_is_left_to_the_library(change):
    assert fast_bpe(edited(CHANGES[change])) is None


def test_a_difference_in_the_first_text_leaves_all_to_the_library(monkeypatch):
    monkeypatch.setattr(subwords, "_BATCH_CHARACTERS", 10)
    monkeypatch.setattr(subwords, "fast_bpe", lambda _: Wrong())
    tokenizer = SubwordTokenizer(BPE.content(), True, "x")
    for _ in range(2):
        assert tokenizer.encode("long enough to begin with").tolist() != [7]
    assert tokenizer._fast is None


class Wrong:
    def encode_batch(self, texts):
        return [np.array([7], np.uint32) for _ in texts]
