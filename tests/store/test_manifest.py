import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longhaul.store.manifest import (
    MANIFEST_NAME,
    Manifest,
    RefusedCheckpoint,
    read_manifest,
    render_json,
    verify,
    write_listed_file,
    write_manifest,
)


def make(folder: Path) -> Path:
    folder.mkdir()
    files = (
        write_listed_file(folder / "__0_0.safetensors", [b"weights", memoryview(b" and more")]),
        write_listed_file(folder / "state.json", [render_json({"draw": 7})]),
    )
    write_manifest(folder, Manifest(step=3, time=1.5, files=files))
    return folder


def test_a_manifest_gives_back_what_was_written(tmp_path: Path) -> None:
    folder = make(tmp_path / "step-3")
    manifest, sha256 = read_manifest(folder)
    assert (manifest.step, manifest.time, len(sha256)) == (3, 1.5, 64)
    assert manifest.size_bytes == sum(
        (folder / file.name).stat().st_size for file in manifest.files
    )
    assert verify(folder, past_page_cache=True) == manifest


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_changed_byte_of_any_file_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "step-3"
    if not folder.exists():
        make(folder)
    path = data.draw(st.sampled_from(sorted(folder.iterdir())))
    whole = path.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    changed = data.draw(st.integers(0, 255).filter(lambda byte: byte != whole[place]))
    path.write_bytes(whole[:place] + bytes([changed]) + whole[place + 1 :])
    try:
        with pytest.raises(RefusedCheckpoint, match=path.name):
            verify(folder)
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize("name", [MANIFEST_NAME, "__0_0.safetensors", "state.json"])
def test_a_torn_or_absent_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    path = make(tmp_path / "step-3") / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RefusedCheckpoint, match=name):
        verify(path.parent)
    path.unlink()
    with pytest.raises(RefusedCheckpoint, match=name):
        verify(path.parent)


def test_the_error_tells_expected_and_found(tmp_path: Path) -> None:
    folder = make(tmp_path / "step-3")
    with (folder / "state.json").open("ab") as file:
        file.write(b" ")
    with pytest.raises(RefusedCheckpoint, match=r"state.json: 16 bytes long, .* says 15"):
        verify(folder)


def test_files_the_manifest_does_not_list_are_refused(tmp_path: Path) -> None:
    folder = make(tmp_path / "step-3")
    (folder / ".nfs0001").touch()
    verify(folder)
    (folder / ".metadata").write_bytes(b"a pickle")
    with pytest.raises(RefusedCheckpoint, match=r"\.metadata"):
        verify(folder)


def test_a_link_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    folder = make(tmp_path / "step-3")
    (folder / "state.json").rename(tmp_path / "elsewhere")
    (folder / "state.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RefusedCheckpoint, match="not a regular file"):
        verify(folder)


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "", MANIFEST_NAME, "a\0b", "a\n"])
def test_only_plain_file_names_are_taken(tmp_path: Path, name: str) -> None:
    folder = make(tmp_path / "step-3")
    manifest, _ = read_manifest(folder)
    entry = type(manifest.files[0])(name, 1, "0" * 64)
    write_manifest(folder, Manifest(step=3, time=1.5, files=(entry,)))
    with pytest.raises(RefusedCheckpoint, match="plain file name"):
        read_manifest(folder)


@pytest.mark.parametrize(
    "change",
    [{"step": -1}, {"step": True}, {"time": 1}, {"files": {}}, {"extra": 1}, {"files": [{}]}],
)
def test_a_manifest_of_another_shape_is_refused(tmp_path: Path, change: dict) -> None:
    path = make(tmp_path / "step-3") / MANIFEST_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(RefusedCheckpoint):
        read_manifest(path.parent)


def test_a_newer_format_is_named_as_such(tmp_path: Path) -> None:
    path = make(tmp_path / "step-3") / MANIFEST_NAME
    path.write_text(json.dumps({"format_version": 2, "whatever": []}))
    with pytest.raises(RefusedCheckpoint, match="format version 2; this longhaul reads 1"):
        read_manifest(path.parent)
