import os
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from longhaul.store import manifest
from longhaul.store.manifest import RefusedCheckpoint, Whole, read_json, shaped


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"a":1,"a":2}',
        b"[NaN]",
        b"[Infinity]",
        b"[1e999]",
        b"\xff",
        b"[" * 100_000,
        b"1" * 5000,
    ],
)
def test_what_is_not_plain_json_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "here").write_bytes(content)
    with pytest.raises(RefusedCheckpoint, match="here"):
        read_json(tmp_path / "here")


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "big").open("wb") as file:
        os.truncate(file.fileno(), manifest.MOST_JSON_BYTES + 1)
    with pytest.raises(RefusedCheckpoint, match="268 MB"):
        read_json(tmp_path / "big")
    with pytest.raises(RefusedCheckpoint, match="cannot be read"):
        read_json(tmp_path / "absent")


@pytest.mark.parametrize("value", [-1, 1.0, True, "1", None, 1 << 63])
def test_only_whole_numbers_in_range_are_whole(value: object) -> None:
    with pytest.raises(RefusedCheckpoint):
        shaped(TypeAdapter(Whole), value, "size")
    assert shaped(TypeAdapter(Whole), (1 << 63) - 1, "size") == (1 << 63) - 1
