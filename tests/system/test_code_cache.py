"""Generated code outlives its process."""

import os
import shutil

import pytest

from longhaul.core.events import EventKind
from longhaul.core.records import Event
from longhaul.model.code_cache import VARIABLES

TINY = (
    "model.layers=1", "model.width=16", "monitor.gauge_interval_steps=3",
    "optim.schedule.warmup_steps=1", "batch.stages=[]",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which(os.environ.get("CXX", "g++")), reason="needs a C++ compiler")
def test_a_second_start_compiles_from_the_cache_of_the_run(room, monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    found = []
    for steps in (4, 7):
        options = ["machine.compile=true", f"train.steps={steps}", *TINY]
        code, output = room.run("train", "drill", *(p for o in options for p in ("--set", o)))
        assert code == 0, output
        assert "compiled code: kept in" in output
        events = [
            e for e in room.records() if isinstance(e, Event) and e.kind == EventKind.COMPILED
        ]
        found.append(events[sum(map(len, found)) :])
    cold, warm = found
    assert [event.step for event in cold] == [1, 3]
    assert [event.data["cached"] for event in cold] == [0, 0]
    assert [event.step for event in warm] == [5, 6]
    for event in warm:
        assert event.data["cached"] == event.data["pieces"] == 2
    assert sum(e.data["took_s"] for e in warm) < sum(e.data["took_s"] for e in cold) / 2
    assert len(list(room.folder().compiled.iterdir())) == 1
