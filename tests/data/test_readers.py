import bz2
import gzip
import json
import lzma
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longhaul.core.errors import DataError
from longhaul.data.documents import Breakage
from longhaul.data.readers import files as readers
from longhaul.data.readers import format_of, read_file, suffix_advice, taken_from_folder


def read(path, text_field="text", limit=1.0):
    breakage = Breakage("test", limit)
    found = [(d.name, d.text) for d in read_file(path, path.name, text_field, breakage)]
    return found, breakage


def write_zst(path, content: bytes):
    with pa.output_stream(str(path), compression="zstd") as out:
        out.write(content)


def jsonl(*values) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def test_text_is_one_document_exactly_as_it_is(tmp_path):
    (tmp_path / "a.txt").write_bytes("é\r\nline\n\n".encode())
    assert read(tmp_path / "a.txt")[0] == [("a.txt", "é\r\nline\n\n")]


def test_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfhello")
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "hello"}\n')
    assert read(tmp_path / "a.txt")[0] == [("a.txt", "hello")]
    assert read(tmp_path / "a.jsonl")[0] == [("a.jsonl:1", "hello")]


@pytest.mark.parametrize(
    "suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".jsonl.xz", ".txt.gz", ".txt.zst", ".txt.bz2"]
)
def test_compressed_files_read_as_plain_ones(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    content = jsonl({"text": "one"}, {"text": "two"})
    if suffix.endswith(".gz"):
        path.write_bytes(gzip.compress(content))
    elif suffix.endswith(".zst"):
        write_zst(path, content)
    elif suffix.endswith((".xz", ".bz2")):
        path.write_bytes((lzma if suffix.endswith(".xz") else bz2).compress(content))
    else:
        path.write_bytes(content)
    lines = [(f"{path.name}:1", "one"), (f"{path.name}:2", "two")]
    expected = lines if ".jsonl" in suffix else [(path.name, content.decode())]
    assert read(path)[0] == expected


BROKEN_LINES = {
    "not JSON": b'{"text": "half\n',
    "not a JSON object": b'["text"]\n',
    "no field 'text'": b'{"body": "x"}\n',
    "the text is no string but int 3": b'{"text": 3}\n',
    "the text is no string but NoneType": b'{"text": null}\n',
    "not UTF-8": b'{"text": "caf\xe9"}\n',
    "half of a surrogate pair": b'{"text": "\\ud800"}\n',
    "nested too deeply": b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
    "binary": b'{"text": "\0"}\n',
}


@pytest.mark.parametrize("reason", BROKEN_LINES)
def test_a_broken_line_is_counted_named_and_skipped(tmp_path, reason):
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl({"text": "one"}) + BROKEN_LINES[reason] + jsonl({"text": "three"}))
    found, breakage = read(path)
    assert found == [("a.jsonl:1", "one"), ("a.jsonl:3", "three")]
    assert breakage.num_broken == 1
    assert breakage.num_seen == 4  # three lines and the file
    assert f"a.jsonl:2: {reason}" in breakage.worst()[0]


