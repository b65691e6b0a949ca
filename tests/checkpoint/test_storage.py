import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from longhaul.checkpoint.layout import METADATA_NAME, StoredTensor, from_json, plan_load
from longhaul.checkpoint.storage import NotATensor, save_tensors
from longhaul.core.pieces import Piece, Pieces, cut_parts, pieces_of
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


def test_another_number_of_ranks_reads_the_chunks_it_needs(
    tmp_path: Path, as_ranks: Callable
) -> None:
    whole = torch.randn(10, 3)
    held = tuple(
        (Piece((begin, 0), (0, 0), (end - begin, 3)),) for begin, end in ((0, 3), (3, 4), (4, 10))
    )
    files = as_ranks(
        [
            ({"w": whole[of.offset[0] :][: of.size[0]]}, {"w": Pieces((10, 3), held, rank)})
            for rank, (of,) in enumerate(held)
        ],
        tmp_path,
    )
    names = [*(f"__{rank}_0.safetensors" for rank in range(3)), METADATA_NAME]
    assert [[file.name for file in of_rank] for of_rank in files] == [names] * 3

    fresh = {"w": torch.zeros(10, 3)}
    plan_load(tmp_path, metadata_of(tmp_path), fresh)()
    assert torch.equal(fresh["w"], whole)

    # A rank that holds rows 2 to 7.
    five = Piece((2, 0), (0, 0), (5, 3))
    rows = {"w": torch.zeros(5, 3)}
    plan_load(tmp_path, metadata_of(tmp_path), rows, {"w": Pieces((10, 3), ((five,),), 0)})()
    assert torch.equal(rows["w"], whole[2:7])


def test_what_fails_on_one_rank_fails_on_all_with_its_error(
    tmp_path: Path, as_ranks: Callable
) -> None:
    (tmp_path / "__1_0.safetensors").mkdir()
    tensors = {"v": torch.ones(2), "w": torch.ones(2)}
    failures = as_ranks([(tensors, {}), (tensors, {})], tmp_path)
    assert [type(failure) for failure in failures] == [FileExistsError, FileExistsError]
    assert all(failure.filename.endswith("__1_0.safetensors") for failure in failures)


def test_pieces_that_leave_a_hole_are_not_saved(tmp_path: Path) -> None:
    half = Piece((0,), (0,), (2,))
    with pytest.raises(ValueError, match=r"w: its chunks do not fill \[4\] exactly once"):
        save_tensors(tmp_path, {"w": torch.ones(2)}, {"w": Pieces((4,), ((half,),), 0)})


def dealt(whole: Tensor, shards: int, tensors: int, axis: int, fused: int) -> list[Pieces]:
    """Pieces of each rank; the tensor ranks cut one of `fused` equal maps along `axis`."""
    parts = [whole.shape[axis] // fused] * fused
    cut = cut_parts(parts, tensors, axis) if tensors > 1 else None
    held = pieces_of(whole.shape, cut, shards, tensors)
    shape = tuple(whole.shape)
    return [Pieces(shape, tuple(map(tuple, held)), holder) for holder in range(len(held))]


def local_part(whole: Tensor, pieces: Pieces) -> Tensor:
    local = torch.full(pieces.local_shape(pieces.holder), -1.0)
    for piece in pieces.mine:
        own = tuple(slice(b, b + n) for b, n in zip(piece.local, piece.size, strict=True))
        there = tuple(slice(b, b + n) for b, n in zip(piece.offset, piece.size, strict=True))
        local[own] = whole[there]
    return local


LAYOUTS = st.tuples(st.integers(1, 4), st.sampled_from((1, 2)))


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 9),
    columns=st.integers(1, 5),
    fused=st.sampled_from((1, 3)),
    axis=st.sampled_from((0, 1)),
    before=LAYOUTS,
    after=LAYOUTS,
)
def test_what_one_layout_saves_any_other_reads_bit_by_bit(
    rows: int, columns: int, fused: int, axis: int, before: tuple, after: tuple, as_ranks: Callable
) -> None:
    whole = torch.randn((rows * fused, columns) if axis == 0 else (rows, columns * fused))
    count = torch.tensor(7.0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        saved = dealt(whole, *before, axis, fused)
        as_ranks([({"w": local_part(whole, p), "count": count}, {"w": p}) for p in saved], folder)
        metadata = metadata_of(folder)
        for pieces in dealt(whole, *after, axis, fused):
            expected = local_part(whole, pieces)
            fresh = {"w": torch.full_like(expected, -1.0), "count": torch.zeros(())}
            plan_load(folder, metadata, fresh, {"w": pieces})()
            assert torch.equal(fresh["w"], expected)
            assert fresh["count"] == 7


def test_what_many_ranks_hold_is_written_once_and_shared_out(
    tmp_path: Path, as_ranks: Callable
) -> None:
    tensors = {f"w{number}": torch.full((64, 64), float(number)) for number in range(8)}
    as_ranks([(tensors, {}), (tensors, {})], tmp_path)
    sizes = [path.stat().st_size for path in sorted(tmp_path.glob("*.safetensors"))]
    assert len(sizes) == 2
    assert max(sizes) < 1.2 * min(sizes)
    assert sum(sizes) == pytest.approx(8 * 64 * 64 * 4, rel=0.05)
