import json
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import (
    DefaultSavePlanner,
    create_default_global_save_plan,
)
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

from longhaul.checkpoint.layout import METADATA_NAME, StoredTensor, from_json, plan_load
from longhaul.checkpoint.storage import CheckpointWriter, NotATensor, save_tensors
from longhaul.core.pieces import Piece, Pieces
from longhaul.store.manifest import RefusedCheckpoint


def metadata_of(folder: Path) -> dict[str, StoredTensor]:
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    return from_json(json.loads((folder / METADATA_NAME).read_text()), sizes)


def test_what_is_saved_is_loaded_bit_by_bit(
    tmp_path: Path, tensors: dict[str, Tensor], blank: Callable, same_bits: Callable
) -> None:
    files = save_tensors(tmp_path, tensors)
    assert [file.name for file in files] == ["__0_0.safetensors", METADATA_NAME]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(file.name for file in files)
    fresh = blank(tensors)
    places = {name: tensor.data_ptr() for name, tensor in fresh.items()}
    plan_load(tmp_path, metadata_of(tmp_path), fresh)()
    same_bits(fresh, tensors)
    assert places == {name: tensor.data_ptr() for name, tensor in fresh.items()}


def test_names_with_dots_slashes_and_other_letters_are_only_names(
    tmp_path: Path, same_bits: Callable
) -> None:
    tensors = {"../../etc/passwd": torch.ones(2), 'größe."x"': torch.ones(3), "": torch.ones(1)}
    folder = tmp_path / "here"
    folder.mkdir()
    save_tensors(folder, tensors)
    assert {path.name for path in folder.iterdir()} == {"__0_0.safetensors", METADATA_NAME}
    assert list(tmp_path.iterdir()) == [folder]
    fresh = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    plan_load(folder, metadata_of(folder), fresh)()
    same_bits(fresh, tensors)


@pytest.mark.parametrize("entry", [{"a": 1}, 3, "text", b"bytes"])
def test_what_is_no_tensor_is_refused_by_name(tmp_path: Path, entry: object) -> None:
    with pytest.raises(NotATensor, match=r"optim\.state is not a tensor"):
        save_tensors(tmp_path, {"w": torch.ones(1), "optim.state": entry})  # type: ignore[dict-item]


def test_a_dtype_without_a_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotATensor, match=r"w is torch\.complex64"):
        save_tensors(tmp_path, {"w": torch.ones(1, dtype=torch.complex64)})


@pytest.mark.parametrize(
    "other", [{"w": torch.ones(2, 3)}, {"w": torch.ones(3).int()}, {"v": torch.ones(3)}]
)
def test_a_file_that_contradicts_the_metadata_touches_no_tensor(
    tmp_path: Path, other: dict[str, Tensor]
) -> None:
    save_tensors(tmp_path, {"a": torch.ones(3), "w": torch.ones(3)})
    metadata = metadata_of(tmp_path)
    safetensors.torch.save_file({"a": torch.ones(3), **other}, tmp_path / "__0_0.safetensors")
    fresh = {"a": torch.zeros(3), "w": torch.zeros(3)}
    with pytest.raises(RefusedCheckpoint, match="__0_0"):
        plan_load(tmp_path, metadata, fresh)()
    assert not fresh["a"].any()


class Shards(DefaultSavePlanner):
    """Plans the rows of one tensor as one rank of several would."""

    def __init__(self, whole: Tensor, begin: int, end: int) -> None:
        super().__init__(flatten_state_dict=False)
        self.rows = whole[begin:end]
        offsets = torch.Size([begin, 0])
        data = TensorWriteData(
            ChunkStorageMetadata(offsets, self.rows.shape),
            TensorProperties(whole.dtype),
            whole.shape,
        )
        self.item = WriteItem(MetadataIndex("w", offsets), WriteItemType.SHARD, tensor_data=data)

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        return self.rows


def test_another_number_of_ranks_reads_the_chunks_it_needs(tmp_path: Path) -> None:
    whole = torch.randn(10, 3)
    ranks = [Shards(whole, begin, end) for begin, end in ((0, 3), (3, 4), (4, 10))]
    writers = [CheckpointWriter(tmp_path) for _ in ranks]
    plans, metadata = create_default_global_save_plan([SavePlan([rank.item]) for rank in ranks])
    plans = writers[0].prepare_global_plan(plans)
    results = [
        writer.write_data(plan, rank).value()
        for writer, plan, rank in zip(writers, plans, ranks, strict=True)
    ]
    writers[0].finish(metadata, results)
    assert [file.name for file in writers[0].files] == [
        *(f"__{rank}_0.safetensors" for rank in range(3)),
        METADATA_NAME,
    ]

    fresh = {"w": torch.zeros(10, 3)}
    plan_load(tmp_path, metadata_of(tmp_path), fresh)()
    assert torch.equal(fresh["w"], whole)

    # A rank that holds rows 2 to 7.
    held = Piece((2, 0), (0, 0), (5, 3))
    rows = {"w": torch.zeros(5, 3)}
    plan_load(tmp_path, metadata_of(tmp_path), rows, {"w": Pieces((10, 3), ((held,),), 0)})()
    assert torch.equal(rows["w"], whole[2:7])


def test_dcp_never_takes_this_class_for_a_path() -> None:
    assert not CheckpointWriter.validate_checkpoint_id("anywhere")
