"""Tokens at a document's begin and end: begin-of-text, and any token named the end."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longhaul.config.load import load_recipe
from longhaul.core.errors import RecipeError
from longhaul.data.corpus.engine import Resources
from longhaul.data.dataset import load_tokenizer, open_dataset
from longhaul.data.prepare import prepare
from longhaul.data.shards import Shard
from longhaul.data.subwords import SubwordTokenizer, train_bpe
from longhaul.data.tokenize import text_bytes
from longhaul.data.tokenizer_files import load_given
from longhaul.train.sampling import prompt_tokens

TEXTS = [f"The ship no. {n} sails\nand returns, doesn't it?" for n in range(20)]
PLAIN = train_bpe(TEXTS, 300, end_of_text=False)
NAMES = ["<|begin_of_text|>", "<|im_start|>", "<|im_end|>", "<|eot_id|>"]


def chat_tokenizer() -> bytes:
    """A vocabulary with tokens such as those of a chat model, two of them not declared special."""
    whole = json.loads(PLAIN.content())
    whole["added_tokens"] = [
        {"id": PLAIN.vocab_size + n, "content": name, "special": n < 2, "single_word": False,
         "lstrip": False, "rstrip": False, "normalized": False}
        for n, name in enumerate(NAMES)
    ]  # fmt: skip
    return json.dumps(whole).encode()


CONTENT = chat_tokenizer()
BEGIN, END = PLAIN.vocab_size, PLAIN.vocab_size + 2


@pytest.fixture
def path(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(CONTENT)
    return tmp_path / "tokenizer.json"


def quiet(_):
    pass


def prepared(recipe_for, path, **tokenizer):
    text = path.parent / "a.jsonl"
    if not text.exists():  # its time counts
        text.write_text("".join(f"{json.dumps({'text': t})}\n" for t in TEXTS))
    recipe = recipe_for(text, "file", {"path": str(path)} | tokenizer)
    return prepare(recipe, path.parent / "home", quiet)


def test_documents_are_written_with_both_and_the_folder_remembers_them(recipe_for, path):
    made = prepared(recipe_for, path, end_of_text="<|im_end|>", begin_of_text=True)
    shards = [Shard(p) for p in (*made.sources[0].train.paths, *made.sources[0].held_out.paths)]
    tokens = [token for shard in shards for token in shard.tokens.tolist()]
    expected = [t for text in TEXTS for t in (BEGIN, *PLAIN.encode(text).tolist(), END)]
    assert tokens == expected
    again = open_dataset(made.folder)
    assert (again.tokenizer.begin_of_text, again.tokenizer.end_of_text) == (BEGIN, END)
    assert made.num_bytes == sum(map(len, TEXTS))
    assert prompt_tokens(again.tokenizer, "The") == [BEGIN, *PLAIN.encode("The").tolist()]
    assert prompt_tokens(again.tokenizer, "") == [BEGIN]


@pytest.mark.parametrize("by", ["document", "tail"])
def test_parts_have_the_same_borders(recipe_for, path, by):
    text = path.parent / "a.jsonl"
    text.write_text("".join(f"{json.dumps({'text': each})}\n" for each in TEXTS))
    borders = {"path": str(path), "end_of_text": "<|im_end|>", "begin_of_text": True}
    recipe = recipe_for(text, "file", borders, held_out={"by": by, "fraction": 0.3})
    plain = prepare(recipe, path.parent / "plain", quiet)
    parts = prepare(recipe, path.parent / "parts", quiet, resources=Resources(1, 4 << 30))
    assert parts.identity == plain.identity
    assert parts.tokenizer.begin_of_text == BEGIN


def test_a_folder_from_before_there_was_begin_of_text_keeps_its_name(recipe_for, path):
    def named(**tokenizer):
        return prepared(recipe_for, path, end_of_text="<|eot_id|>", **tokenizer).folder.name

    assert named() == named(begin_of_text=False) != named(begin_of_text=True)
    manifest = json.loads((path.parent / "home" / named() / "dataset.json").read_text())
    assert "begin_of_text" not in json.dumps(manifest)


@settings(deadline=None, max_examples=100)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), st.sampled_from(NAMES))
def test_any_text_comes_back_and_holds_neither(text, name):
    tokenizer = SubwordTokenizer(CONTENT, "<|im_end|>", "x", begin_of_text="<|im_start|>")
    assert tokenizer.choose_encoder([text]) == ""
    for spelled in (text, f"{text}{name}{text}"):
        tokens = tokenizer.encode(spelled).tolist()
        assert tokenizer.decode(tokens) == spelled
        assert not {tokenizer.begin_of_text, tokenizer.end_of_text} & set(tokens)


@pytest.mark.parametrize(
    ("end", "begin", "message", "remedy"),
    [
        ("<|im_ende|>", False, "no token '<|im_ende|>'", "did you mean <|im_end|>"),
        ("nothing like it", False, "no token", "it has <|begin_of_text|>"),
        (True, False, "true, but", "set tokenizer.end_of_text = false, or name another: "),
        (False, "<|begin_text|>", "begin_of_text", "did you mean <|begin_of_text|>"),
        ("The", False, "ordinary token", "it has <|begin_of_text|>"),
    ],
)
def test_a_token_that_is_not_there_or_a_text_may_become_is_refused(
    path, end, begin, message, remedy
):
    with pytest.raises(RecipeError) as raised:
        load_given((path,), end, begin)
    assert message in raised.value.message
    assert remedy in raised.value.remedy


def test_border_tokens_have_no_text():
    tokenizer = SubwordTokenizer(CONTENT, "<|im_end|>", "x", begin_of_text=True)
    tokens = np.array([BEGIN, *tokenizer.encode(TEXTS[0]), END])
    assert text_bytes(tokenizer, tokens) == len(TEXTS[0])
    assert tokenizer.token_bytes()[[BEGIN, END]].tolist() == [0, 0]


def test_begin_of_text_is_found_by_its_usual_names(path):
    assert load_tokenizer(path, False, True).begin_of_text == BEGIN
    assert load_tokenizer(path, False).begin_of_text is None


@pytest.mark.parametrize("setting", ['end_of_text="<x>"', "begin_of_text=true"])
def test_only_a_tokenizer_from_a_file_has_tokens_to_choose_from(setting):
    with pytest.raises(RecipeError, match="only kind `file` has tokens to choose from"):
        load_recipe("quickstart", [f"tokenizer.{setting}"])
