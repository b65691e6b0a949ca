"""What is told before the first step of an attempt, and the samples that it writes."""

from pathlib import Path
from typing import Any

import pytest

from fakes import SilentView
from longhaul.core.errors import DataError, ExitCode
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


def test_samples_on_the_way_change_nothing_of_the_training(new_room, tmp_path) -> None:
    losses, samples = [], []
    for asked in ("false", "true"):
        room = new_room(tmp_path / asked)
        room.train(
            8, "evaluation.interval_steps=3", "sample.tokens=4", f"sample.at_evaluations={asked}"
        )
        losses.append([record.loss for record in room.of(StepRecord)])
        samples.append({event.step: event.data["text"] for event in room.events("sample")})
    assert losses[0] == losses[1]
    assert list(samples[0]) == [8]
    assert list(samples[1]) == [3, 6, 8]
    assert samples[0][8] == samples[1][8]
    assert all(len(text) > 1 for text in samples[1].values())


def test_a_prompt_that_cannot_be_read_keeps_no_run_from_its_end(room, monkeypatch) -> None:
    def refuse(*_: object) -> str:
        raise DataError("the prompt is unreadable", "write another")

    monkeypatch.setattr("longhaul.train.trainer.write_sample", refuse)
    asked = ("evaluation.interval_steps=3", "sample.tokens=4", "sample.at_evaluations=true")
    assert room.train(4, *asked) is ExitCode.FINISHED
    assert "WARNING: no sample: the prompt is unreadable" in room.said
    assert [event.step for event in room.events("sample")] == [3, 4]
