import gzip
from functools import partial

import pyarrow as pa
import pyarrow.feather
import pytest

from longhaul.data.documents import Breakage
from longhaul.data.readers import read_file


def read(path, text_field="text"):
    breakage = Breakage("test", 1.0)
    found = [(d.name, d.text) for d in read_file(path, path.name, text_field, breakage)]
    return found, breakage


def write_arrow(path, table, opened):
    with opened(str(path), table.schema) as file:
        for batch in table.to_batches(max_chunksize=2):
            file.write_batch(batch)


WAYS = {
    "a.arrow": partial(write_arrow, opened=pa.ipc.new_file),
    "stream.arrow": partial(write_arrow, opened=pa.ipc.new_stream),
    "a.feather": lambda path, table: pyarrow.feather.write_feather(table, str(path)),
}


@pytest.mark.parametrize("name", WAYS)
def test_rows_of_arrow_are_documents_and_nulls_empty(tmp_path, name):
    texts = ["one", None, "drei ß", "", "five"]
    WAYS[name](tmp_path / name, pa.table({"other": [1, 2, 3, 4, 5], "text": texts}))
    found, breakage = read(tmp_path / name)
    assert found == [(f"{name}:1", "one"), (f"{name}:3", "drei ß"), (f"{name}:5", "five")]
    assert (breakage.num_broken, breakage.num_empty, breakage.fraction) == (0, 2, 0)


@pytest.mark.parametrize("name", WAYS)
def test_arrow_that_was_cut_counts_by_its_bytes(tmp_path, name):
    path = tmp_path / name
    WAYS[name](path, pa.table({"text": [f"document {n} " * 50 for n in range(300)]}))
    path.write_bytes(path.read_bytes()[:-700])
    _, breakage = read(path)
    assert breakage.fraction > 0.02, "not one of three hundred"
    assert "cannot be read as Arrow" in breakage.worst()[0]


def test_a_table_without_the_column_names_those_it_has_and_is_lost_by_its_size(tmp_path):
    for name in WAYS:
        WAYS[name](tmp_path / name, pa.table({"body": ["x"], "id": [1]}))
        _, breakage = read(tmp_path / name)
        assert (
            "no column 'text' (data.sources.text_field); its columns: body, id"
            in (breakage.worst()[0])
        )
        assert breakage.fraction == 1


CSV = '\ufeffid,text\r\n1,"one, and\nmore ""quoted"""\r\n2,\r\n\r\n3,vier ß\r\n'


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.tsv"])
def test_rows_of_delimited_text_are_documents(tmp_path, name):
    content = CSV.replace(",", "\t").replace("one\t", "one,") if name == "a.tsv" else CSV
    packed = gzip.compress(content.encode()) if name.endswith(".gz") else content.encode()
    (tmp_path / name).write_bytes(packed)
    found, breakage = read(tmp_path / name)
    assert found == [(f"{name}:1", 'one, and\nmore "quoted"'), (f"{name}:3", "vier ß")]
    assert (breakage.num_broken, breakage.num_empty) == (0, 1)


BROKEN_ROWS = {
    "not a row of a table": b'2,"stray" quote\n',
    "3 columns where the line of titles has 2": b"2,cut, here\n",
    "1 columns where": b"2\n",
    "not UTF-8": b"2,caf\xe9\n",
    "binary": b"2,\0\n",
}


@pytest.mark.parametrize("reason", BROKEN_ROWS)
def test_a_broken_row_is_counted_named_and_skipped(tmp_path, reason):
    (tmp_path / "a.csv").write_bytes(b"id,text\n1,one\n" + BROKEN_ROWS[reason] + b"3,three\n")
    found, breakage = read(tmp_path / "a.csv")
    assert found == [("a.csv:1", "one"), ("a.csv:3", "three")]
    assert breakage.num_broken == 1
    assert f"a.csv:2: {reason}" in breakage.worst()[0]


def test_other_columns_may_hold_anything_and_an_empty_table_is_empty(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"id,text\ncaf\xe9,one\n")
    assert read(tmp_path / "a.csv")[0] == [("a.csv:1", "one")]
    (tmp_path / "b.csv").write_bytes(b"")
    assert read(tmp_path / "b.csv")[1].num_empty == 1


def test_a_long_text_is_one_field_and_an_open_quote_does_not_end_silently(tmp_path):
    long = "word " * 100_000
    (tmp_path / "a.csv").write_text(f'text\n{long}\n"never closed\n')
    found, breakage = read(tmp_path / "a.csv")
    assert found == [("a.csv:1", long)]
    assert "unexpected end of data" in breakage.worst()[0]
