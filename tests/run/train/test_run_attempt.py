"""What is told before the first step of an attempt."""

from pathlib import Path
from typing import Any

import pytest

from fakes import SilentView
from longhaul.core.records import Event, StepRecord
from longhaul.logbook.description import readable_line
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.reading import read_journal
from longhaul.run.train import run_attempt
from longhaul.run.train.launch import Start, start
from small_runs import FEW_HELD_OUT

TINY = (
    FEW_HELD_OUT,
    "model.width=16", "model.layers=1", "model.context=32", "batch.sequence_length=32",
    "batch.sequences=4", "batch.micro_sequences=4", "batch.stages=[]", "evaluation.tokens=256",
    "evaluation.interval_steps=0", "checkpoint.interval_steps=5", "optim.schedule.warmup_steps=2",
)  # fmt: skip


def test_other_software_is_told_and_recorded_before_the_first_step(
    tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Incident N12: activation norms shifted after a dependency had changed between restarts."""

    def train(steps: int) -> str:
        view = SilentView()
        options = (*TINY, f"train.steps={steps}")
        start(Start("drill", options, runs=tmp_path, prepared=prepared), view)
        return "\n".join(view.said)

    train(5)
    honest = run_attempt.fingerprint

    def updated(*given: Any) -> dict[str, Any]:
        prints = honest(*given)
        packages = prints["software"]["packages"] | {"numpy": "99.0"}
        return prints | {"software": prints["software"] | {"packages": packages}}

    monkeypatch.setattr(run_attempt, "fingerprint", updated)
    said = train(10)
    records = list(read_journal(RunFolder(tmp_path / "drill")))
    (told,) = [r for r in records if isinstance(r, Event) and r.kind == "machine-differs"]
    assert told.data["segment_before"] == "1.00"
    old, new = told.data["difference"]["software.packages.numpy"]
    assert (old != new, new) == (True, "99.0")
    assert "numpy" in said
    assert f"software.packages.numpy {old} → 99.0" in readable_line(told)
    after = records[records.index(told) :]
    assert sum(isinstance(record, StepRecord) for record in after) == 5
