"""Of a checkpoint in a store only the tensors asked for are fetched, and no file is believed."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from longhaul.checkpoint.tensor_file import write_tensor_file
from longhaul.store.manifest import Manifest, RefusedCheckpoint, write_listed_file, write_manifest
from longhaul.store.part import bring_part
from longhaul.store.transfers import StoreError

SIZE = 1 << 16


def checkpoint(folder: Path, chunks=None, header: bytes | None = None) -> Path:
    """With a model and an optimizer's state, spread over two files as by two ranks."""
    folder.mkdir()
    tensors = {
        "__0_0.safetensors": {"model.a": 1, "optim.a": 2, "model.b": 3},
        "__1_0.safetensors": {"optim.c": 4, "optim.d": 5},
    }
    entries = [
        write_tensor_file(folder / name, {k: torch.full((SIZE,), float(v)) for k, v in own.items()})
        for name, own in tensors.items()
    ]
    if header is not None:
        path = folder / "__0_0.safetensors"
        path.unlink()
        entries[0] = write_listed_file(path, [header])
    described = chunks or {
        key: {"chunks": [{"file": name, "key": key}]}
        for name, own in tensors.items()
        for key in own
    }
    written = {"metadata.json": {"tensors": described}, "state.json": {}}
    for name, body in written.items():
        entries.append(write_listed_file(folder / name, [json.dumps(body).encode()]))
    write_manifest(folder, Manifest(step=7, time=1.0, files=tuple(entries)))
    return folder


@pytest.fixture
def bring(tmp_path: Path, store, tier_of):
    def bring(cut: dict[str, int] | None = None, **made):
        tier = tier_of(store)
        tier.send(checkpoint(tmp_path / "step-7", **made), lambda: True)
        store.cut.update(cut or {})
        (there,) = tier.checkpoints()
        return bring_part(there, tier, tmp_path / "here", "model.", lambda text: None)

    return bring


def test_what_is_asked_for_is_there_bit_by_bit_and_the_rest_a_hole(bring, tmp_path: Path) -> None:
    manifest, fetched = bring()
    assert manifest.step == 7
    assert fetched == 2 * SIZE * 4
    here = tmp_path / "here"
    assert sorted(p.name for p in here.iterdir()) == [
        "__0_0.safetensors", "metadata.json", "state.json",
    ]  # fmt: skip
    with safe_open(here / "__0_0.safetensors", framework="pt") as file:
        values = {key: file.get_tensor(key).unique().tolist() for key in file.keys()}  # noqa: SIM118
    assert values == {"model.a": [1.0], "model.b": [3.0], "optim.a": [0.0]}


def test_a_transfer_that_is_cut_off_is_made_again(bring, store) -> None:
    assert bring(cut={"__0_0.safetensors": 3 * SIZE})[1] == 2 * SIZE * 4
    assert not store.cut


def test_a_store_that_goes_away_is_an_error_of_the_store(bring, store, monkeypatch) -> None:
    monkeypatch.setattr(
        "longhaul.store.part._ranges", lambda *given: setattr(store, "away", True) or [(0, 9)]
    )
    with pytest.raises(StoreError, match="503"):
        bring()


_TOO_LONG = (1 << 40).to_bytes(8, "little") + b"{}"


def _header(**entries) -> bytes:
    body = json.dumps(entries).encode()
    return len(body).to_bytes(8, "little") + body + b"\0" * 64


@pytest.mark.parametrize(("made", "told"), [
    ({"header": b"123"}, "too short"),
    ({"header": _TOO_LONG}, "cannot be"),
    ({"header": (4).to_bytes(8, "little") + b"nope"}, "JSON"),
    ({"header": _header(other={})}, "model.a"),
    ({"header": _header(**{"model.a": {"data_offsets": [0, 1 << 40]}})}, "model.a"),
    ({"header": _header(**{"model.a": {"data_offsets": [-8, 8]}})}, "model.a"),
    ({"header": _header(**{"model.a": {"data_offsets": [0, True]}})}, "model.a"),
    ({"chunks": {"model.a": {"chunks": [{"file": "../../evil", "key": "k"}]}}}, "not listed"),
    ({"chunks": {"model.a": {"chunks": [{"file": "state.json"}]}}}, "describes no tensors"),
    ({"chunks": {"model.a": []}}, "describes no tensors"),
])  # fmt: skip
def test_files_that_contradict_each_other_are_refused(bring, tmp_path: Path, made, told) -> None:
    if "header" in made:
        made["chunks"] = {"model.a": {"chunks": [{"file": "__0_0.safetensors", "key": "model.a"}]}}
    with pytest.raises(RefusedCheckpoint, match=told):
        bring(**made)
    assert not (tmp_path / "evil").exists()
