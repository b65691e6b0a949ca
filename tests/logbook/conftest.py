from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes import FakeClock
from longhaul.core.records import Decision, Event, StepRecord
from longhaul.logbook.folder import RunFolder, create_run
from longhaul.logbook.segments import SegmentNumber, SegmentOpening


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return create_run(tmp_path / "runs" / "alpha", FakeClock())


@pytest.fixture(scope="session")
def make_step() -> Callable[..., StepRecord]:
    def make(step: int = 1, **values: Any) -> StepRecord:
        defaults: dict[str, Any] = {
            "attempt": 1, "segment": "1.00", "step": step, "draw": (step - 1) * 8,
            "next_draw": step * 8, "time": 1_000_000.0 + step, "loss": 5.0 - 0.01 * step,
            "gradient_norm": 0.5, "learning_rate": 1e-3, "sequences": 8, "sequence_length": 64,
            "seconds": {"training": 0.9, "data_wait": 0.1},
        }  # fmt: skip
        return StepRecord(**defaults | values)

    return make


@pytest.fixture(scope="session")
def make_event() -> Callable[..., Event]:
    def make(kind: str = "note", step: int = 0, **values: Any) -> Event:
        defaults: dict[str, Any] = {
            "kind": kind, "attempt": 1, "segment": "1.00", "step": step,
            "time": 1_000_000.0 + step,
        }  # fmt: skip
        return Event(**defaults | values)

    return make


@pytest.fixture(scope="session")
def make_decision() -> Callable[..., Decision]:
    def make(path: str = "optim.lr", value: Any = 1e-4, **values: Any) -> Decision:
        defaults: dict[str, Any] = {
            "kind": "set", "attempt": 1, "segment": "1.00", "step": 5, "time": 1_000_005.0,
            "who": "anna", "reason": "spikes", "data": {"path": path, "value": value, "old": 1e-3},
        }  # fmt: skip
        return Decision(**defaults | values)

    return make


@pytest.fixture(scope="session")
def make_opening() -> Callable[..., SegmentOpening]:
    def make(number: str = "1.00", **values: Any) -> SegmentOpening:
        defaults: dict[str, Any] = {
            "number": SegmentNumber.parse(number), "attempt": 1, "step": 0, "draw": 0,
            "reason": "first start", "settings": {"optim": {"lr": 1e-3, "clip": 1.0}},
            "opened": 1_000_000.0,
        }  # fmt: skip
        return SegmentOpening(**defaults | values)

    return make
