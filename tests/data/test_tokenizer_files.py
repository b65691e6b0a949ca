import json

import fsspec
import pytest

from longhaul.core.errors import DataError, RecipeError
from longhaul.data.prepare import prepare
from longhaul.data.tokenizer_files import find_tokenizer, load_given
from longhaul.data.tokenizing import ByteTokenizer

ALPHABET = list(json.loads(ByteTokenizer(False).content())["model"]["vocab"])


@pytest.fixture
def pair(tmp_path):
    tokens = [*ALPHABET, "th", "<|endoftext|>"]
    encoder = {token: number for number, token in enumerate(tokens)}
    (tmp_path / "encoder.json").write_text(json.dumps(encoder))
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\nt h\n")
    return tmp_path


def found(path) -> list[str]:
    files = find_tokenizer(str(path), path, lambda _: None)
    return [each.name for each in files]


def test_a_pair_is_found_by_either_file_or_its_folder(pair):
    for path in (pair, pair / "vocab.bpe", pair / "encoder.json", f"file://{pair}/vocab.bpe"):
        files = find_tokenizer(str(path), pair, lambda _: None)
        assert [each.name for each in files] == ["encoder.json", "vocab.bpe"]
    assert load_given(files, end_of_text=True).encode("the").tolist() == [256, ALPHABET.index("e")]


def test_a_tokenizer_json_comes_before_others_and_one_model_will_do(pair):
    (pair / "spm.model").write_bytes(b"")
    assert found(pair) == ["encoder.json", "vocab.bpe"]
    (pair / "vocab.bpe").unlink()
    assert found(pair) == ["spm.model"]
    (pair / "tokenizer.json").write_bytes(b"{}")
    assert found(pair) == ["tokenizer.json"]


def test_half_a_pair_an_empty_folder_and_a_pickle_are_told_apart(pair):
    (pair / "encoder.json").unlink()
    for path, message in (
        (pair / "vocab.bpe", r"encoder\.json is not beside it"),
        (pair / "none", "no such file"),
        (pair / "meta.pkl", "a pickle is a program"),
    ):
        with pytest.raises(DataError, match=message):
            find_tokenizer(str(path), pair, lambda _: None)
    (pair / "vocab.bpe").unlink()
    with pytest.raises(DataError, match="no tokenizer in this folder"):
        find_tokenizer(str(pair), pair, lambda _: None)


def test_end_of_text_must_exist_where_it_is_wanted(pair):
    tokens = [*ALPHABET, "th"]
    encoder = {token: number for number, token in enumerate(tokens)}
    (pair / "encoder.json").write_text(json.dumps(encoder))
    files = find_tokenizer(str(pair), pair, lambda _: None)
    with pytest.raises(RecipeError, match="has no"):
        load_given(files, end_of_text=True)
    assert load_given(files, end_of_text=False).vocab_size == 257


def test_prepared_data_holds_one_tokenizer_json_and_follows_both_files(pair, recipe_for):
    (pair / "a.txt").write_text("the thin thing " * 50)
    recipe = recipe_for(pair / "a.txt", "file", {"path": str(pair / "vocab.bpe")})
    dataset = prepare(recipe, pair / "prepared", lambda _: None)
    assert dataset.tokenizer.encode("th").tolist() == [256]
    assert sorted(p.suffix for p in dataset.folder.iterdir()) == [
        ".json", ".json", ".shard", ".shard"
    ]  # fmt: skip
    (pair / "vocab.bpe").write_text("#version: 0.2\n")
    again = prepare(recipe, pair / "prepared", lambda _: None)
    assert again.folder != dataset.folder
    assert len(again.tokenizer.encode("th")) == 2


def test_a_remote_pair_is_fetched_whole(pair, tmp_path):
    memory = fsspec.filesystem("memory")
    for name in ("vocab.bpe", "encoder.json"):
        memory.pipe(f"/gpt2/{name}", (pair / name).read_bytes())
    try:
        files = find_tokenizer("memory://gpt2/vocab.bpe", tmp_path / "d", lambda _: None)
        assert load_given(files, end_of_text=True).encode("th").tolist() == [256]
    finally:
        memory.rm("/gpt2", recursive=True)
