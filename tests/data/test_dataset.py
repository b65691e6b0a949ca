import itertools
import json
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longhaul.core.errors import DataError
from longhaul.core.files import sha256_of
from longhaul.data.dataset import DocumentSpan, TokenStream, load_tokenizer, open_dataset
from longhaul.data.prepare import prepare
from longhaul.data.shards import Shard, ShardWriter
from longhaul.data.verification import Verification


def stream(folder, lengths, most):
    """Documents of these lengths; token = position in the stream."""
    writer = ShardWriter(folder, "s", 10_000, "c" * 64, max_tokens=most)
    begin = 0
    for number, length in enumerate(lengths):
        writer.add(f"d{number}", np.arange(begin, begin + length), length)
        begin += length
    return TokenStream([Shard(path) for path in writer.close()])


LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=12)


@settings(deadline=None, max_examples=40)
@given(LENGTHS, st.integers(1, 30), st.data())
def test_windows_are_the_tokens_at_their_positions_across_shards(
    tmp_path_factory, lengths, most, data
):
    tokens = stream(tmp_path_factory.mktemp("s"), lengths, most)
    total = sum(lengths)
    assert (tokens.num_tokens, tokens.num_documents, tokens.num_bytes) == (
        total, len(lengths), total,
    )  # fmt: skip
    length = data.draw(st.integers(0, total))
    begins = np.array(data.draw(st.lists(st.integers(0, total - length), max_size=5)), np.int64)
    windows = tokens.gather(begins, length)
    assert windows.dtype == np.int64
    assert windows.tolist() == [list(range(b, b + length)) for b in begins.tolist()]


@settings(deadline=None, max_examples=40)
@given(LENGTHS, st.integers(1, 30), st.data())
def test_documents_in_a_window_are_those_with_a_token_in_it(tmp_path_factory, lengths, most, data):
    begin = data.draw(st.integers(0, sum(lengths)))
    end = data.draw(st.integers(0, sum(lengths) + 2))
    tokens = stream(tmp_path_factory.mktemp("s"), lengths, most)
    edges = np.cumsum([0, *lengths]).tolist()
    expected = [
        DocumentSpan(f"d{number}", first, last)
        for number, (first, last) in enumerate(itertools.pairwise(edges))
        if first < end and last > begin and begin < end
    ]
    assert tokens.documents_in(begin, end) == expected


def test_a_window_that_begins_with_a_document_does_not_hold_the_one_before(tmp_path):
    tokens = stream(tmp_path, [3, 4, 5], 100)
    assert [span.name for span in tokens.documents_in(3, 7)] == ["d1"]
    assert [span.name for span in tokens.documents_in(2, 8)] == ["d0", "d1", "d2"]


def test_windows_outside_of_the_stream_are_an_error(tmp_path):
    tokens = stream(tmp_path, [5, 5], 5)
    for begin in (-1, 8):
        with pytest.raises(IndexError, match="within a stream of 10"):
            tokens.gather(np.array([begin]), 3)


@pytest.fixture
def prepared(tmp_path, recipe_for):
    from longhaul.data.prepare import prepare

    (tmp_path / "a.txt").write_text("one two three four\n" * 20)
    return prepare(recipe_for(tmp_path / "a.txt", "bytes"), tmp_path / "home", lambda line: None)


def test_identity_is_that_of_the_content_wherever_it_lies(tmp_path, prepared):
    copy = shutil.copytree(prepared.folder, tmp_path / "elsewhere")
    manifest = json.loads((copy / "dataset.json").read_text())
    manifest["prepared"] = "another day"
    (copy / "dataset.json").write_text(json.dumps(manifest))
    Verification(copy).compare_all()
    assert open_dataset(copy).identity == prepared.identity
    manifest["sources"][0]["weight"] = 2.0
    (copy / "dataset.json").write_text(json.dumps(manifest))
    assert open_dataset(copy).identity != prepared.identity


def test_the_tokenizer_is_the_one_the_tokens_were_made_with(prepared):
    window = prepared.sources[0].train.gather(np.array([0]), 7)[0]
    assert prepared.tokenizer.decode(window.tolist()) == "one two"
    assert prepared.tokenizer.vocab_size == prepared.vocab_size


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: f("*.shard").unlink(), "shard is missing"),
        (lambda f: f("*.shard").write_bytes(b"x"), "1 bytes instead of"),
        (lambda f: f("dataset.json").write_text("{"), r"dataset\.json"),
        (lambda f: f("dataset.json").write_text('{"format": 1}'), r"dataset\.json"),
        (lambda f: f("dataset.json").write_text('{"format": 9}'), "data format 9"),
        (lambda f: f("dataset.json").unlink(), r"dataset\.json is missing"),
    ],
)
def test_a_damaged_folder_is_refused_on_opening(prepared, damage, message):
    damage(lambda pattern: next(prepared.folder.glob(pattern)))
    with pytest.raises(DataError, match=message):
        open_dataset(prepared.folder)


def test_a_flipped_byte_is_found_by_verify(prepared):
    path = next(prepared.folder.glob("*train*.shard"))
    content = bytearray(path.read_bytes())
    content[4100] ^= 1
    path.write_bytes(content)
    open_dataset(prepared.folder)
    with pytest.raises(DataError, match="its bytes are not those that were prepared"):
        Verification(prepared.folder).compare_all()


def test_shards_of_another_tokenizer_are_refused(prepared):
    writer = ShardWriter(prepared.folder, "other", 300, "d" * 64)
    writer.add("a", np.array([1]), 1)
    (path,) = writer.close()
    manifest = json.loads((prepared.folder / "dataset.json").read_text())
    manifest["sources"][0]["train"] = [
        {"file": path.name, "bytes": path.stat().st_size, "sha256": sha256_of(path)}
    ]
    (prepared.folder / "dataset.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="another tokenizer"):
        open_dataset(prepared.folder)


def test_the_manifest_names_the_tokenizers_hash(prepared):
    manifest = json.loads((prepared.folder / "dataset.json").read_text())
    loaded = load_tokenizer(prepared.folder / manifest["tokenizer"]["file"])
    assert loaded.sha256 == manifest["tokenizer"]["sha256"]


def test_the_table_and_the_manifest_count_each_source(tmp_path, recipe_for):
    (tmp_path / "short.txt").write_text("one two\n" * 50)
    (tmp_path / "longer.txt").write_text("naïve words\n" * 1000)
    recipe = recipe_for(
        [tmp_path / "short.txt", tmp_path / "longer.txt"], held_out={"fraction": 0.1}
    )
    made = prepare(recipe, tmp_path / "home", lambda _: None)
    head, *rows = made.table().splitlines()
    assert " ".join(head.split()) == "source documents MB tokens bytes a token held out by"
    assert rows[1].split() == ["longer.txt", "2", "0.0", "13,001", "1.00", "1,301", "tail"]
    assert head.index("tokens") + len("tokens") == rows[1].index("13,001") + len("13,001")
    sources = json.loads((made.folder / "dataset.json").read_text())["sources"]
    assert sources[1]["tokens"] == {"train": 11_700, "held_out": 1301}
    assert [source["bytes"] for source in sources] == [400, 13_000]
