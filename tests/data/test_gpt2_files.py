import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Tokenizer

from longhaul.core.errors import DataError
from longhaul.data.subwords import SubwordTokenizer, from_gpt2
from longhaul.data.tokenizing import ByteTokenizer

ALPHABET = list(json.loads(ByteTokenizer(False).content())["model"]["vocab"])
MERGES = ["Ġ t", "h e", "Ġt he", "i n", "Ġ a", "e r", "Ã ©", "in g"]
TOKENS = [*ALPHABET, *(merge.replace(" ", "") for merge in MERGES), "<|endoftext|>"]
ENCODER = json.dumps({token: number for number, token in enumerate(TOKENS)}).encode()
BPE = ("#version: 0.2\n" + "\n".join(MERGES) + "\n").encode()


@settings(max_examples=100, deadline=None)
@given(st.text("the ingaré's19\n\u00a0!", max_size=40) | st.text(max_size=20))
def test_text_becomes_what_transformers_makes_of_the_same_files(text):
    made = SubwordTokenizer(from_gpt2(ENCODER, BPE, "vocab.bpe"), True, "vocab.bpe")
    ids = made.encode(text).tolist()
    assert ids == PEER.encode(text)
    assert made.decode(ids) == text
    sizes = made.token_bytes()
    assert sizes is not None
    assert sizes[ids].sum() == len(text.encode())
    assert made.end_of_text == len(TOKENS) - 1
    assert sizes[made.end_of_text] == 0


PEER = GPT2Tokenizer(
    vocab={token: number for number, token in enumerate(TOKENS)},
    merges=[tuple(merge.split(" ")) for merge in MERGES],
)


@pytest.mark.parametrize(
    ("encoder", "merges", "message"),
    [
        (b"[", BPE, "no JSON"),
        (b"[]", BPE, "no JSON object"),
        (b'{"a": 1}', b"", "'a' as number 1 of 1"),
        (b'{"a": true, "b": 0}', b"", "'a' as number True"),
        (b'{"a": 0, "b": 0}', b"", "a number twice"),
        (ENCODER, b"#version: 0.2\na b c\n", "vocab.bpe:2: 'a b c' is no merge"),
        (ENCODER, b"#version: 0.2\nz z\n", "vocab.bpe:2: 'zz' is not in the vocabulary"),
        (ENCODER, b"\xff", "not UTF-8"),
    ],
)
def test_files_that_are_no_pair_are_named(encoder, merges, message):
    with pytest.raises(DataError) as caught:
        from_gpt2(encoder, merges, "vocab.bpe")
    assert message in caught.value.message
    assert caught.value.remedy
