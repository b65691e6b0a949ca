import gzip
import json

import pytest

from longhaul.config.data import DataSection
from longhaul.core.errors import DataError
from longhaul.data.clean.preview import preview, preview_lines
from longhaul.data.sources import locate


def previewed(path, tmp_path, sample_bytes=10**6, show=3, source=None, **data):
    settings = {"sources": ({"path": str(path), **(source or {})},), **data}
    checked = DataSection.model_validate(settings)
    corpus = locate(checked.sources[0], 1, tmp_path / "downloads", print)
    return preview(corpus, checked, sample_bytes, show)


def lines_of(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def test_a_table_by_reason_with_examples_and_documents_before_and_after(tmp_path):
    path = lines_of(tmp_path / "web.jsonl", ["kept as it is", "trailing  \nspace", "short"])
    found = previewed(path, tmp_path, clean={"whitespace": True}, filters={"words": (2, 9)})
    assert (found.looked_at, found.kept, found.is_whole) == (3, 2, True)
    shown = list(preview_lines(found, 3))
    assert shown[0] == "web.jsonl: 3 documents (34 B); 2 stay (66.7%), 27 B"
    assert [line.split() for line in shown if "words < 2" in line] == [
        ["words", "<", "2", "1", "33.3%", "5", "B"]
    ]
    assert "      web.jsonl:3: short" in shown
    assert shown[-3:] == [
        "    web.jsonl:2 (whitespace)",
        "      - trailing  ",
        "      + trailing",
    ]


def test_a_sample_is_the_same_each_time_and_spread_over_the_source(tmp_path):
    (tmp_path / "web").mkdir()
    for file in range(20):
        texts = [f"document {n} of file {file} " + "word " * 50 for n in range(20)]
        lines_of(tmp_path / "web" / f"{file:02d}.jsonl", texts)
    settings = {"filters": {"words": (1000, 2000)}}
    one, two = (previewed(tmp_path / "web", tmp_path, 20_000, **settings) for _ in range(2))
    assert one.removed.as_json() == two.removed.as_json()
    assert not one.is_whole
    assert 20 < one.looked_at < 100
    files = {name.partition(":")[0] for name, _ in one.removed.reasons["words < 1000"].examples}
    assert len(files) > 5
    assert "a sample" in next(iter(preview_lines(one, 1)))


def test_of_packed_files_whose_size_says_little_the_sample_is_not_the_first_ones(tmp_path):
    (tmp_path / "web").mkdir()
    for file in range(20):
        rows = (json.dumps({"text": f"{n} of {file} " + "word " * 50}) for n in range(20))
        content = gzip.compress("\n".join(rows).encode())
        (tmp_path / "web" / f"{file:02d}.jsonl.gz").write_bytes(content)
    found = previewed(tmp_path / "web", tmp_path, 20_000, filters={"words": (1000, 2000)})
    files = {name.partition(".")[0] for name, _ in found.removed.reasons["words < 1000"].examples}
    assert not found.is_whole
    assert not files & {"00", "01", "02"}


def test_what_an_adapter_makes_is_shown_beside_what_it_was_made_from(tmp_path):
    path = lines_of(tmp_path / "mail.jsonl", ["Subject: Hi\n\nYes.\n\nAda wrote:\n> Is it?\n"])
    found = previewed(path, tmp_path, source={"adapter": "mail"})
    shown = "\n".join(preview_lines(found, 3))
    assert "mail: quoted" in shown
    assert "      - > Is it?" in shown
    assert found.samples[0].after == "Hi\n\nYes.\n"


def test_too_much_that_is_broken_is_said_and_nothing_is_written(tmp_path):
    path = tmp_path / "web.jsonl"
    path.write_text("not JSON\n" * 3)
    with pytest.raises(DataError, match="broken"):
        previewed(path, tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["web.jsonl"]
