import json
import os
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from longhaul.checkpoint.capture import StateMismatch, TrainingState
from longhaul.checkpoint.layout import METADATA_NAME
from longhaul.checkpoint.loader import load, load_part, read_facts, restore
from longhaul.checkpoint.write import render_facts
from longhaul.store.manifest import (
    FACTS_NAME,
    MANIFEST_NAME,
    FileEntry,
    Manifest,
    RefusedCheckpoint,
    read_manifest,
    write_listed_file,
    write_manifest,
)

TENSORS = "__0_0.safetensors"


def test_loading_fills_the_same_tensors_and_gives_the_facts(
    tmp_path: Path, tensors: dict, blank: Callable, same_bits: Callable, written: Callable
) -> None:
    path = written(tmp_path, tensors)
    fresh = blank(tensors)
    loaded = load(path, TrainingState(fresh, {}))
    same_bits(fresh, tensors)
    assert (loaded.step, loaded.attempt) == (5, 1)
    assert loaded.facts == {"trainer": {"draw": 17, "rate": 0.1 + 0.2}}
    assert read_facts(path) == loaded


class Part:
    def __init__(self) -> None:
        self.weight, self.draw = torch.zeros(2), 0

    def tensors(self) -> Mapping[str, Tensor]:
        return {"weight": self.weight}

    def facts(self) -> Mapping[str, Any]:
        return {"draw": self.draw}

    def take_back(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self.draw = facts["draw"]


def test_parts_are_restored(tmp_path: Path, written: Callable) -> None:
    path = written(tmp_path, {"trainer.weight": torch.tensor([1.0, 2.0])})
    trainer = Part()
    restore(path, {"trainer": trainer})
    assert trainer.draw == 17
    assert trainer.weight.tolist() == [1.0, 2.0]


def test_one_part_is_loaded_without_the_others(tmp_path: Path, written: Callable) -> None:
    tensors = {"trainer.weight": torch.ones(2), "trainer2.weight": torch.zeros(5)}
    path = written(tmp_path, tensors)
    trainer = Part()
    assert load_part(path, "trainer", trainer).step == 5
    assert (trainer.draw, trainer.weight.tolist()) == (17, [1.0, 1.0])
    with pytest.raises(StateMismatch, match=r"trainer2\.weight"):
        restore(path, {"trainer": trainer})
    tensors["trainer.more"] = torch.ones(1)
    with pytest.raises(StateMismatch, match=r"trainer\.more"):
        load_part(written(tmp_path, tensors, step=6), "trainer", trainer)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_flipped_byte_or_torn_end_is_refused_with_nothing_touched(
    tmp_path: Path, tensors: dict, blank: Callable, written: Callable, data: st.DataObject
) -> None:
    path = tmp_path / "step-5"
    if not path.exists():
        written(tmp_path, tensors)
    victim = data.draw(st.sampled_from(sorted(path.iterdir())))
    whole = victim.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    flipped = whole[:place] + bytes([whole[place] ^ (1 << data.draw(st.integers(0, 7)))])
    torn = data.draw(st.booleans())
    victim.write_bytes(whole[:place] if torn else flipped + whole[place + 1 :])
    fresh = blank(tensors)
    try:
        with pytest.raises(RefusedCheckpoint, match=victim.name):
            load(path, TrainingState(fresh, {}))
    finally:
        victim.write_bytes(whole)
    assert not any(tensor.any() for tensor in fresh.values())


def test_a_sound_checkpoint_of_another_model_is_no_reason_to_try_an_older_one(
    tmp_path: Path, tensors: dict, blank: Callable, written: Callable
) -> None:
    path = written(tmp_path, tensors)
    fresh = blank(tensors)
    fresh["model.weigth"] = fresh.pop("model.weight")
    with pytest.raises(StateMismatch, match=r"lacks model.weigth \(nearest: model.weight\)"):
        load(path, TrainingState(fresh, {}))
    assert not any(tensor.any() for tensor in fresh.values())


# What an enemy may hand us: a manifest that fits, around files that do not.


class Payload:
    """Runs a command when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch '{self.target}'",)


def forge(path: Path, name: str, content: bytes) -> None:
    """Replace one file and sign the whole anew."""
    manifest, _ = read_manifest(path)
    (path / name).unlink(missing_ok=True)
    entry = write_listed_file(path / name, [content])
    kept = [file for file in manifest.files if file.name != name]
    write_manifest(path, Manifest(step=manifest.step, time=1.0, files=(*kept, entry)))


def metadata_with(path: Path, **changes: object) -> bytes:
    value = json.loads((path / METADATA_NAME).read_text())
    tensor = value["tensors"]["model.weight"]
    chunk = tensor["chunks"][0]
    for key, change in changes.items():
        (chunk if key in chunk else tensor)[key] = change
    return json.dumps(value).encode()


def refused(path: Path, tensors: dict, match: str | None = None) -> None:
    fresh = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    with pytest.raises(RefusedCheckpoint, match=match):
        load(path, TrainingState(fresh, {}))
    assert not any(tensor.any() for tensor in fresh.values())


def test_the_payload_of_these_tests_does_run_when_unpickled(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Payload(tmp_path / "ran")))  # noqa: S301
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("protocol", [0, 5])
@pytest.mark.parametrize("name", [TENSORS, METADATA_NAME, FACTS_NAME, "__1_0.distcp", ".metadata"])
def test_a_pickle_under_any_name_never_runs(
    tmp_path: Path, tensors: dict, written: Callable, name: str, protocol: int
) -> None:
    path = written(tmp_path, tensors)
    pickled = pickle.dumps(Payload(tmp_path / "ran"), protocol)
    if name == "__1_0.distcp":
        # Listed in the manifest, but nothing asks for it: it lies there unread.
        forge(path, name, pickled)
        load(path, TrainingState(tensors, {}))
    else:
        if name == ".metadata":
            (path / name).write_bytes(pickled)
        else:
            forge(path, name, pickled)
        refused(path, tensors)
    assert not (tmp_path / "ran").exists()


def test_a_saved_object_of_torch_never_runs(
    tmp_path: Path, tensors: dict, written: Callable
) -> None:
    path = written(tmp_path, tensors)
    torch.save({"model.weight": Payload(tmp_path / "ran")}, tmp_path / "object.pt")
    forge(path, TENSORS, (tmp_path / "object.pt").read_bytes())
    refused(path, tensors, "not a file of tensors|bytes cannot lie")
    assert not (tmp_path / "ran").exists()


def test_a_stock_checkpoint_of_dcp_is_refused_unread(tmp_path: Path, tensors: dict) -> None:
    path = tmp_path / "step-5"
    path.mkdir()
    (path / ".metadata").write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
    (path / "__0_0.distcp").write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
    refused(path, tensors, MANIFEST_NAME)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"file": "../../etc/passwd"},
        {"file": "/etc/passwd"},
        {"dtype": "BYTES"},
        {"size": [1 << 40, 1 << 20], "sizes": [1 << 40, 1 << 20]},
        {"key": "model.absent"},
        {"key": "model.transposed"},
        {"dtype": "F64"},
    ],
)
def test_forged_metadata_is_refused(
    tmp_path: Path, tensors: dict, written: Callable, changes: dict
) -> None:
    path = written(tmp_path, tensors)
    forge(path, METADATA_NAME, metadata_with(path, **changes))
    # A dtype that agrees with nobody is a mismatch or a refusal; it must not be converted.
    fresh = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    with pytest.raises((RefusedCheckpoint, StateMismatch)):
        load(path, TrainingState(fresh, {}))
    assert not any(tensor.any() for tensor in fresh.values())


def test_a_manifest_that_names_files_elsewhere_is_refused(
    tmp_path: Path, tensors: dict, written: Callable
) -> None:
    path = written(tmp_path, tensors)
    manifest, _ = read_manifest(path)
    entry = FileEntry("../../etc/passwd", 1, "0" * 64)
    write_manifest(path, Manifest(step=5, time=1.0, files=(*manifest.files, entry)))
    refused(path, tensors, "plain file name")


@pytest.mark.parametrize(
    "content",
    [
        b"[]",
        b"{}",
        b'{"format_version": 1}',
        b'{"format_version": 1, "step": -5, "attempt": 1, "facts": {}}',
        b'{"format_version": 1, "step": 5, "attempt": 1, "facts": []}',
        render_facts(6, 1, {}),
    ],
)
def test_forged_facts_are_refused(
    tmp_path: Path, tensors: dict, written: Callable, content: bytes
) -> None:
    path = written(tmp_path, tensors)
    forge(path, FACTS_NAME, content)
    refused(path, tensors)
