"""Text that a model writes, piece by piece."""

import itertools
import json

import pytest

from longhaul.data.subwords import SubwordTokenizer
from longhaul.data.tokenizing import ByteTokenizer, bpe_model, byte_level, tokenizer_json
from longhaul.run.trained import pieces_of

TEXT = "naïve ☃ 𝄞 text, and more of it"


def subwords() -> SubwordTokenizer:
    """Byte-level merges of two, some of which end in the middle of a character."""
    splitter = byte_level(use_regex=False)
    table = json.loads(ByteTokenizer(True).content())["model"]["vocab"]
    letters = sorted(table, key=table.get)[:256]
    merges = [[letters[a], letters[b]] for a, b in itertools.pairwise(TEXT.encode())][::3]
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    for pair in merges:
        vocabulary.setdefault("".join(pair), len(vocabulary))
    content = tokenizer_json(splitter, splitter, bpe_model(vocabulary, merges))
    return SubwordTokenizer(content, False, "tokenizer.json")


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(False), subwords()], ids=["bytes", "merges"])
def test_pieces_come_with_their_tokens_and_make_up_the_text(tokenizer) -> None:
    ids = [int(token) for token in tokenizer.encode(TEXT)]
    assert tokenizer.decode(ids) == TEXT
    asked = []
    pieces = list(pieces_of((asked.append(t) or t for t in ids), tokenizer))
    assert "".join(pieces) == TEXT
    assert not any("\ufffd" in piece for piece in pieces)
    first = pieces_of(iter(ids), tokenizer)
    assert next(first) == pieces[0]


def test_the_last_character_is_shown_even_if_it_is_none() -> None:
    cut = "a☃".encode()[:-1]
    assert "".join(pieces_of(iter(cut), ByteTokenizer(False))) == "a\ufffd"


def test_bytes_that_never_make_a_character_are_shown_in_time() -> None:
    endless = pieces_of(itertools.repeat(0xFF), ByteTokenizer(False))
    assert set(next(endless)) == {"\ufffd"}


def test_a_long_text_is_not_decoded_anew_for_each_token() -> None:
    class Counting(ByteTokenizer):
        longest = 0

        def decode(self, ids):
            ids = list(ids)
            self.longest = max(self.longest, len(ids))
            return super().decode(ids)

    tokenizer = Counting(False)
    assert "".join(pieces_of(iter(b"x" * 500), tokenizer)) == "x" * 500
    assert tokenizer.longest < 20
