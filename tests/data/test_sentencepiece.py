import io
import itertools
import json
import math
import struct

import numpy as np
import pytest
import tokenizers
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from longhaul.core.errors import DataError, RecipeError
from longhaul.data.dataset import MANIFEST, load_tokenizer
from longhaul.data.prepare import prepare, prepared_folder
from longhaul.data.sentencepiece import SentencePieceTokenizer

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


def tokenizer_of(*arguments, **settings) -> SentencePieceTokenizer:
    return SentencePieceTokenizer(model(*arguments, **settings), True, "m.model")


def trained(kind: str) -> bytes:
    made = io.BytesIO()
    lines = ["ﬁnd the ﬁ́ne line, the end of the thing", "Ärger um 3 Äpfel", "the theme"] * 9
    SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=made, model_type=kind, vocab_size=60,
        hard_vocab_limit=False, minloglevel=2, num_threads=1,
    )  # fmt: skip
    return made.getvalue()


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


@pytest.mark.parametrize("kind", ["unigram", "bpe", "char", "word"])
def test_every_type_of_model_encodes_as_the_library_does(kind):
    content = trained(kind)
    tokenizer = SentencePieceTokenizer(content, True, "m.model")
    library = SentencePieceProcessor(model_proto=content)
    texts = ["", " the  ﬁ́ne end ", "Äpfel\n\n3\t🌲", "</s> <unk> \0", "the end of " * 150_000]
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert ids.tolist() == library.encode(text)
        assert tokenizer.decode(ids) == library.decode(library.encode(text))
    assert tokenizer.vocab_size == library.vocab_size()
    assert tokenizer.content() == content


def test_end_of_text_is_a_control_piece_or_none():
    named = [*GOOD, ("<|endoftext|>", 0.0, CONTROL)]
    assert tokenizer_of(named).end_of_text == len(GOOD)
    assert tokenizer_of([*GOOD, ("<|endoftext|>", 0.0, USER)]).end_of_text == 2
    assert tokenizer_of([*GOOD[:2], *GOOD[3:]]).end_of_text is None
    assert SentencePieceTokenizer(model(named), False, "m").end_of_text is None


def test_begin_of_text_and_an_end_of_another_name_are_control_pieces():
    content = model([*GOOD, ("<|im_end|>", 0.0, CONTROL), ("<tool>", 0.0, USER)])
    tokenizer = SentencePieceTokenizer(content, "<|im_end|>", "m", begin_of_text=True)
    assert tokenizer.begin_of_text == 1
    assert tokenizer.end_of_text == len(GOOD)
    assert tokenizer.name_of(len(GOOD)) == "<|im_end|>"
    assert SentencePieceTokenizer(content, "<tool>", "m").end_of_text is None
    assert "<|im_end|>" in tokenizer.special_tokens()


def test_special_pieces_have_no_bytes_and_numbers_beyond_no_text():
    tokenizer = tokenizer_of(GOOD)
    assert tokenizer.token_bytes().tolist() == [0, 0, 0, 1, 1, 1, 1, 1]
    assert tokenizer.decode([7, 3, 2, 4, 99, -1]) == "ab"


@pytest.fixture
def recipe(tmp_path, recipe_for):
    (tmp_path / "a.txt").write_text("ab cd " * 50)
    (tmp_path / "m.model").write_bytes(model(GOOD))
    return recipe_for(tmp_path / "a.txt", "file", {"path": str(tmp_path / "m.model")})


def test_prepared_data_holds_the_model(tmp_path, recipe):
    dataset = prepare(recipe, tmp_path / "home", lambda _: None)
    assert (dataset.folder / "tokenizer.model").read_bytes() == model(GOOD)
    assert dataset.tokenizer.encode("ab").tolist() == [7, 3, 4]
    assert prepare(recipe, tmp_path / "home", lambda _: None).identity == dataset.identity
    (tmp_path / "m.model").write_bytes(model([*GOOD[:2], *GOOD[3:]]))
    with pytest.raises(RecipeError, match="has no"):
        prepare(recipe, tmp_path / "home", lambda _: None)


def test_data_prepared_with_a_converted_model_is_used_as_it_is(tmp_path, recipe, recipe_for):
    converted = tmp_path / "tokenizer.json"
    vocabulary = [(text, score) for text, score, _ in GOOD]
    tokenizers.Tokenizer(tokenizers.models.Unigram(vocabulary, 0)).save(str(converted))
    other = recipe_for(tmp_path / "a.txt", "file", {"path": str(converted)})
    made = prepare(other, tmp_path / "home", lambda _: None)
    folder = prepared_folder(recipe, tmp_path / "home", lambda _: None)
    made.folder.rename(folder)
    used = prepare(recipe, tmp_path / "home", lambda _: None)
    assert (used.folder, used.identity) == (folder, made.identity)
    assert used.tokenizer.content() == converted.read_bytes()
    assert json.loads((folder / MANIFEST).read_bytes())["tokenizer"]["file"] == "tokenizer.json"


