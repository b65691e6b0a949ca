import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longhaul.core.errors import DataError
from longhaul.data import token_files
from longhaul.data.token_files import TokenPath, open_token_file

TOKENS = [5, 0, 7, 50256, 9]


def llm_c(tokens, magic=20240520, version=1, count=None, dtype="<u2") -> bytes:
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(tokens) if count is None else count
    return header.tobytes() + np.array(tokens, dtype).tobytes()


def megatron(documents, code=8, dtype="<u2") -> tuple[bytes, bytes]:
    """`.bin` and `.idx`: every inner list is a document, each of its lists a sequence."""
    sequences = [sequence for document in documents for sequence in document]
    lengths = np.array([len(s) for s in sequences], "<i4")
    pointers = (np.cumsum(lengths) - lengths).astype("<i8") * np.dtype(dtype).itemsize
    borders = np.cumsum([0, *(len(document) for document in documents)]).astype("<i8")
    index = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, code, len(sequences), len(borders))
    tokens = [token for sequence in sequences for token in sequence]
    return (
        np.array(tokens, dtype).tobytes(),
        index + lengths.tobytes() + pointers.tobytes() + borders.tobytes(),
    )


def opened(folder: Path, content: bytes, kind: str = "auto", index: bytes | None = None):
    (folder / "a.bin").write_bytes(content)
    if index is not None:
        (folder / "a.idx").write_bytes(index)
    at = folder / "a.idx" if index is not None else None
    return open_token_file(TokenPath(folder / "a.bin", "a.bin", kind, at))


def tokens_of(file) -> list[int]:
    return [token for _, piece in file.pieces() for token in piece.tolist()]


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (np.array(TOKENS, "<u2").tobytes(), "nanogpt"),
        (llm_c(TOKENS), "auto"),
        (llm_c(TOKENS), "llm.c"),
        (llm_c(TOKENS, 20240801, 7, dtype="<u4"), "auto"),
    ],
)
def test_every_format_gives_the_tokens_that_were_written(tmp_path, content, kind):
    assert tokens_of(opened(tmp_path, content, kind)) == TOKENS


@pytest.mark.parametrize(
    ("code", "dtype"), [(1, "<u1"), (2, "<i1"), (3, "<i2"), (4, "<i4"), (5, "<i8"), (8, "<u2")]
)
def test_megatron_gives_documents_in_every_type_of_token(tmp_path, code, dtype):
    content, index = megatron([[[1, 2], [3]], [], [[4, 5, 6]]], code, dtype)
    for kind in ("auto", "megatron"):
        pieces = [piece.tolist() for _, piece in opened(tmp_path, content, kind, index).pieces()]
        assert pieces == [[1, 2, 3], [4, 5, 6]]


def test_long_documents_are_cut_and_positions_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(token_files, "MAX_PIECE_TOKENS", 4)
    content, index = megatron([[[*range(10)]], [[*range(3)]]])
    pieces = [(at, len(p)) for at, p in opened(tmp_path, content, "auto", index).pieces()]
    assert pieces == [(0, 4), (4, 4), (8, 2), (10, 3)]


BIN, IDX = megatron([[[1, 2], [3]], [[4, 5, 6]]])


def patched(content: bytes, at: int, form: str, value: int) -> bytes:
    return content[:at] + struct.pack(form, value) + content[at + struct.calcsize(form) :]


