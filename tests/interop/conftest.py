"""A run that was never trained: its journal is written here, with rollbacks and restarts."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fakes import FakeClock
from longhaul.core.records import Decision, Event, Finding, Record, StepRecord
from longhaul.logbook.folder import RunFolder, create_run
from longhaul.logbook.journal import Journal
from longhaul.logbook.segments import SegmentNumber, SegmentOpening, open_segment

START = 1_700_000_000.0


@dataclass
class WrittenRun:
    """Writes a journal as a trainer would."""

    folder: RunFolder
    attempt: int = 1
    minor: int = -1
    step: int = 0
    now: float = START
    lasting: dict[str, dict[int, float]] = field(default_factory=dict)
    """Name in a tracker → step → what the run's present weights came through."""

    @property
    def segment(self) -> str:
        return f"1.{self.minor:02d}"

    def write(self, *records: Record, author: str = "pilot") -> None:
        journal = Journal(self.folder, self.attempt, author)
        for record in records:
            journal.append(record)
        journal.close()

    def event(self, kind: str, step: int | None = None, seconds: Any = None, **data: Any) -> Event:
        self.now += 1.0
        step = self.step if step is None else step
        event = Event(
            kind=kind, attempt=self.attempt, segment=self.segment, step=step, time=self.now,
            seconds=seconds or {}, data=data,
        )  # fmt: skip
        self.write(event)
        return event

    def begin(self, at: int, attempt: int | None = None) -> None:
        """Open a segment from `at` updates on: a first start, a restart, or a rollback."""
        self.attempt, self.step = attempt or self.attempt, at
        self.minor += 1
        opening = SegmentOpening(
            number=SegmentNumber(1, self.minor),
            parent=SegmentNumber(1, self.minor - 1) if self.minor else None,
            attempt=self.attempt, step=at, draw=at, reason="a test", opened=self.now,
            settings={"optim": {"lr": 1e-3}, "alert": {"webhook": "https://host/secret"}},
        )  # fmt: skip
        open_segment(self.folder, opening, "")
        self.event("segment-opened", at, reason="a test")
        for values in self.lasting.values():
            for step in [step for step in values if step > at]:
                del values[step]

    def steps(self, count: int, **values: Any) -> None:
        for _ in range(count):
            self.step, self.now = self.step + 1, self.now + 1.0
            loss = 5.0 - 0.25 * self.step + self.minor
            record = StepRecord(
                attempt=self.attempt, segment=self.segment, step=self.step, draw=self.step,
                next_draw=self.step + 1, time=self.now, sequences=8, sequence_length=16,
                **{"loss": loss, "gradient_norm": 0.5, "learning_rate": 1e-3,
                   "seconds": {"training": 0.5}} | values,
            )  # fmt: skip
            self.write(record)
            self.lasting.setdefault("train/loss", {})[self.step] = record.loss
            self.lasting.setdefault("train/tokens", {})[self.step] = 128.0 * self.step

    def evaluate(self, loss: float) -> None:
        self.event("evaluation", loss=loss, bits_per_byte=loss / 2, sources={"a": loss})
        self.lasting.setdefault("validation/loss", {})[self.step] = loss

    def finding(self, **values: Any) -> None:
        self.now += 1.0
        found = {"kind": "divergence", "severity": "alarm", "sentence": "the loss rises"} | values
        self.write(
            Finding(
                attempt=self.attempt,
                segment=self.segment,
                step=self.step,
                first_step=self.step,
                first_draw=self.step,
                time=self.now,
                **found,
            )
        )

    def decision(self, kind: str, **data: Any) -> None:
        self.now += 1.0
        self.write(
            Decision(
                kind=kind,
                attempt=self.attempt,
                segment=self.segment,
                step=self.step,
                time=self.now,
                who="policy",
                reason="it diverged",
                data=data,
            )
        )

    def troubled(self) -> None:
        """Twelve steps, of which one rollback and one death undo some."""
        self.begin(0)
        self.event("attempt-started", 0, seconds={"start-up": 2.0}, total_steps=20)
        self.steps(4)
        self.evaluate(4.0)
        self.steps(4)
        self.evaluate(9.0)
        self.finding()
        recover = {"cause": "divergence", "actions": ["rollback"], "poison": [[8, "hash"]],
                   "rollback": {"from": 8, "to": 5, "draw": 5}}  # fmt: skip
        self.decision("recover", **recover)
        self.begin(5)
        self.event("rolled-back", 5, left=8, to=5, where="memory", took_s=0.1)
        self.steps(4)
        self.begin(7, attempt=2)
        self.event("attempt-started", 7, seconds={"restart": 3.0}, total_steps=20)
        self.steps(3)


@pytest.fixture
def run(tmp_path: Path) -> WrittenRun:
    folder = create_run(tmp_path / "runs" / "alpha", FakeClock())
    (folder.path / "asked.json").write_text(json.dumps({}))
    return WrittenRun(folder)
