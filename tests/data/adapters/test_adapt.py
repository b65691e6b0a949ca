import json

import pyarrow as pa
import pytest
from pyarrow import parquet

from longhaul.config.data import SourceSection
from longhaul.data.documents import Breakage, Document
from longhaul.data.removed import Removed
from longhaul.data.sources import locate

ROWS = [
    {"id": "a", "parent_id": None, "body": "A question?", "score": 2, "made": 1.5},
    {"id": "b", "parent_id": "a", "body": "An answer.", "score": 1, "made": None},
    {"id": "c", "parent_id": "a", "body": "Another.", "score": 0, "made": None},
]


def read(path, tmp_path, **source):
    corpus = locate(SourceSection(path=str(path), **source), 1, tmp_path / "downloads", print)
    breakage, removed = Breakage(corpus.name, 1.0), Removed()
    return list(corpus.reader.documents(breakage, removed)), breakage, removed


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_an_adapter_sees_whole_records_of_either_kind(tmp_path, suffix):
    path = tmp_path / f"rc.{suffix}"
    if suffix == "jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    else:
        parquet.write_table(pa.Table.from_pylist(ROWS), path)
    documents, breakage, removed = read(path, tmp_path, adapter="discussion")
    assert documents == [Document("A question?\n\nAn answer.", f"rc.{suffix}:1")]
    assert (breakage.num_seen, removed.documents) == (4, 1)


def test_what_is_broken_is_counted_as_without_an_adapter(tmp_path):
    path = tmp_path / "rc.jsonl"
    lone = json.dumps({**ROWS[0], "id": "d", "body": "half \ud800 of a pair"})
    path.write_text(f"{json.dumps(ROWS[0])}\nno JSON\n[1]\n{lone}\n")
    documents, breakage, _ = read(path, tmp_path, adapter="discussion")
    assert [document.text for document in documents] == ["A question?"]
    assert breakage.num_broken == 3
    assert any("surrogate" in example for example in breakage.worst())


def test_an_address_comes_with_its_text(tmp_path):
    path = tmp_path / "web.jsonl"
    rows = [{"text": "Home.", "at": "https://example.org/"}, {"text": "", "at": "x"}, {"at": "y"}]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    documents, breakage, _ = read(path, tmp_path, url_field="at")
    assert documents == [Document("Home.", "web.jsonl:1", "https://example.org/")]
    assert (breakage.num_broken, breakage.num_empty) == (1, 1)


def test_plain_text_goes_through_an_adapter_file_by_file(tmp_path):
    (tmp_path / "mails").mkdir()
    for name in ("one", "two"):
        (tmp_path / "mails" / f"{name}.txt").write_text(f"Subject: {name}\n\nText.\n\n> quoted\n")
    documents, _, _ = read(tmp_path / "mails", tmp_path, adapter="mail")
    assert [d.text for d in documents] == ["one\n\nText.\n", "two\n\nText.\n"]