@pytest.mark.parametrize(
    ("content", "kind", "index", "message"),
    [
        (b"\x89PNG\r\n\x1a\n", "auto", None, "unknown format"),
        (b"", "auto", None, "unknown format"),
        (b"", "nanogpt", None, "empty"),
        (b"abc", "nanogpt", None, "3 bytes, which is no whole number"),
        (llm_c(TOKENS), "nanogpt", None, "llm.c's magic 20240520"),
        (b"\0" * 2000, "llm.c", None, "not llm.c's format"),
        (llm_c(TOKENS)[:700], "auto", None, "truncated at 700 bytes"),
        (llm_c(TOKENS)[:-2], "auto", None, "counts 5 tokens of 2 bytes, but 8 bytes"),
        (llm_c(TOKENS, count=2**31 - 1), "auto", None, "counts 2,147,483,647 tokens"),
        (llm_c(TOKENS, count=-5), "auto", None, "counts -5 tokens"),
        (llm_c(TOKENS, version=2), "auto", None, "version 2"),
        (llm_c(TOKENS, magic=20240522), "auto", None, "multiple-choice"),
        (BIN, "megatron", None, "its index is missing"),
        (BIN, "auto", b"MMIDIDX\0", "not Megatron-LM's index"),
        (BIN, "auto", IDX[:20], "truncated at 20 bytes"),
        (BIN, "auto", IDX[:-1], "but it is"),
        (BIN, "auto", IDX + bytes(3), "several modes"),
        (BIN, "auto", patched(IDX, 9, "<Q", 2), "version 2"),
        (BIN, "auto", patched(IDX, 17, "<B", 9), "unknown type 9"),
        (BIN, "auto", patched(IDX, 17, "<B", 7), "float32"),
        (BIN, "auto", patched(IDX, 18, "<Q", 2**63), "9,223,372,036,854,775,808 sequences"),
        (BIN, "auto", patched(IDX, 26, "<Q", 0), "0 document"),
        (BIN, "auto", patched(IDX, 34, "<i", -2), "sequence 0 has -2 tokens"),
        (BIN, "auto", patched(IDX, 54, "<q", 2), "sequence 1 is said to begin at byte 2"),
        (BIN, "auto", patched(IDX, 70, "<q", 1), "document 0 begins at sequence 1 of 3"),
        (BIN, "auto", patched(IDX, 78, "<q", 9), "document 1 begins at sequence 9 of 3"),
        (BIN, "auto", patched(IDX, 86, "<q", 2), "documents end at sequence 2 of 3"),
        (BIN[:-2], "auto", IDX, "12 bytes long, but the .bin has 10"),
        (BIN + BIN, "auto", IDX, "12 bytes long, but the .bin has 24"),
    ],
)
def test_what_cannot_be_true_is_named_with_a_way_out(tmp_path, content, kind, index, message):
    with pytest.raises(DataError) as caught:
        tokens_of(opened(tmp_path, content, kind, index))
    assert message in caught.value.message
    assert "a." in caught.value.message
    assert caught.value.remedy


def test_a_file_that_is_cut_while_it_is_read_is_an_error_and_no_crash(tmp_path):
    file = opened(tmp_path, llm_c(TOKENS))
    (tmp_path / "a.bin").write_bytes(llm_c(TOKENS)[:-4])
    with pytest.raises(DataError, match="became shorter"):
        tokens_of(file)


changes = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=4)


def corrupted(content: bytes, damage, length: int | None) -> bytes:
    changed = bytearray(content)
    for at, value in damage:
        if changed:
            changed[at % len(changed)] = value
    return bytes(changed) if length is None else bytes(changed[: length % (len(changed) + 1)])


def outcome(*arguments) -> list[int] | None:
    """The tokens, or None for a DataError; never more than a megabyte of memory for these."""
    tracemalloc.start()
    try:
        return tokens_of(opened(*arguments))
    except DataError:
        return None
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1 << 20


once = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@once
@given(damage=changes, length=st.none() | st.integers(0, 1 << 20))
def test_damaged_llm_c_files_give_an_error_or_the_tokens_in_them(tmp_path, damage, length):
    content = corrupted(llm_c(TOKENS), [(at % 1100, value) for at, value in damage], length)
    found = outcome(tmp_path, content)
    assert found is None or found == np.frombuffer(content[1024:], "<u2").tolist()


@once
@given(damage=changes, length=st.none() | st.integers(0, 1 << 20))
def test_damaged_megatron_indices_give_an_error_or_all_the_tokens(tmp_path, damage, length):
    found = outcome(tmp_path, BIN, "auto", corrupted(IDX, damage, length))
    # A changed code may read the same bytes as another type; a changed border moves documents.
    as_written = [np.frombuffer(BIN, dtype).tolist() for dtype in ("<u2", "<i2")]
    assert found is None or found in as_written
