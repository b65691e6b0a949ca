import json
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longhaul.core.errors import DataError
from longhaul.data import shards
from longhaul.data.shards import Shard, ShardWriter, dtype_for

DOCUMENTS = st.lists(
    st.tuples(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
        st.lists(st.integers(0, 69_999), min_size=1, max_size=12),
        st.integers(0, 2**40),
    ),
    min_size=1,
    max_size=12,
)


def write(folder, documents, vocab_size=70_000, **limits):
    writer = ShardWriter(folder, "s", vocab_size, "c" * 64, **limits)
    for name, tokens, num_bytes in documents:
        writer.add(name, np.array(tokens, np.int64), num_bytes)
    return writer.close()


def read(paths):
    return [
        (name, tokens.tolist(), num_bytes)
        for path in paths
        for name, tokens, num_bytes in Shard(path).documents()
    ]


@settings(deadline=None, max_examples=50)
@given(DOCUMENTS, st.integers(1, 60), st.booleans())
def test_any_documents_come_back_from_any_number_of_shards(tmp_path_factory, documents, most, wide):
    folder = tmp_path_factory.mktemp("shards")
    if not wide:
        documents = [(name, [t % 1000 for t in tokens], size) for name, tokens, size in documents]
    paths = write(folder, documents, 70_000 if wide else 1000, max_tokens=most)
    assert read(paths) == documents
    for path in paths:
        shard = Shard(path)
        shard.verify()
        assert shard.dtype == np.dtype("uint32" if wide else "uint16")
        assert shard.tokenizer_sha256 == "c" * 64
        assert shard.num_tokens == len(shard.tokens) == int(shard.document_ends[-1])
    assert sum(Shard(path).num_bytes for path in paths) == sum(size for *_, size in documents)
    assert sorted(folder.iterdir()) == sorted(paths)


SMALL = [("a.txt", [1, 2, 3], 7), ("b.txt", [4], 1)]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    (path,) = write(tmp_path_factory.mktemp("small"), SMALL, 1000)
    return path.read_bytes()


def refused(path, content):
    path.write_bytes(content)
    with pytest.raises(DataError) as raised:
        Shard(path).verify()
    return raised.value.message


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_flipped_byte_is_found(tmp_path, small, data):
    # Half of the draws inside the short payload, where only the checksum can see it.
    position = data.draw(st.integers(0, len(small) - 1) | st.integers(4096, len(small) - 1))
    content = bytearray(small)
    content[position] ^= data.draw(st.integers(1, 255))
    refused(tmp_path / "s.shard", bytes(content))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_truncation_or_growth_is_found_on_opening(tmp_path, small, data):
    length = data.draw(st.integers(0, len(small) - 1))
    for content in (small[:length], small + bytes(length + 1)):
        (tmp_path / "s.shard").write_bytes(content)
        with pytest.raises(DataError):
            Shard(tmp_path / "s.shard")


def test_each_kind_of_damage_says_what_it_is(tmp_path, small):
    path = tmp_path / "s.shard"
    assert "not a shard" in refused(path, b"PNG..." * 1000)
    assert "not a shard" in refused(path, b"")
    assert "inside its header" in refused(path, small[:100])
    assert "instead of" in refused(path, small[:-1])
    assert "checksum" in refused(path, small[:-1] + b"\xff")
    future = small[:8] + struct.pack("<I", 2) + small[12:]
    assert "shard version 2; this longhaul reads 1" in refused(path, future)
    path.unlink()
    with pytest.raises(DataError, match="cannot be opened"):
        Shard(path)


@pytest.mark.parametrize(
    "change",
    [
        {"num_tokens": 10**18},
        {"num_documents": 10**18},
        {"num_tokens": -1},
        {"num_tokens": 3.5},
        {"dtype": "object"},
        {"sections": {"tokens": [0, 10**18], "names": [0, 0]}},
        {"sections": []},
        {"payload_sha256": 3},
    ],
)
def test_an_absurd_header_is_refused_before_anything_is_allocated(tmp_path, small, change):
    facts = json.loads(small[48:4096]) | change
    tracemalloc.start()
    try:
        refused(tmp_path / "s.shard", shards._header(facts) + small[4096:])
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_the_layout_is_as_documented(small):
    assert small[:8] == b"LHSHARD\n"
    facts = json.loads(small[48:4096])
    offset, size = facts["sections"]["tokens"]
    assert offset == 4096
    assert np.frombuffer(small, "<u2", size // 2, offset).tolist() == [1, 2, 3, 4]
    offset, size = facts["sections"]["document_ends"]
    assert np.frombuffer(small, "<u8", size // 8, offset).tolist() == [3, 4]
    offset, size = facts["sections"]["names"]
    assert small[offset : offset + size] == b"a.txtb.txt"


def test_equal_documents_give_equal_bytes(tmp_path, small):
    (path,) = write(tmp_path, SMALL, 1000)
    assert path.read_bytes() == small


def test_documents_without_tokens_leave_no_trace(tmp_path):
    assert write(tmp_path, [("empty", [], 0)]) == []


def test_a_token_beyond_the_vocabulary_is_never_written(tmp_path):
    with pytest.raises(ValueError, match="token 1000 beyond a vocabulary of 1000"):
        write(tmp_path, [("a", [1000], 1)], 1000)


def test_the_narrow_type_reaches_to_its_last_number():
    assert dtype_for(65_536) == np.dtype("uint16")
    assert dtype_for(65_537) == np.dtype("uint32")
