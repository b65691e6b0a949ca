import json
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from longhaul.checkpoint.layout import METADATA_NAME, from_json, plan_load
from longhaul.checkpoint.storage import CheckpointWriter, PiecesSavePlanner
from longhaul.core.pieces import Pieces, cut_parts, pieces_of


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


def save(folder: Path, ranks: list[tuple[dict[str, Tensor], dict[str, Pieces]]]) -> None:
    """As the ranks of a world would, but one after the other."""
    planners = [PiecesSavePlanner(pieces) for _, pieces in ranks]
    plans = []
    for planner, (tensors, _) in zip(planners, ranks, strict=True):
        planner.set_up_planner(tensors)
        plans.append(planner.create_local_plan())
    plans, metadata = planners[0].create_global_plan(plans)
    writers = [CheckpointWriter(folder) for _ in ranks]
    plans = writers[0].prepare_global_plan(plans)
    results = [
        writer.write_data(plan, planner).value()
        for writer, plan, planner in zip(writers, plans, planners, strict=True)
    ]
    writers[0].finish(metadata, results)


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
    rows: int, columns: int, fused: int, axis: int, before: tuple, after: tuple
) -> None:
    whole = torch.randn((rows * fused, columns) if axis == 0 else (rows, columns * fused))
    count = torch.tensor(7.0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        saved = dealt(whole, *before, axis, fused)
        save(folder, [({"w": local_part(whole, p), "count": count}, {"w": p}) for p in saved])
        sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
        metadata = from_json(json.loads((folder / METADATA_NAME).read_text()), sizes)
        for pieces in dealt(whole, *after, axis, fused):
            expected = local_part(whole, pieces)
            fresh = {"w": torch.full_like(expected, -1.0), "count": torch.zeros(())}
            plan_load(folder, metadata, fresh, {"w": pieces})()
            assert torch.equal(fresh["w"], expected)
            assert fresh["count"] == 7


def test_what_many_ranks_hold_is_written_once_and_shared_out(tmp_path: Path) -> None:
    tensors = {f"w{number}": torch.full((64, 64), float(number)) for number in range(8)}
    save(tmp_path, [(tensors, {}), (tensors, {})])
    sizes = [path.stat().st_size for path in sorted(tmp_path.glob("*.safetensors"))]
    assert len(sizes) == 2
    assert max(sizes) < 1.2 * min(sizes)
    assert sum(sizes) == pytest.approx(8 * 64 * 64 * 4, rel=0.05)
