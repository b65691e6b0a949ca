import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longhaul.data.byte_pairs import BytePairEncoder, Unsuited
from longhaul.data.sources import synthetic_documents
from longhaul.data.subwords import SubwordTokenizer, train_bpe
from longhaul.data.tokenizing import bpe_model, byte_level, byte_symbols, tokenizer_json

TEXTS = [document.text for document in synthetic_documents(7)]
BPE = train_bpe(TEXTS[:200], 700, end_of_text=True)
HOSTILE = (
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
    | st.text("a'\u017fsStTlLrRe1\u0663\u2167 \t\r\n\v\x85\u2028\u3000\u0301\u200d-.", max_size=60)
    | st.text("countsmake 0123.\n", max_size=200)
)  # fmt: skip


def edited(change) -> bytes:
    whole = json.loads(BPE.content())
    change(whole)
    return json.dumps(whole).encode()


def like_gpt2(whole) -> None:
    whole["pre_tokenizer"] = byte_level(use_regex=True)


def like_llama3(whole) -> None:
    """Whole words first, every pair that makes a token in the list, and its special tokens."""
    model, vocabulary = whole["model"], whole["model"]["vocab"]
    del vocabulary["<|endoftext|>"]
    pairs = [
        [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        for token in sorted(vocabulary, key=vocabulary.__getitem__)
    ]
    merges = [pair for own in pairs for pair in own if set(pair) <= vocabulary.keys()]
    model.update(merges=[list(pair) for pair in merges], ignore_merges=True)
    for number, name in enumerate(["<|begin_of_text|>", "<|end_of_text|>"], BPE.vocab_size):
        whole["added_tokens"].append(whole["added_tokens"][0] | {"id": number, "content": name})


KINDS = {"ours": lambda whole: None, "gpt-2": like_gpt2, "llama-3": like_llama3}


def both(content: bytes) -> tuple[SubwordTokenizer, SubwordTokenizer]:
    slow, fast = (SubwordTokenizer(content, True, "x") for _ in range(2))
    assert fast.choose_encoder(TEXTS[:10]) == ""
    return slow, fast


ALL = {kind: both(edited(change)) for kind, change in KINDS.items()}


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=200)
@given(text=HOSTILE)
def test_any_text_has_the_same_tokens_by_either_library(kind, text):
    slow, fast = ALL[kind]
    tokens = fast.encode(text)
    assert tokens.tolist() == slow.encode(text).tolist()
    assert tokens.dtype == np.uint32
    assert fast.decode(tokens) == text


@pytest.mark.parametrize("kind", KINDS)
def test_two_megabytes_have_the_same_tokens(kind):
    slow, fast = ALL[kind]
    texts = TEXTS[:1000]
    for ours, theirs in zip(fast.encode_batch(texts), slow.encode_batch(texts), strict=True):
        assert np.array_equal(ours, theirs)


def test_every_character_is_of_the_same_kind_in_either_library():
    slow, fast = ALL["ours"]
    text = "".join(f"{chr(c)}a1" for c in range(0x30000) if not 0xD800 <= c < 0xE000)
    assert np.array_equal(fast.encode(text), slow.encode(text))


CHOICES = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=8)


@settings(deadline=None, max_examples=200)
@given(chosen=CHOICES, whole_words=st.booleans(), texts=st.lists(st.text("abc", max_size=12)))
def test_a_vocabulary_is_taken_only_if_all_texts_have_the_same_tokens(chosen, whole_words, texts):
    vocabulary = {symbol: number for number, symbol in enumerate(byte_symbols())}
    tokens, merges = ["a", "b", "c"], []
    for left, right in chosen:
        a, b = tokens[left % len(tokens)], tokens[right % len(tokens)]
        if a + b not in vocabulary:
            vocabulary[a + b] = len(vocabulary)
            tokens.append(a + b)
            merges.append([a, b])
    model = bpe_model(vocabulary, merges) | {"ignore_merges": whole_words}
    content = tokenizer_json(byte_level(use_regex=True), byte_level(use_regex=True), model)
    try:
        fast = BytePairEncoder(content, [])
    except Unsuited:
        return
    slow = SubwordTokenizer(content, False, "x")
    for text in [*texts, *vocabulary]:
        found = fast.encode(text)
        assert found is not None
        assert found.tolist() == slow.encode(text).tolist()


