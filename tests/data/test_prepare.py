import errno
import gzip
import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longhaul.core.errors import DataError, LonghaulError, RecipeError
from longhaul.data import finishing, shards, tokenize
from longhaul.data import prepare as module
from longhaul.data.prepare import prepare
from longhaul.data.shards import Shard
from longhaul.data.tokenizing import END_OF_TEXT
from longhaul.data.verification import Verification


def documents_of(stream):
    return [document for path in stream.paths for document in Shard(path).documents()]


def lines(path, *texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def text_of(dataset, stream):
    whole = stream.gather(np.array([0]), stream.num_tokens)[0]
    return dataset.tokenizer.decode(whole.tolist())


def quiet(line):
    pass


def test_tail_split_of_characters_is_nanogpts(tmp_path, recipe_for):
    text = "".join(chr(97 + n % 26) for n in range(1_153)) + "é\n"
    (tmp_path / "play.txt").write_text(text)
    recipe = recipe_for(
        tmp_path / "play.txt", "characters", {"end_of_text": False}, held_out={"fraction": 0.1}
    )
    dataset = prepare(recipe, tmp_path / "home", quiet)
    (source,) = dataset.sources
    cut = int(len(text) * 0.9)
    assert (source.train.num_tokens, source.held_out.num_tokens) == (cut, len(text) - cut)
    assert dataset.vocab_size == 28
    assert text_of(dataset, source.train) == text[:cut]
    assert text_of(dataset, source.held_out) == text[cut:]
    assert source.held_out.num_bytes == len(text[cut:].encode())


@pytest.mark.parametrize("kind", ["bytes", "bpe", "characters"])
def test_documents_end_with_end_of_text_and_come_back_whole(tmp_path, recipe_for, kind):
    texts = [f"document {n} says {END_OF_TEXT} é" for n in range(250)]
    path = lines(tmp_path / "a.jsonl", *texts)
    recipe = recipe_for(path, kind, {"vocab_size": 300} if kind == "bpe" else None)
    dataset = prepare(recipe, tmp_path / "home", quiet)
    (source,) = dataset.sources
    assert source.split == "document"
    found = {}
    end = dataset.tokenizer.end_of_text
    for stream in (source.train, source.held_out):
        for name, tokens, num_bytes in documents_of(stream):
            assert tokens[-1] == end
            assert end not in tokens[:-1]
            found[name] = dataset.tokenizer.decode(tokens[:-1].tolist())
            assert num_bytes == len(found[name].encode())
    assert found == {f"a.jsonl:{n + 1}": text for n, text in enumerate(texts)}


@settings(
    deadline=None, max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.sets(st.text(alphabet="abcd", min_size=1, max_size=6), min_size=60, max_size=90))
def test_held_out_documents_stay_held_out_when_the_corpus_grows(
    tmp_path_factory, recipe_for, texts
):
    folder = tmp_path_factory.mktemp("grow")
    ordered = sorted(texts)
    sides = []
    for count in (40, len(ordered)):
        path = lines(folder / "a.jsonl", *reversed(ordered[:count]))
        recipe = recipe_for(path, held_out={"by": "document", "fraction": 0.4})
        dataset = prepare(recipe, folder / "home", quiet)
        held_out = text_of(dataset, dataset.sources[0].held_out)
        sides.append(set(held_out.split(END_OF_TEXT)) - {""})
    assert sides[0] == sides[1] & set(ordered[:40])


def test_duplicates_are_dropped_across_sources_and_said(tmp_path, recipe_for):
    one = lines(tmp_path / "one.jsonl", "a", "b", "a", "c")
    two = lines(tmp_path / "two.jsonl", "b", "d", "e")
    said = []
    dataset = prepare(recipe_for([one, two], held_out={"by": "tail"}), tmp_path, said.append)
    assert [s.train.num_documents + s.held_out.num_documents for s in dataset.sources] == [4, 3]
    names = [name for name, *_ in documents_of(dataset.sources[1].train)]
    assert names[0] == "two.jsonl:2"
    assert "1 exact duplicates dropped" in said[0]
    kept = recipe_for([one, two], held_out={"by": "tail"}, drop_exact_duplicates=False)
    whole = prepare(kept, tmp_path, quiet)
    assert whole.num_bytes == 7


def test_large_text_on_one_core_for_want_of_daft_is_said_with_the_way_out(
    tmp_path, recipe_for, monkeypatch
):
    path = lines(tmp_path / "one.jsonl", *(f"text {n}" for n in range(300)))
    monkeypatch.setattr(module, "goes_in_parts", lambda *_: True)
    monkeypatch.setattr("longhaul.data.corpus.engine.has_daft", lambda: False)
    monkeypatch.setattr(module, "has_daft", lambda: False)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    said = []
    prepare(recipe_for([path]), tmp_path, said.append)
    assert "data: on one core, without Daft; on all: pip install 'longhaul[corpus]'" in said


def test_the_second_time_it_is_reused_and_said_without_loading_tokenizers(tmp_path, recipe_for):
    path = lines(tmp_path / "a.jsonl", *(f"text {n}" for n in range(300)))
    recipe = recipe_for(path, "bpe", {"vocab_size": 300})
    first = prepare(recipe, tmp_path / "home", quiet)
    said = []
    second = prepare(recipe, tmp_path / "home", said.append)
    assert second.identity == first.identity
    assert len(said) == 1
    assert said[0].startswith("data: reusing ")
    assert str(first.folder) in said[0]
    script = f"""
import sys
from pathlib import Path
from longhaul.config.recipe import Recipe
from longhaul.data.prepare import prepare
recipe = Recipe.model_validate_json({recipe.model_dump_json()!r}, strict=False)
prepare(recipe, Path({str(tmp_path / "home")!r}), lambda line: None)
print(sorted({{"tokenizers", "pyarrow", "fsspec", "torch"}} & set(sys.modules)))
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.stdout.strip() == "[]", ended.stderr


@pytest.mark.parametrize("change", ["content", "tokenizer", "data"])
def test_what_decides_the_tokens_makes_another_folder(tmp_path, recipe_for, change):
    path = lines(tmp_path / "a.jsonl", "one", "two", "three")
    first = prepare(recipe_for(path), tmp_path / "home", quiet)
    if change == "content":
        lines(path, "one", "two", "four")
        recipe = recipe_for(path)
    elif change == "tokenizer":
        recipe = recipe_for(path, tokenizer={"end_of_text": False})
    else:
        recipe = recipe_for(path, held_out={"fraction": 0.3})
    second = prepare(recipe, tmp_path / "home", quiet)
    assert first.folder != second.folder
    assert first.identity != second.identity


def test_equal_data_has_equal_identity_at_another_place_and_time(tmp_path, recipe_for):
    found = []
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        path = lines(tmp_path / place / "a.jsonl", *(f"text {n}" for n in range(40)))
        os.utime(path, (len(found), len(found)))
        recipe = recipe_for(path, "bpe", {"vocab_size": 280})
        found.append(prepare(recipe, tmp_path / place, quiet).identity)
    assert found[0] == found[1]


def test_a_damaged_folder_is_said_and_prepared_again(tmp_path, recipe_for):
    recipe = recipe_for(lines(tmp_path / "a.jsonl", "one", "two", "three"))
    first = prepare(recipe, tmp_path / "home", quiet)
    next(first.folder.glob("*.shard")).unlink()
    said = []
    second = prepare(recipe, tmp_path / "home", said.append)
    assert "is missing); preparing it again" in said[0]
    assert second.identity == first.identity
    Verification(second.folder).compare_all()


def test_a_few_broken_lines_are_said_and_skipped(tmp_path, recipe_for):
    path = lines(tmp_path / "a.jsonl", *(f"text {n}" for n in range(50)))
    path.write_text(path.read_text() + "{broken\n")
    said = []
    dataset = prepare(recipe_for(path, max_broken_fraction=0.05), tmp_path / "home", said.append)
    assert "1 broken skipped (a.jsonl:51: not JSON" in said[0]
    assert dataset.num_bytes == sum(len(f"text {n}") for n in range(50))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "x"}\n{broken\n', "a.jsonl:2: not JSON"),
        ("a.txt", b"\x89PNG\0\0\0", "binary"),
        ("a.txt", b"caf\xe9", "not UTF-8"),
        ("a.txt", "café".encode("utf-16"), "UTF-16"),
        ("a.txt", b"", "nothing to train on (1 empty left out"),
        ("a.txt.gz", gzip.compress(b"x" * 100, mtime=0)[:-12], "truncated"),  # no time in a name
    ],
)
def test_a_broken_source_is_a_data_error_that_leaves_nothing(
    tmp_path, recipe_for, name, content, message
):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as raised:
        prepare(recipe_for(tmp_path / name), tmp_path / "home", quiet)
    assert message in str(raised.value)
    assert raised.value.exit_code == 3
    assert list((tmp_path / "home").iterdir()) == []


def test_a_split_with_an_empty_side_says_what_to_do(tmp_path, recipe_for):
    path = lines(tmp_path / "a.jsonl", "one")
    with pytest.raises(DataError, match="leave nothing held out") as raised:
        prepare(recipe_for(path, held_out={"by": "document"}), tmp_path, quiet)
    assert 'data.held_out.by = "tail"' in raised.value.remedy
    (tmp_path / "b.txt").write_text("x")
    with pytest.raises(DataError, match="leave nothing to train on"):
        prepare(recipe_for(tmp_path / "b.txt", tokenizer={"end_of_text": False}), tmp_path, quiet)


def test_a_full_disk_is_a_clear_message_and_leaves_nothing(tmp_path, recipe_for, monkeypatch):
    def full(path, write):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(shards, "write_atomically", full)
    with pytest.raises(LonghaulError, match="no space left on this disk") as raised:
        prepare(recipe_for(lines(tmp_path / "a.jsonl", "one")), tmp_path / "home", quiet)
    assert not isinstance(raised.value, DataError)
    assert list((tmp_path / "home").iterdir()) == []


def test_a_home_that_cannot_be_written_is_a_clear_message(tmp_path, recipe_for):
    (tmp_path / "home").write_text("a file")
    with pytest.raises(LonghaulError, match="home"):
        prepare(recipe_for(lines(tmp_path / "a.jsonl", "one")), tmp_path / "home", quiet)


def test_an_interruption_leaves_nothing(tmp_path, recipe_for, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "commit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        prepare(recipe_for(lines(tmp_path / "a.jsonl", "one")), tmp_path / "home", quiet)
    assert list((tmp_path / "home").iterdir()) == []


def test_preparing_the_same_twice_at_once_ends_well_for_both(tmp_path, recipe_for, monkeypatch):
    recipe = recipe_for(lines(tmp_path / "a.jsonl", "one", "two"))
    commit, meeting = module.commit, threading.Barrier(2, timeout=60)

    def together(*arguments):
        meeting.wait()
        commit(*arguments)

    monkeypatch.setattr(module, "commit", together)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(prepare(recipe, tmp_path / "home", quiet)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 2
    assert found[0].identity == found[1].identity
    assert [path.name for path in (tmp_path / "home").iterdir()] == [found[0].folder.name]
    Verification(found[0].folder).compare_all()


def test_what_dead_preparations_left_is_removed_and_living_ones_are_not(
    tmp_path, recipe_for, monkeypatch
):
    home = tmp_path / "home"
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"],
                           capture_output=True, text=True, check=True)  # fmt: skip
    monkeypatch.setattr(finishing.platform, "node", lambda: "this-host")
    names = {
        f".preparing-{int(ended.stdout)}-this-host-1234-a": False,
        f".preparing-{os.getpid()}-this-host-1234-a": True,
        ".preparing-1-other-host-1234-a": True,
        ".preparing-1-old-host-1234-a": False,
    }
    for name in names:
        (home / name).mkdir(parents=True)
    os.utime(home / ".preparing-1-old-host-1234-a", (1, 1))
    prepare(recipe_for(lines(tmp_path / "a.jsonl", "one")), home, quiet)
    assert {name: (home / name).exists() for name in names} == names


def test_a_tokenizer_file_is_taken_as_it_is(tmp_path, recipe_for):
    path = lines(tmp_path / "a.jsonl", *(f"text {n}" for n in range(40)))
    made = prepare(recipe_for(path, "bpe", {"vocab_size": 280}), tmp_path / "home", quiet)
    given = made.folder / "tokenizer.json"
    recipe = recipe_for(path, "file", {"path": str(given)})
    used = prepare(recipe, tmp_path / "home", quiet)
    assert used.identity == made.identity
    assert (used.folder / "tokenizer.json").read_bytes() == given.read_bytes()


def test_a_tokenizer_file_without_end_of_text_says_what_to_do(tmp_path, recipe_for):
    path = lines(tmp_path / "a.jsonl", "one", "two")
    without = prepare(recipe_for(path, tokenizer={"end_of_text": False}), tmp_path / "home", quiet)
    given = str(without.folder / "tokenizer.json")
    with pytest.raises(RecipeError, match=r"has no <\|endoftext\|>") as raised:
        prepare(recipe_for(path, "file", {"path": given}), tmp_path / "home", quiet)
    assert "tokenizer.end_of_text = false" in raised.value.remedy
    wanted = recipe_for(path, "file", {"path": given, "end_of_text": False})
    assert prepare(wanted, tmp_path / "home", quiet).identity == without.identity
    with pytest.raises(DataError, match=r"tokenizer\.path: .*gone\.json"):
        prepare(recipe_for(path, "file", {"path": "gone.json"}), tmp_path / "home", quiet)


def test_a_corpus_too_small_for_its_vocabulary_is_said(tmp_path, recipe_for):
    said = []
    recipe = recipe_for(lines(tmp_path / "a.jsonl", "aaaa"), "bpe", {"vocab_size": 5000})
    dataset = prepare(recipe, tmp_path / "home", said.append)
    assert dataset.vocab_size < 300
    assert any("asked for 5,000" in line for line in said)


def test_a_source_that_changes_in_between_is_noticed(tmp_path, recipe_for, monkeypatch):
    path = lines(tmp_path / "a.jsonl", "one", "two")
    survey = tokenize.take_survey

    def then_change(*arguments):
        found = survey(*arguments)
        lines(path, "one", "two", "tow")
        return found

    monkeypatch.setattr(tokenize, "take_survey", then_change)
    with pytest.raises(DataError, match="changed while it was prepared"):
        prepare(recipe_for(path, "characters"), tmp_path / "home", quiet)
