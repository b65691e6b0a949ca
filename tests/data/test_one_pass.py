import json
from pathlib import Path

import numpy as np
import pytest

from longhaul.config.data import DataSection, SourceSection, TokenizerSection
from longhaul.core.errors import DataError
from longhaul.data.documents import is_held_out
from longhaul.data.one_pass import write_in_one_pass
from longhaul.data.shards import Shard
from longhaul.data.sources import locate
from longhaul.data.tokenize import TextInOneProcess
from longhaul.data.tokenizing import ByteTokenizer


class SomeTexts(ByteTokenizer):
    """Makes nothing of texts about the letter x, as SentencePiece of some characters."""

    def encode(self, text):
        return super().encode("" if "x" in text else text)


def quiet(_):
    pass


def section(folder: Path, texts, **held_out) -> tuple[DataSection, SourceSection]:
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"text": text}) if text != "broken" else "{broken" for text in texts]
    (folder / "a.jsonl").write_text("\n".join(lines) + "\n")
    source = SourceSection(path=str(folder / "a.jsonl"))
    data = DataSection(sources=(source,), held_out=held_out, max_broken_fraction=0.1)
    return data, source


def two_passes(folder: Path, data, source, tokenizer):
    text = TextInOneProcess((locate(source, 0, folder, quiet),), data, None, quiet)
    survey = text.survey(TokenizerSection(kind="bytes")).sources[0]
    return survey, text.tokens(0, folder / "00-a", survey, tokenizer)


def one_pass(folder: Path, data, source, tokenizer):
    def is_apart(digest: bytes, _: object) -> bool:
        return is_held_out(digest, data.held_out.fraction)

    corpus = locate(source, 0, folder, quiet)
    return write_in_one_pass(folder / "00-a", corpus, set(), is_apart, data, tokenizer, quiet)


CASES = {
    "few": (50, {}, "tail"),
    "just too few": (199, {"fraction": 0.2}, "tail"),
    "just enough": (200, {"fraction": 0.2}, "document"),
    "many": (900, {"fraction": 0.05}, "document"),
    "the first held out comes late": (5000, {"fraction": 0.0005}, "document"),
    "none is held out": (1000, {"fraction": 1e-9}, "tail"),
    "by document": (60, {"by": "document", "fraction": 0.3}, "document"),
    "by tail": (900, {"by": "tail", "fraction": 0.3}, "tail"),
}


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(True), SomeTexts(False)])
@pytest.mark.parametrize("case", CASES)
def test_the_shards_are_those_of_two_passes(tmp_path, case, tokenizer):
    number, held_out, split = CASES[case]
    texts = [f"{n} {'xyz'[n % 3]}" for n in range(number)]
    texts += texts[:5]
    ours = one_pass(tmp_path / "one", *section(tmp_path / "one", texts, **held_out), tokenizer)
    theirs = two_passes(tmp_path / "two", *section(tmp_path / "two", texts, **held_out), tokenizer)
    assert ours[0] == theirs[0]
    assert ours[1].split == theirs[1].split == split
    files = [sorted(p for p in (tmp_path / name).glob("*.shard")) for name in ("one", "two")]
    assert [path.name for path in files[0]] == [path.name for path in files[1]]
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(*files, strict=True))


@pytest.mark.parametrize(
    "texts", [["broken"] * 8 + ["a", "b"], ["", " "], ["only one"]], ids=["broken", "empty", "one"]
)
def test_errors_are_those_of_two_passes(tmp_path, texts):
    said = []
    for way in (one_pass, two_passes):
        with pytest.raises(DataError) as raised:
            way(tmp_path, *section(tmp_path, texts, by="document"), ByteTokenizer(True))
        said.append((raised.value.message, raised.value.remedy))
        for path in tmp_path.glob("*.shard"):
            path.unlink()
    assert said[0] == said[1]


def test_a_text_of_several_batches_is_whole(tmp_path):
    texts = [f"{n} " * 3000 for n in range(300)]
    data, source = section(tmp_path, texts, fraction=0.1)
    _, made = one_pass(tmp_path, data, source, ByteTokenizer(True))
    paths = (*made.train.paths, *made.held_out.paths)
    assert sum(int(np.count_nonzero(Shard(path).tokens == 256)) for path in paths) == 300
    assert made.train.num_bytes + made.held_out.num_bytes == sum(map(len, texts))