def test_blank_lines_and_empty_texts_are_not_broken(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\n  \n{"text": ""}\n{"text": "x"}\n\n')
    found, breakage = read(tmp_path / "a.jsonl")
    assert found == [("a.jsonl:4", "x")]
    assert (breakage.num_broken, breakage.num_empty) == (0, 1)


def test_an_over_long_line_is_skipped_and_reading_goes_on(tmp_path, monkeypatch):
    bounded_lines = readers.bounded_lines
    monkeypatch.setattr(readers, "bounded_lines", lambda s: bounded_lines(s, 1000))
    content = jsonl({"text": "one"}, {"text": "x" * 5000}, {"text": "three"})
    (tmp_path / "a.jsonl").write_bytes(content)
    found, breakage = read(tmp_path / "a.jsonl")
    assert [name for name, _ in found] == ["a.jsonl:1", "a.jsonl:3"]
    assert "a.jsonl:2: longer than 64 MiB" in breakage.worst()[0]


BROKEN_FILES = {
    "binary": b"\x7fELF\x02\x00\x00\x00" * 10,
    "not UTF-8 (byte 0xe9 at 3); binary, or another encoding such as latin-1?": b"caf\xe9\n",
    "UTF-16, not UTF-8": "\ufeffhello there".encode("utf-16-le"),
}


@pytest.mark.parametrize("reason", BROKEN_FILES)
def test_a_broken_text_file_is_counted_and_named(tmp_path, reason):
    (tmp_path / "a.txt").write_bytes(BROKEN_FILES[reason])
    found, breakage = read(tmp_path / "a.txt")
    assert found == []
    assert f"a.txt: {reason}" in breakage.worst()[0]


def test_utf16_without_a_mark_is_called_utf16(tmp_path):
    (tmp_path / "a.txt").write_bytes("plain English".encode("utf-16-be"))
    assert "UTF-16" in read(tmp_path / "a.txt")[1].worst()[0]


def test_an_empty_file_is_empty(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_bytes(b"" if name == "a.txt" else b" \n\n")
        found, breakage = read(tmp_path / name)
        assert (found, breakage.num_empty, breakage.num_broken) == ([], 1, 0)


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".xz", ".bz2"])
def test_a_truncated_file_keeps_what_came_before_and_is_named(tmp_path, suffix):
    numbers = random.Random(1)
    content = jsonl(*({"text": f"{numbers.random()}" * 5} for _ in range(20_000)))
    path = tmp_path / f"a.jsonl{suffix}"
    if suffix == ".gz":
        path.write_bytes(gzip.compress(content))
    elif suffix == ".zst":
        write_zst(path, content)
    else:
        path.write_bytes((lzma if suffix == ".xz" else bz2).compress(content))
    path.write_bytes(path.read_bytes()[:-10_000])
    found, breakage = read(path)
    assert 1_000 < len(found) < 20_000
    assert "runcated" in breakage.worst()[0]


def folder_of(tmp_path, *sizes_kept):
    """Files of equally many lines, of which each keeps this share of its bytes."""
    numbers = random.Random(1)
    for place, kept in enumerate(sizes_kept):
        whole = jsonl(*({"text": f"{numbers.random()}" * 5} for _ in range(5_000)))
        packed = gzip.compress(whole)
        (tmp_path / f"{place}.jsonl.gz").write_bytes(packed[: int(len(packed) * kept)])
    breakage = Breakage("corpus", 0.1)
    for path in sorted(tmp_path.iterdir()):
        for _ in read_file(path, path.name, "text", breakage):
            pass
    return breakage


def test_a_truncated_file_counts_by_its_bytes_not_as_one_of_many_lines(tmp_path):
    breakage = folder_of(tmp_path, 1, 1, 0.9)
    assert breakage.num_broken == 0
    assert breakage.fraction == pytest.approx(0.9 / 2.9, abs=0.01), "what is missing is unknown"
    with pytest.raises(DataError) as refused:
        breakage.judge()
    assert "in files are lost" in str(refused.value)
    assert "2.jsonl.gz: ends in the middle" in str(refused.value)
    assert "is unknown, so all of it counts" in str(refused.value)
    again = Breakage("corpus", 0.1)
    again.add_json(json.loads(json.dumps(breakage.as_json())))
    assert (again.fraction, again.summary()) == (breakage.fraction, breakage.summary())


def test_of_a_damaged_file_only_what_lies_behind_the_damage_is_lost(tmp_path):
    numbers = random.Random(1)
    members = [
        gzip.compress(jsonl(*({"text": f"{numbers.random()}" * 5} for _ in range(20_000))))
        for _ in range(4)
    ]
    members[2] = members[2][:10] + b"\xff" * 10 + members[2][20:]
    (tmp_path / "a.jsonl.gz").write_bytes(b"".join(members))
    found, breakage = read(tmp_path / "a.jsonl.gz")
    assert breakage.fraction == pytest.approx(0.5, abs=0.05)
    assert len(found) == 40_000
    assert "% of it is lost" in breakage.worst()[0]