def overtaken(whole) -> None:
    # "bc" is joined before "ab" can be, so that no text ever becomes "abc".
    symbols = {symbol: number for number, symbol in enumerate(byte_symbols())}
    tokens = {token: 256 + number for number, token in enumerate(["bc", "ab", "abc"])}
    whole["model"].update(
        vocab=symbols | tokens, merges=[["b", "c"], ["a", "b"], ["ab", "c"]]
    )  # fmt: skip
    whole["added_tokens"] = []


UNSUITED = {
    "it normalizes text": lambda w: w.update(normalizer={"type": "NFC"}),
    "puts a space before": lambda w: w.update(
        pre_tokenizer=byte_level(use_regex=True) | {"add_prefix_space": True}
    ),
    "more than one regular expression": lambda w: w["pre_tokenizer"]["pretokenizers"].insert(
        0, {"type": "Digits", "individual_digits": True}
    ),
    "no plain BPE": lambda w: w["model"].update(dropout=0.1),
    "not in the order": lambda w: w["model"]["merges"].reverse(),
    "merges do not make its token 'abc'": overtaken,
    "whole words": lambda w: w["model"].update(ignore_merges=True),
    "otherwise": lambda w: w["pre_tokenizer"]["pretokenizers"][0]["pattern"].update(
        Regex=r"[a-z]{1,2}+|[^a-z]"  # two letters at a time for one library, a word for the other
    ),
}


@pytest.mark.parametrize("reason", UNSUITED)
def test_what_only_tokenizers_can_do_is_left_to_it_with_the_reason(reason):
    tokenizer = SubwordTokenizer(edited(UNSUITED[reason]), False, "x")
    assert reason in tokenizer.choose_encoder(TEXTS[:1])
    assert reason == "no plain BPE" or tokenizer.decode(tokenizer.encode("a b")).strip() == "a b"


def test_a_text_with_an_added_token_and_a_run_of_spaces_too_long_are_left_to_tokenizers():
    def change(whole):
        plain = whole["added_tokens"][0] | {
            "id": BPE.vocab_size,
            "content": "<tool>",
            "special": False,
        }
        whole["added_tokens"].append(plain)

    slow, fast = both(edited(change))
    for text in (
        "use <tool> twice <tool>",
        "use <too l>",
        "an <|unused|> one",
        " " * 900_000 + "x",
    ):
        assert np.array_equal(fast.encode(text), slow.encode(text))
    assert BPE.vocab_size in fast.encode("use <tool> twice").tolist()


def test_text_that_the_expression_does_not_match_is_not_lost():
    def change(whole):
        whole["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\p{L}+|\p{N}+"

    fast = BytePairEncoder(edited(change), [])
    assert fast.encode("Ada12") is not None
    assert fast.encode("Ada, 12!") is None  # `tokenizers` keeps it
    tokenizer = SubwordTokenizer(edited(change), False, "x")
    tokenizer.choose_encoder(["Ada"])
    assert tokenizer.decode(tokenizer.encode("Ada, 12!")) == "Ada, 12!"


def test_long_texts_are_cut_where_they_always_were():
    slow, fast = ALL["ours"]
    text = "".join(TEXTS)[: 5 << 18]
    assert np.array_equal(fast.encode(text), slow.encode(text))


@pytest.mark.slow
def test_a_hundred_megabytes_of_installed_packages_have_the_same_tokens():
    from longhaul.data.documents import Breakage
    from longhaul.data.readers import read_file
    from longhaul.data.sources import package_folders, stdlib_folder

    breakage = Breakage("packages", 1.0)
    num_bytes = 0
    slow, fast = ALL["ours"]
    for folder in (*package_folders(), stdlib_folder()):
        for path in sorted(folder.rglob("*.py")):
            for document in read_file(path, path.name, "text", breakage):
                assert np.array_equal(fast.encode(document.text), slow.encode(document.text)), path
                num_bytes += len(document.text)
            if num_bytes > 100e6:
                return
