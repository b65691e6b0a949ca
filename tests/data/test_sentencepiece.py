import itertools
import math
import struct

import pytest
import tokenizers
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from longhaul.core.errors import DataError
from longhaul.data.sentencepiece import from_sentencepiece
from longhaul.data.subwords import SubwordTokenizer

SPACE = "▁"
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
SPECIAL = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
BYTES = [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
CHARACTERS = "abcd" + SPACE


def varint(value: int) -> bytes:
    content = b""
    while value > 127:
        content += bytes([value & 127 | 128])
        value >>= 7
    return content + bytes([value])


def part(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def number(key: int, value: int) -> bytes:
    return varint(key << 3) + varint(value)


def model(pieces, kind=1, fallback=False, prefix=True, tidy=False, charsmap=b"", suffix=0) -> bytes:
    content = b""
    for text, score, type_ in pieces:
        piece = part(1, text.encode()) + varint(2 << 3 | 5) + struct.pack("<f", score)
        content += part(1, piece + (number(3, type_) if type_ != NORMAL else b""))
    content += part(2, number(3, kind) + number(24, suffix) + number(35, int(fallback)))
    rules = part(2, charsmap) if charsmap else b""
    return content + part(3, rules + number(3, int(prefix)) + number(4, int(tidy)))


def tokenizer_of(*arguments, **settings) -> SubwordTokenizer:
    content = from_sentencepiece(model(*arguments, **settings), "m.model")
    return SubwordTokenizer(content, True, "m.model")


def pieces_of(vocabulary: dict[str, float], fallback: bool) -> list:
    normal = [(text, score, NORMAL) for text, score in vocabulary.items()]
    return SPECIAL + (BYTES if fallback else []) + normal


# Scores of whole eighths are exact in float32, and so is every sum of them.
vocabularies = st.dictionaries(
    st.text(CHARACTERS, min_size=2, max_size=4),
    st.integers(-800, -1).map(lambda score: score / 8),
    max_size=25,
)
texts = st.text("abcd ", max_size=12)


def best_scores(text: str, vocabulary: dict[str, float]) -> float:
    """Viterbi's recurrence, over every end."""
    best = [0.0] + [-math.inf] * len(text)
    for end in range(1, len(text) + 1):
        for piece, score in vocabulary.items():
            if text[:end].endswith(piece):
                best[end] = max(best[end], best[end - len(piece)] + score)
    return best[-1]


@settings(max_examples=150, deadline=None)
@given(vocabulary=vocabularies, text=texts)
def test_unigram_finds_the_likeliest_pieces(vocabulary, text):
    vocabulary = {**dict.fromkeys(CHARACTERS, -50.0), **vocabulary}
    pieces = pieces_of(vocabulary, fallback=False)
    tokenizer = tokenizer_of(pieces)
    found = [pieces[i][0] for i in tokenizer.encode(text)]
    normal = (SPACE + text).replace(" ", SPACE) if text else ""
    assert "".join(found) == normal
    assert sum(vocabulary[piece] for piece in found) == best_scores(normal, vocabulary)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def joined(text: str, vocabulary: dict[str, float]) -> list[str]:
    """SentencePiece's BPE: join the leftmost neighbours that make the piece of highest score."""
    symbols = list(text)
    while True:
        candidates = [
            (-vocabulary[left + right], at)
            for at, (left, right) in enumerate(itertools.pairwise(symbols))
            if left + right in vocabulary
        ]
        if not candidates:
            return symbols
        _, at = min(candidates)
        symbols[at : at + 2] = ["".join(symbols[at : at + 2])]


@settings(max_examples=200, deadline=None)
@given(merges=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=20), text=texts)
@example(merges=[(4, 4), (5, 4), (5, 0)], text="   a  a")
def test_bpe_joins_in_the_order_of_scores(merges, text):
    known = list(CHARACTERS)
    for left, right in merges:
        made = known[left % len(known)] + known[right % len(known)]
        if made not in known:
            known.append(made)
    # As trained: each piece is one merge of two earlier ones, and scores fall by one.
    vocabulary = {piece: -float(at) for at, piece in enumerate(known)}
    pieces = pieces_of(vocabulary, fallback=True)
    tokenizer = tokenizer_of(pieces, kind=2, fallback=True)
    normal = (SPACE + text).replace(" ", SPACE) if text else ""
    found = [pieces[i][0] for i in tokenizer.encode(text)]
    assert "".join(found) == normal
    if all(ways(piece, vocabulary) == 1 for piece in known[len(CHARACTERS) :]):
        assert found == joined(normal, vocabulary)


def ways(piece: str, vocabulary: dict[str, float]) -> int:
    return sum(
        piece[:cut] in vocabulary and piece[cut:] in vocabulary for cut in range(1, len(piece))
    )


def test_what_the_vocabulary_lacks_becomes_bytes_and_comes_back():
    pieces = pieces_of(dict.fromkeys(CHARACTERS, -1.0), fallback=True)
    for kind in (1, 2):
        tokenizer = tokenizer_of(pieces, kind=kind, fallback=True)
        ids = tokenizer.encode("a é\n🌲")
        assert [pieces[i][0] for i in ids] == [
            SPACE, "a", SPACE, "<0xC3>", "<0xA9>", "<0x0A>", "<0xF0>", "<0x9F>", "<0x8C>", "<0xB2>"
        ]  # fmt: skip
        assert tokenizer.decode(ids) == "a é\n🌲"
        sizes = tokenizer.token_bytes()
        assert sizes is not None
        assert sizes[ids].sum() == len(" a é\n🌲".encode())


def test_special_pieces_keep_their_numbers_and_are_never_read_from_text():
    pieces = [*pieces_of(dict.fromkeys("abs<>/" + SPACE, -1.0), False), ("ab", 0.0, USER)]
    for kind in (1, 2):
        tokenizer = tokenizer_of(pieces, kind=kind)
        assert tokenizer.end_of_text == 2
        assert tokenizer.vocab_size == len(pieces)
        assert [pieces[i][0] for i in tokenizer.encode("</s>")] == [SPACE, "<", "/", "s", ">"]
        assert pieces[tokenizer.encode("ab")[-1]][0] == "ab"


def test_a_user_s_piece_is_one_token_wherever_it_stands():
    pieces = [*pieces_of(dict.fromkeys(CHARACTERS, -0.01), False), ("ab", 0.0, USER)]
    pieces += [("abc", 0.0, USER), ("[d", 0.0, USER)]
    for kind in (1, 2):
        tokenizer = tokenizer_of(pieces, kind=kind, tidy=True)
        found = [pieces[i][0] for i in tokenizer.encode("abca ab[d cab ")]
        assert found == [SPACE, "abc", "a", SPACE, "ab", "[d", SPACE, "c", "ab"]


def test_spaces_are_tidied_only_where_the_model_says_so():
    pieces = pieces_of(dict.fromkeys(CHARACTERS, -1.0), False)

    def found(**settings) -> str:
        return "".join(pieces[i][0] for i in tokenizer_of(pieces, **settings).encode("  a   b "))

    assert found() == "▁▁▁a▁▁▁b▁"
    assert found(tidy=True) == "▁a▁b"
    assert found(prefix=False, tidy=True) == "a▁b"


GOOD = pieces_of(dict.fromkeys(CHARACTERS, -1.0), False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no piece"),
        (b'{"model": {}}', "wire type"),
        (model(GOOD, kind=4), "model type 4"),
        (model([*GOOD, ("a", 0.0, NORMAL)]), "'a', is empty or occurs twice"),
        (model([*GOOD, ("", 0.0, NORMAL)]), "is empty"),
        (model([*GOOD, ("e", math.nan, NORMAL)]), "score nan"),
        (model([*GOOD, ("e", 0.0, UNUSED)]), "type 5"),
        (model([*GOOD, ("e", 0.0, 77)]), "type 77"),
        (model(GOOD[1:]), "one unknown piece"),
        (model(GOOD, fallback=True), "0 pieces for the 256 bytes"),
        (model([*GOOD, ("e", 0.0, BYTE)]), "said to be a byte"),
        (model(GOOD, suffix=1), "suffixes"),
        (model(GOOD, charsmap=b"\xff\xff\xff\x7f1234"), "rules of 2,147,483,647 bytes"),
    ],
)
def test_what_is_no_model_or_of_a_kind_that_is_not_read_is_said(content, message):
    with pytest.raises(DataError) as caught:
        from_sentencepiece(content, "m.model")
    assert message in caught.value.message
    assert "m.model" in caught.value.message
    assert caught.value.remedy


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    damage=st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=3),
    length=st.none() | st.integers(0, 4000),
    kind=st.sampled_from([1, 2]),
)
def test_damaged_models_give_an_error_or_a_tokenizer_that_works(damage, length, kind):
    content = bytearray(model(GOOD, kind=kind))
    for at, value in damage:
        content[at % len(content)] = value
    if length is not None:
        del content[length % len(content) :]
    try:
        made = SubwordTokenizer(from_sentencepiece(bytes(content), "m"), True, "m")
    except DataError:
        return
    ids = made.encode("ab cd")
    assert all(0 <= i < made.vocab_size for i in ids)


def test_the_library_agrees_on_what_was_made():
    content = from_sentencepiece(model(GOOD), "m.model")
    inner = tokenizers.Tokenizer.from_buffer(content)
    assert inner.get_vocab_size() == len(GOOD)
    assert content == from_sentencepiece(model(GOOD), "elsewhere.model")
