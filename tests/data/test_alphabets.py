import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as LibraryTokenizer

from longhaul.core.errors import UsageError
from longhaul.data.dataset import load_tokenizer
from longhaul.data.tokenizing import END_OF_TEXT, ByteTokenizer, CharacterTokenizer

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def test_characters_are_numbered_in_order_of_code_points():
    tokenizer = CharacterTokenizer("banana\n", end_of_text=True)
    assert tokenizer.encode("ban\n").tolist() == [2, 1, 3, 0]
    assert (tokenizer.vocab_size, tokenizer.end_of_text) == (5, 4)
    without = CharacterTokenizer("banana\n", end_of_text=False)
    assert (without.vocab_size, without.end_of_text) == (4, None)


@settings(deadline=None, max_examples=30)
@given(TEXT, st.booleans())
def test_both_give_every_text_back_and_survive_their_file(tmp_path_factory, text, end):
    path = tmp_path_factory.mktemp("t") / "tokenizer.json"
    for tokenizer in (CharacterTokenizer(text + "x", end), ByteTokenizer(end)):
        ids = tokenizer.encode(text).tolist()
        assert tokenizer.decode(ids) == text
        assert all(i < tokenizer.vocab_size and i != tokenizer.end_of_text for i in ids)
        path.write_bytes(tokenizer.content())
        loaded = load_tokenizer(path)
        assert type(loaded) is type(tokenizer)
        assert loaded.encode(text).tolist() == ids
        assert (loaded.sha256, loaded.vocab_size) == (tokenizer.sha256, tokenizer.vocab_size)
        assert loaded.end_of_text == tokenizer.end_of_text


@settings(deadline=None, max_examples=30)
@given(TEXT)
def test_the_files_mean_the_same_to_the_tokenizers_library(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("t") / "tokenizer.json"
    for tokenizer in (CharacterTokenizer(text + "x", True), ByteTokenizer(True)):
        path.write_bytes(tokenizer.content())
        library = LibraryTokenizer.from_file(str(path))
        assert library.encode(text).ids == tokenizer.encode(text).tolist()
        assert library.decode(library.encode(text).ids) == text
        assert library.token_to_id(END_OF_TEXT) == tokenizer.end_of_text


def test_end_of_text_can_be_left_unused(tmp_path):
    for tokenizer in (CharacterTokenizer("ab", True), ByteTokenizer(True)):
        (tmp_path / "tokenizer.json").write_bytes(tokenizer.content())
        loaded = load_tokenizer(tmp_path / "tokenizer.json", end_of_text=False)
        assert loaded.end_of_text is None
        assert loaded.vocab_size == tokenizer.vocab_size
        assert loaded.sha256 == tokenizer.sha256


@pytest.mark.parametrize("tokenizer", [CharacterTokenizer(END_OF_TEXT, True), ByteTokenizer(True)])
def test_text_that_spells_end_of_text_does_not_become_it(tokenizer):
    ids = tokenizer.encode(END_OF_TEXT).tolist()
    assert len(ids) == len(END_OF_TEXT)
    assert tokenizer.end_of_text not in ids
    assert tokenizer.decode([*ids, tokenizer.end_of_text]) == END_OF_TEXT * 2


def test_an_unknown_character_is_named():
    with pytest.raises(UsageError, match=r"no character 'é' \(U\+00E9\)"):
        CharacterTokenizer("abc", True).encode("abé")


def test_numbers_beyond_the_vocabulary_and_torn_characters_decode_as_unknown():
    assert CharacterTokenizer("ab", False).decode([0, 7]) == "a\ufffd"
    assert ByteTokenizer(False).decode([0x61, 0xC3, 300]) == "a\ufffd\ufffd"
