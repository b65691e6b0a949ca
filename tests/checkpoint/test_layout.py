import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from longhaul.checkpoint.layout import Chunk, from_json, to_json
from longhaul.store.manifest import RefusedCheckpoint

FILES = {"__0_0.safetensors": 64, "__1_0.safetensors": 64, "state.json": 1 << 40}


def chunk(begin: int, rows: int, rank: int) -> dict[str, Any]:
    file = f"__{rank}_0.safetensors"
    return {"offsets": [begin, 0], "sizes": [rows, 3], "file": file, "key": f"w@{begin},0"}


SOUND = {
    "format_version": 1,
    "tensors": {"w": {"dtype": "F32", "size": [6, 3], "chunks": [chunk(0, 4, 0), chunk(4, 2, 1)]}},
}


def test_metadata_survives_the_way_through_json() -> None:
    stored = from_json(json.loads(json.dumps(SOUND)), FILES)
    assert json.loads(json.dumps(to_json(stored))) == SOUND
    assert Chunk((4, 0), (2, 3), "__1_0.safetensors", "w@4,0") in stored["w"].chunks


def changed(change: Callable[[dict[str, Any], list[Any]], object]) -> dict[str, Any]:
    value = copy.deepcopy(SOUND)
    tensor = value["tensors"]["w"]
    change(tensor, tensor["chunks"])
    return value


REFUSED = {
    "a path": lambda _, chunks: chunks[0].update(file="../../etc/passwd"),
    "an absolute path": lambda _, chunks: chunks[0].update(file="/etc/passwd"),
    "a file that is no tensor file": lambda _, chunks: chunks[0].update(file="state.json"),
    "a file nobody vouches for": lambda _, chunks: chunks[0].update(file="__2_0.safetensors"),
    "an entry of bytes": lambda tensor, _: tensor.update(dtype="BYTES"),
    "a dtype by its Python name": lambda tensor, _: tensor.update(dtype="torch.float32"),
    "a dtype that is no text": lambda tensor, _: tensor.update(dtype=["F32"]),
    "a huge shape": lambda tensor, chunks: (
        tensor.update(size=[1 << 40, 1 << 40]),
        chunks.__setitem__(
            slice(None), [chunks[0] | {"offsets": [0, 0], "sizes": [1 << 40, 1 << 40]}]
        ),
    ),
    "a number beyond 63 bits": lambda tensor, _: tensor.update(size=[1 << 63, 3]),
    "a negative offset": lambda _, chunks: chunks[0].update(offsets=[-1, 0]),
    "a fraction": lambda _, chunks: chunks[0].update(sizes=[4.0, 3]),
    "a truth value": lambda _, chunks: chunks[0].update(offsets=[False, 0]),
    "a chunk outside": lambda _, chunks: chunks[1].update(offsets=[5, 0]),
    "a chunk of fewer dimensions": lambda _, chunks: chunks[1].update(offsets=[4], sizes=[6]),
    "too many dimensions": lambda tensor, chunks: (
        tensor.update(size=[1] * 65),
        chunks.__setitem__(
            slice(None), [chunks[0] | {"offsets": [0] * 65, "sizes": [1] * 65}]
        ),
    ),
    "a hole": lambda _, chunks: chunks.pop(),
    "a scalar stored twice": lambda tensor, chunks: (
        tensor.update(size=[]),
        [item.update(offsets=[], sizes=[]) for item in chunks],
    ),
    "a missing key": lambda tensor, _: tensor.pop("dtype"),
    "an unknown key": lambda tensor, _: tensor.update(reduce="os.system"),
    "no chunks at all": lambda tensor, _: tensor.update(chunks=None),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_an_unsound_description_is_refused(case: str) -> None:
    with pytest.raises(RefusedCheckpoint):
        from_json(changed(REFUSED[case]), FILES)


@pytest.mark.parametrize("value", [None, [], {}, {"format_version": 1}, SOUND | {"tensors": []}])
def test_what_is_no_description_is_refused(value: object) -> None:
    with pytest.raises(RefusedCheckpoint):
        from_json(value, FILES)


def test_a_newer_format_is_named_as_such() -> None:
    with pytest.raises(RefusedCheckpoint, match="format version 2"):
        from_json(SOUND | {"format_version": 2}, FILES)


def test_two_chunks_that_share_an_element_are_found_when_their_volume_fits() -> None:
    def overlap(tensor: dict[str, Any], chunks: list[Any]) -> None:
        # 4 + 2 rows fill 6 in number, but row 3 is there twice and row 5 is not there.
        chunks[1].update(offsets=[3, 0])

    with pytest.raises(RefusedCheckpoint, match="exactly once"):
        from_json(changed(overlap), FILES)