def rules() -> bytes:
    """The trie of one rule, "A" → "ä": root at 256, its child's leaf at 512."""
    units = np.zeros(768, "<u4")
    units[0] = 256 << 10
    units[256 ^ ord("A")] = (256 ^ ord("A") ^ 512) << 10 | 1 << 8 | ord("A")
    units[512] = 1 << 31
    return struct.pack("<I", units.nbytes) + units.tobytes() + "ä\0".encode()


def test_rules_that_hold_are_used():
    tokenizer = tokenizer_of([*GOOD, ("ä", -1.0, NORMAL)], charsmap=rules())
    assert tokenizer.decode(tokenizer.encode("aAa")) == "aäa"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "unk is not defined"),
        (b'{"model": {}}', "ParseFrom"),
        (model([*GOOD, ("a", 0.0, NORMAL)]), "a is already defined"),
        (model([*GOOD, ("", 0.0, NORMAL)]), "must not be empty"),
        (model([*GOOD, ("e", math.nan, NORMAL)]), "score is NaN"),
        (model(GOOD[1:]), "unk is not defined"),
        (model(GOOD, fallback=True), "256 byte pieces"),
        (model([*GOOD, ("e", 0.0, BYTE)]), "byte piece e"),
        (model([*GOOD, ("x\0y", 0.0, USER)]), "null character"),
        (model([*GOOD, ("a" * 3_000_000, 0.0, NORMAL)]), "too long"),
        (model([*GOOD, ("??", 0.0, NORMAL)]).replace(b"??", b"\xff\xfe"), "utf-8"),
        (model(GOOD, charsmap=b"\xff\xff\xff\x7f1234"), "exceeds"),
        (model(GOOD, charsmap=struct.pack("<I", 4) + bytes(4)), "exceeds"),
        (model(GOOD, charsmap=struct.pack("<I", 1024) + b"\xff" * 1024 + b"a\0"), "invalid"),
        (model(GOOD, charsmap=rules()[:-1]), "null terminated"),
        (model(GOOD) + part(5, part(2, b"\xff\xff\xff\x7f1234")), "exceeds"),
    ],
)
def test_what_is_no_model_is_said(tmp_path, content, message):
    (tmp_path / "m.model").write_bytes(content)
    with pytest.raises(DataError) as caught:
        load_tokenizer(tmp_path / "m.model")
    assert message in caught.value.message
    assert "m.model" in caught.value.message
    assert caught.value.remedy


def test_a_file_too_large_for_a_model_is_not_read(tmp_path):
    with (tmp_path / "m.model").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(DataError, match=r"m\.model: not a tokenizer"):
        load_tokenizer(tmp_path / "m.model")


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    damage=st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=3),
    length=st.none() | st.integers(0, 4000),
    kind=st.sampled_from([1, 2, 3, 4]),
    charsmap=st.sampled_from([b"", rules()]),
)
def test_damaged_models_give_an_error_or_a_tokenizer_that_works(damage, length, kind, charsmap):
    content = bytearray(model(GOOD, kind=kind, charsmap=charsmap))
    for at, value in damage:
        content[at % len(content)] = value
    if length is not None:
        del content[length % len(content) :]
    check(bytes(content))


def check(content: bytes) -> None:
    try:
        made = SentencePieceTokenizer(content, True, "m")
    except DataError:
        return
    ids = made.encode("AbA cd ä")
    assert all(0 <= i < made.vocab_size for i in ids)
    assert isinstance(made.decode(ids), str)
    assert made.token_bytes().shape == (made.vocab_size,)


@settings(max_examples=300, deadline=None)
@given(
    damage=st.lists(
        st.tuples(
            st.sampled_from([0, 256 ^ ord("A"), 512]) | st.integers(0, 767),
            st.integers(0, 3),
            st.integers(0, 255),
        ),
        max_size=3,
    )
)
def test_damaged_rules_never_end_the_library(damage):
    charsmap = bytearray(rules())
    for unit, byte, value in damage:
        charsmap[4 + 4 * unit + byte] = value
    check(model(GOOD, charsmap=bytes(charsmap)))
