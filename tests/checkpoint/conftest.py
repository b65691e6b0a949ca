import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes import FakeClock
from longhaul.checkpoint.storage import save_tensors
from longhaul.checkpoint.write import render_facts, write_checkpoint
from longhaul.core.pieces import Pieces


@pytest.fixture
def tensors() -> dict[str, Tensor]:
    """One tensor of every kind that has gone wrong in somebody's checkpoint."""
    generator = torch.Generator().manual_seed(1)
    numbers = torch.randn(8, 6, generator=generator)
    nan_payloads = torch.tensor([0x7FC00001, 0x7F800001, -1, -(1 << 31)], dtype=torch.int32)
    return {
        "model.weight": numbers,
        "model.parameter": torch.nn.Parameter(numbers * 2),
        "model.transposed": numbers.t(),
        "model.half": numbers.bfloat16(),
        "model.nan": nan_payloads.view(torch.float32),
        "model.half_nan": torch.tensor([0x7FC1, 0x7F81], dtype=torch.int16).view(torch.bfloat16),
        "model.mask": numbers > 0,
        "model.empty": torch.empty(3, 0, dtype=torch.float64),
        "optim.weight.step": torch.tensor(41, dtype=torch.int64),
        "optim.scale": torch.tensor(2.5),
        "optim.flag": torch.tensor(True),
        "generator.cpu": generator.get_state(),
    }


@pytest.fixture
def same_bits() -> Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], None]:
    """Fail unless both hold the same names, dtypes, shapes and bits."""

    def bits(tensor: Tensor) -> list[int]:
        return tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist()

    def check(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> None:
        assert left.keys() == right.keys()
        for name in left:
            assert left[name].dtype == right[name].dtype, name
            assert left[name].shape == right[name].shape, name
            assert bits(left[name]) == bits(right[name]), name

    return check


@pytest.fixture
def blank() -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
    """Tensors of the same kinds with other bits, to be filled."""

    def blank(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}

    return blank


@pytest.fixture
def written() -> Callable[..., Path]:
    """Write a whole checkpoint in the foreground."""

    def written(folder: Path, tensors: Mapping[str, Tensor], step: int = 5) -> Path:
        facts = {"trainer": {"draw": 17, "rate": 0.1 + 0.2}}
        for _ in write_checkpoint(
            folder,
            step=step,
            attempt=1,
            tensors={name: tensor.contiguous() for name, tensor in tensors.items()},
            facts=render_facts(step, 1, facts),
            still_owner=lambda: True,
            clock=FakeClock(),
        ):
            pass
        return folder / f"step-{step}"

    return written


class _Rank:
    """One of several ranks, each on a thread of its own."""

    def __init__(self, rank: int, barrier: threading.Barrier, given: list[Any]) -> None:
        self.rank, self.size = rank, len(given)
        self._barrier, self._given = barrier, given

    def gather(self, value: Any) -> list[Any]:
        self._given[self.rank] = value
        self._barrier.wait(60)
        all_given = list(self._given)
        self._barrier.wait(60)
        return all_given

    def share(self, value: Any = None) -> Any:
        return self.gather(value)[0]

    def gather_first(self, value: Any) -> list[Any]:
        given = self.gather(value)
        return given if self.rank == 0 else []

    def scatter(self, values: Sequence[Any]) -> Any:
        return self.gather(values)[0][self.rank]


@pytest.fixture(scope="session")
def as_ranks() -> Callable[[Sequence[tuple[dict[str, Tensor], dict[str, Pieces]]], Path], list]:
    """Save into a folder as the ranks of a world: what each was told was written, or its error."""

    def as_ranks(
        ranks: Sequence[tuple[dict[str, Tensor], dict[str, Pieces]]], folder: Path
    ) -> list:
        barrier, given = threading.Barrier(len(ranks)), [None] * len(ranks)

        def save(rank: int) -> Any:
            control: Any = _Rank(rank, barrier, given)
            try:
                return save_tensors(folder, *ranks[rank], control)
            except Exception as error:  # noqa: BLE001 (for the test to judge)
                return error

        with ThreadPoolExecutor(len(ranks)) as threads:
            return list(threads.map(save, range(len(ranks))))

    return as_ranks