def test_a_truncated_zst_that_says_its_size_counts_what_is_missing(tmp_path):
    numbers = random.Random(1)
    whole = jsonl(*({"text": f"{numbers.random()}" * 5} for _ in range(50_000)))
    packed = pa.Codec("zstd").compress(whole, asbytes=True)  # one frame, with its size
    (tmp_path / "a.jsonl.zst").write_bytes(packed[: len(packed) * 7 // 10])
    found, breakage = read(tmp_path / "a.jsonl.zst")
    assert breakage.fraction == pytest.approx(0.3, abs=0.05)
    assert len(found) == pytest.approx(35_000, rel=0.1)
    assert "of it is missing" in breakage.worst()[0]


def test_damaged_gzip_is_named(tmp_path):
    content = bytearray(gzip.compress(b"hello " * 1000))
    content[15:25] = b"\xff" * 10
    (tmp_path / "a.txt.gz").write_bytes(content)
    found, breakage = read(tmp_path / "a.txt.gz")
    assert found == []
    assert "a.txt.gz: cannot be read" in breakage.worst()[0]


def test_a_file_that_went_away_is_named_without_its_path(tmp_path):
    _, breakage = read(tmp_path / "gone.txt")
    assert breakage.worst() == ["gone.txt: cannot be read (No such file or directory)"]


@settings(deadline=None)
@given(st.text(alphabet="aé漢😀\n", min_size=1, max_size=300))
def test_a_big_text_is_cut_into_numbered_documents_that_add_up(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("cut") / "big.txt"
    path.write_bytes(text.encode())
    original = readers.MAX_PIECE_BYTES
    readers.MAX_PIECE_BYTES = 16
    try:
        found, breakage = read(path)
    finally:
        readers.MAX_PIECE_BYTES = original
    assert breakage.num_broken == 0
    if text.isspace() and len(text.encode()) < 16:
        assert found == []
        return
    assert "".join(piece for _, piece in found) == text
    if len(found) > 1:
        assert [name for name, _ in found] == [f"big.txt#{n + 1}" for n in range(len(found))]


def parquet(path, column, **more):
    pq.write_table(pa.table({"text": column, **more}), path)


def test_parquet_rows_are_documents(tmp_path):
    path = tmp_path / "a.parquet"
    parquet(path, pa.array(["one", None, "", "four"]), other=pa.array([1, 2, 3, 4]))
    found, breakage = read(path)
    assert found == [("a.parquet:1", "one"), ("a.parquet:4", "four")]
    assert (breakage.num_broken, breakage.num_empty) == (0, 2), "a null is an empty document"


def test_a_value_that_is_no_text_is_broken(tmp_path):
    parquet(tmp_path / "a.parquet", pa.array([1, 2]))
    assert "the text is no string but int 1" in read(tmp_path / "a.parquet")[1].worst()[0]


def test_parquet_without_the_column_names_those_it_has(tmp_path):
    parquet(tmp_path / "a.parquet", pa.array(["one"]))
    _, breakage = read(tmp_path / "a.parquet", "body")
    assert "no column 'body' (data.sources.text_field); its columns: text" in breakage.worst()[0]


def test_a_file_that_is_no_parquet_is_named(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"no parquet at all")
    assert "cannot be read as Parquet" in read(tmp_path / "a.parquet")[1].worst()[0]


def test_formats_by_name():
    assert format_of("a.TXT") == format_of("a.py.gz") == "text"
    assert (
        format_of("a.jsonl.zst") == format_of("c4.json.gz") == format_of("a.json") == "json lines"
    )
    assert format_of("a.parquet") == "parquet"
    assert format_of("a.CSV") == format_of("a.tsv.xz") == "csv"
    assert format_of("a.arrow") == format_of("a.feather") == "arrow"
    assert format_of("CC-MAIN.warc.wet.gz") == format_of("a.warc") == "warc"
    assert format_of("shard-000.tar") == "tar"
    assert format_of("a.png") is format_of("a") is format_of("a.tar.gz") is None
    assert taken_from_folder("c4.json.gz")
    assert not taken_from_folder("package.json")


def test_advice_names_the_nearest_format():
    assert "did you mean .jsonl?" in suffix_advice("a.jsnl")
    assert "a.txt" in suffix_advice("a.doc")
