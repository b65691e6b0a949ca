"""A large file of JSON lines, cut between lines, is read as it is in one go."""

import gzip
import json
from pathlib import Path

import pytest

from longhaul.data.documents import Breakage
from longhaul.data.readers import read_file, stretches
from longhaul.data.readers.stretches import count_lines, stretches_of

LINES = [
    "\ufeff" + json.dumps({"text": "the first, behind a mark"}),
    *(json.dumps({"text": f"{number}: Grüße " + "x" * (number % 29)}) for number in range(40)),
    "no JSON",
    "",
    json.dumps({"text": "y" * 700}),
    json.dumps({"text": "ends as Windows does"}) + "\r",
    json.dumps({"text": " "}),
    *(json.dumps({"text": f"{number} z"}) for number in range(40)),
]


@pytest.fixture
def cut_at_100(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stretches, "STRETCH_BYTES", 100)


@pytest.mark.usefixtures("cut_at_100")
@pytest.mark.parametrize("end", ["\n", ""])
def test_documents_their_names_and_what_is_broken_are_those_of_the_whole(
    tmp_path: Path, end: str
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(LINES) + end)
    whole, cut = (Breakage("a", max_fraction=1.0) for _ in range(2))
    expected = list(read_file(path, "a.jsonl", "text", whole))
    found, before = [], 0
    pieces = stretches_of(path, "a.jsonl")
    assert len(pieces) > 10
    assert [piece.end for piece in pieces[:-1]] == [piece.begin for piece in pieces[1:]]
    assert (pieces[0].begin, pieces[-1].end) == (0, path.stat().st_size)
    for piece in pieces:
        stretch = stretches.Stretch(piece.begin, piece.end, before)
        found += read_file(path, "a.jsonl", "text", cut, stretch)
        before += count_lines(path, piece)
    assert found == expected
    assert cut.as_json() == whole.as_json()


@pytest.mark.usefixtures("cut_at_100")
def test_only_plain_json_lines_are_cut(tmp_path: Path) -> None:
    content = "\n".join(LINES).encode()
    packed, text, small = tmp_path / "a.jsonl", tmp_path / "a.txt", tmp_path / "b.jsonl"
    packed.write_bytes(gzip.compress(content, 0))  # by its bytes, whatever it is called
    text.write_bytes(content)
    small.write_bytes(content[:150])
    assert [stretches_of(p, p.name) for p in (packed, text, small)] == [[], [], []]
