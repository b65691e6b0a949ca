import json
import random
from pathlib import Path

import pytest

from longhaul.core.errors import DataError
from longhaul.data.corpus import parts as parts_module
from longhaul.data.corpus import reading
from longhaul.data.corpus.engine import Resources
from longhaul.data.dataset import MANIFEST
from longhaul.data.prepare import LEFT_OUT, prepare
from longhaul.data.readers import stretches

ONE, TWO = Resources(1, 4 << 30), Resources(2, 4 << 30)
WORDS = ("ab", "cd", "efg", "hé", "ij", "klm")
KINDS = {"bytes": {}, "characters": {}, "bpe": {"vocab_size": 300, "training_mb": 0.01}}
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")


def quiet(_):
    pass


@pytest.fixture
def corpus(tmp_path):
    """Two sources of several files each: long and short texts, copies within and across them."""
    words = random.Random(7)
    texts = [" ".join(words.choice(WORDS) for _ in range(words.randrange(400))) for _ in range(250)]
    texts[100], texts[240] = texts[3], texts[9]
    for name, begin, end in (("one", 0, 150), ("two", 120, 250)):
        folder = tmp_path / name
        folder.mkdir()
        for number in range(4):
            mine = texts[begin + number : end : 4]
            rows = "".join(json.dumps({"text": text}) + "\n" for text in mine)
            (folder / f"{number}.jsonl").write_text(rows)
    return [tmp_path / "one", tmp_path / "two"]


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(parts_module, "PART_BYTES", 8_000)
    monkeypatch.setattr(reading, "_UNIT_BYTES", 20_000)
    monkeypatch.setattr(stretches, "STRETCH_BYTES", 12_000)  # the sources' files are of 30 kB


def shards(dataset) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(dataset.folder.glob("*.shard"))}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", ["document", "tail"])
def test_parts_give_the_bytes_of_one_process(tmp_path, corpus, recipe_for, small_parts, kind, by):
    held_out = {"by": by, "fraction": 0.1}
    recipe = recipe_for(corpus, kind, KINDS[kind], held_out=held_out)
    plain = prepare(recipe, tmp_path / "plain", quiet)
    inparts = prepare(recipe, tmp_path / "parts", quiet, resources=ONE)
    assert shards(inparts) == shards(plain)
    assert inparts.identity == plain.identity
    manifests = [json.loads((d.folder / MANIFEST).read_text()) for d in (plain, inparts)]
    assert manifests[0]["sources"] == manifests[1]["sources"]


def test_workers_leave_no_trace(tmp_path, corpus, recipe_for, monkeypatch):
    monkeypatch.setattr(reading, "_UNIT_BYTES", 20_000)
    monkeypatch.setattr(stretches, "STRETCH_BYTES", 12_000)
    recipe = recipe_for(corpus, "bpe", KINDS["bpe"])
    assert shards(prepare(recipe, tmp_path / "home-2", quiet, resources=TWO)) == shards(
        prepare(recipe, tmp_path / "home-1", quiet, resources=ONE)
    )


def files_made(home: Path) -> dict[str, int]:
    return {
        str(path.relative_to(home)): path.stat().st_mtime_ns
        for path in (home / "corpus").rglob("*.parquet")
    }


def test_another_tokenizer_reads_nothing_again(tmp_path, corpus, recipe_for, small_parts):
    home = tmp_path / "home"
    prepare(recipe_for(corpus, "bytes"), home, quiet, resources=ONE)
    before = files_made(home)
    prepare(recipe_for(corpus, "characters"), home, quiet, resources=ONE)
    assert before
    assert files_made(home) == before


@pytest.mark.parametrize("survived", [1, 3, 4])
def test_a_killed_preparation_goes_on_behind_its_last_part(
    tmp_path, corpus, recipe_for, small_parts, monkeypatch, survived
):
    recipe = recipe_for(corpus, "bytes")
    whole = shards(prepare(recipe, tmp_path / "whole", quiet, resources=ONE))
    home, written, write = tmp_path / "home", [], parts_module._write

    def dies_in_between(path, *columns):
        if len(written) == survived:
            path.with_suffix(".tmp").write_bytes(b"half of a part")
            raise KeyboardInterrupt
        written.append(path.name)
        write(path, *columns)

    with monkeypatch.context() as patch:
        patch.setattr(parts_module, "_write", dies_in_between)
        with pytest.raises(KeyboardInterrupt):
            prepare(recipe, home, quiet, resources=ONE)
    before = files_made(home)
    assert shards(prepare(recipe, home, quiet, resources=ONE)) == whole
    after = files_made(home)
    assert len(before) == survived
    assert before.items() <= after.items()


def test_a_damaged_part_is_named(tmp_path, corpus, recipe_for, small_parts):
    home = tmp_path / "home"
    prepare(recipe_for(corpus, "bytes"), home, quiet, resources=ONE)
    part = sorted((home / "corpus").rglob("*.parquet"))[0]
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    with pytest.raises(DataError, match=part.name):
        prepare(recipe_for(corpus, "characters"), home, quiet, resources=ONE)


def test_too_much_broken_is_refused_as_in_one_process(tmp_path, recipe_for):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "fine"}\n{"text": 1}\nnonsense\n')
    said = []
    for resources in (None, ONE):
        with pytest.raises(DataError) as caught:
            prepare(recipe_for(path), tmp_path / str(resources), quiet, resources=resources)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_stages_that_are_asked_for_are_counted_with_examples(tmp_path, corpus, recipe_for):
    sentence = "the quick brown fox jumps over the lazy dog while nobody at all is looking on"
    judged = tmp_path / "judged.txt"
    judged.write_text(sentence)
    texts = [f"before {sentence} after", "  spaced out \n\n\n\n\n text  "]
    boilerplate = "\n\nSubscribe to our weekly newsletter"
    texts += [f"kept {number}{boilerplate}" for number in range(9)]
    extra = tmp_path / "extra.jsonl"
    extra.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    said = []
    dataset = prepare(
        recipe_for(
            [extra],
            clean={"whitespace": True},
            dedup={"paragraphs": 3},
            contamination={"action": "remove", "evaluation_sets": (str(judged),)},
            held_out={"by": "tail", "fraction": 0.3},
        ),
        tmp_path / "home", said.append,
    )  # fmt: skip
    left_out = json.loads((dataset.folder / LEFT_OUT).read_text())["extra.jsonl"]
    assert set(left_out) == {
        "contaminated by judged.txt", "changed: whitespace", "changed: boilerplate paragraph cut",
    }  # fmt: skip
    assert left_out["changed: boilerplate paragraph cut"]["documents"] == 8
    found = left_out["contaminated by judged.txt"]
    assert found["documents"] == 1
    assert found["examples"][0][0].startswith("extra.jsonl:1")
    manifest = json.loads((dataset.folder / MANIFEST).read_text())
    assert manifest["sources"][0]["documents"] == 10
    assert manifest["sources"][0]["duplicates_dropped"] == 0
