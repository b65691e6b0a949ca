"""A run with a story: what a month of trouble leaves in a logbook, made in a moment."""

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes import FakeClock
from longhaul.core.records import Decision, Event, Finding, StepRecord
from longhaul.logbook.folder import RunFolder, create_run
from longhaul.logbook.journal import Journal
from longhaul.logbook.segments import SegmentNumber, SegmentOpening, open_segment

BEGAN = 1_795_200_000.0
NASTY = "a tired note </script><script>alert(1)</script> & <b>bold</b> \u2028 \"quoted\" 'so'"
SETTINGS: dict[str, Any] = {
    "name": "story", "seed": 1, "model": {"layers": 12, "width": 768, "context": 1024},
    "optim": {"lr": 6e-4, "clip": 1.0}, "train": {"steps": 2400}, "batch": {"sequences": 64},
}  # fmt: skip
PRINTS: dict[str, Any] = {
    "software": {"longhaul": "0.4", "packages": {"torch": "2.12.0", "numpy": "2.1"}},
    "machine": {"host": "node-7", "cores": 64}, "environment": {}, "torch": {"threads": 8},
    "data": {"identity": "c0ffee"},
}  # fmt: skip


class Timeline:
    """Writes a journal as the pilot would, with an own clock and an own loss curve."""

    def __init__(self, path: Path, layers: int = 12, every: int = 10) -> None:
        self.folder = create_run(path, FakeClock(BEGAN))
        self.layers, self.every = layers, every
        self.attempt, self.segment = 0, ""
        self.now, self.lr, self.reached = BEGAN, 6e-4, 0
        self.random = random.Random(7)
        self.journal: Journal | None = None
        self.track: dict[str, float] = {}

    def start(self, attempt: int, **data: Any) -> None:
        if self.journal is not None:
            self.journal.close()
        self.attempt, self.journal = attempt, Journal(self.folder, attempt)
        self._first = {"total_steps": 2400, "pid": 7, "host": "node-7", **data}

    def open(self, number: str, parent: str, step: int, reason: str, **values: Any) -> None:
        opening = {
            "number": SegmentNumber.parse(number), "attempt": self.attempt, "step": step,
            "parent": SegmentNumber.parse(parent) if parent else None, "draw": step * 64,
            "reason": reason, "settings": SETTINGS, "fingerprint": PRINTS, "nodes": ("node-7",),
            "opened": self.now,
        }  # fmt: skip
        open_segment(self.folder, SegmentOpening(**opening | values))
        self.segment = number
        said = {"reason": reason, "parent": parent}
        self.event("segment-opened", step, data=said, seconds=self.track)
        self.track = {}
        if self._first:
            self.event("attempt-started", step, data=self._first)
            self._first = {}

    def event(self, kind: str, step: int, wait: float = 0.0, **values: Any) -> None:
        self.now += wait
        self._keep(Event, kind=kind, step=step, **values)

    def find(self, kind: str, severity: str, step: int, first: int, **values: Any) -> None:
        self._keep(
            Finding, kind=kind, severity=severity, step=step, first_step=first,
            first_draw=first * 64, **values,
        )  # fmt: skip

    def decide(self, kind: str, step: int, who: str, reason: str, **data: Any) -> None:
        self._keep(Decision, kind=kind, step=step, who=who, reason=reason, data=data)

    def train(self, begin: int, end: int, grow: float = 0.0, spike: float = 0.0) -> None:
        """Steps begin+1 … end; `grow` lets attention logits run away, `spike` the loss."""
        for step in range(begin + 1, end + 1):
            self.now += 1.4
            history = step - begin
            bad = spike * max(0.0, history / (end - begin) - 0.75) * 4
            loss = 2.9 + 7.8 * math.exp(-step / 260) + 0.04 * self.random.gauss(0, 1) + bad**2
            gauged = step % self.every == 0
            self._keep(
                StepRecord, step=step, draw=step * 64, next_draw=step * 64 + 64, loss=loss,
                gradient_norm=0.4 + 3 * math.exp(-step / 80) + 0.1 * self.random.random() + bad,
                learning_rate=self.lr * min(1, step / 200), sequences=64, sequence_length=1024,
                warmup=step < 200, redone=step <= self.reached,
                seconds={"redone" if step <= self.reached else "training": 1.36, "data_wait": 0.04},
                gauges=self._gauges(step, math.exp(grow * history / 100)) if gauged else {},
                totals=self._totals(step) if gauged else {},
                source_losses={"books": loss - 0.3, "web": loss + 0.1} if gauged else {},
            )  # fmt: skip
            if step % 200 == 0:
                data = {"loss": loss + 0.05, "bits_per_byte": (loss + 0.05) / 3.3}
                self.event("evaluation", step, 6.0, seconds={"evaluation": 6.0}, data=data)
                self.event("checkpoint", step, data={"health": "verified", "size_bytes": 1.5e9})
        self.reached = max(self.reached, end)

    def close(self) -> RunFolder:
        if self.journal is not None:
            self.journal.close()
        return self.folder

    def _gauges(self, step: int, growth: float) -> dict[str, tuple[float, ...]]:
        def noisy(value: float) -> float:
            return value * (1 + 0.03 * self.random.gauss(0, 1))

        deep = range(self.layers)
        return {
            "residual_max": tuple(noisy(2 + 1.5 * layer + step / 400) for layer in deep),
            "residual_min": tuple(-noisy(2 + 1.5 * layer + step / 400) for layer in deep),
            "residual_rms": tuple(noisy(0.3 + 0.15 * layer) for layer in deep),
            "attention_out_max_abs": tuple(noisy(1 + 0.2 * layer) for layer in deep),
            "mlp_out_rms": tuple(noisy(0.2 + 0.1 * layer) for layer in deep),
            "attention_logit_max": tuple(
                noisy(4 + 0.3 * layer) * (growth if layer in (3, 4) else growth**0.2)
                for layer in deep
            ),
        }

    def _totals(self, step: int) -> dict[str, float]:
        roles = {"matrix": 1e-3, "embedding": 4e-4, "vector": 2e-3, "head": 6e-4}
        ratios = {
            f"update_ratio.{role}": value * (0.3 + math.exp(-step / 500))
            for role, value in roles.items()
        }
        broken = float("nan") if step % 100 == 0 else 5 + step / 500
        return {"logsumexp_max": broken, "output_logit_max": 9 + step / 300, **ratios}

    def _keep(self, record_type: Any, **values: Any) -> None:
        assert self.journal is not None
        at = {"attempt": self.attempt, "segment": self.segment, "time": self.now}
        record = record_type(**at | values)
        (self.journal.append_durably if record_type is Decision else self.journal.append)(record)


def emit(path: Path, scale: float = 1.0) -> RunFolder:
    """A spike, growing attention, a death, a person's note, and a good end.

    Args:
        path: the run's folder.
        scale: of all step counts; 0.1 is enough for a test.
    """
    story = Timeline(path, every=10 if scale == 1 else 2)

    def at(step: int) -> int:
        return round(step * scale)

    story.start(1)
    story.now += 42
    story.track = {"restart": 12.0, "prepare": 30.0}
    story.open("1.00", "", 0, "start")
    story.train(0, at(700), spike=2.4)
    story.find(
        "loss-spike", "alarm", at(700), at(650),
        evidence={"loss": 8.9, "expected": 3.31, "z": 41.2},
        sentence="the loss rose from 3.31 to 8.90 within 50 steps and does not come back",
    )  # fmt: skip
    story.find(
        "gradient-spike", "warning", at(700), at(660), subject="matrix",
        evidence={"gradient_norm": 6.1}, sentence="the gradient norm is 12 times its usual size",
    )  # fmt: skip
    story.decide(
        "recover", at(700), "policy", "the same data may spike again: go back and pass over it",
        cause="loss-spike", subject="", actions=["rollback", "skip"],
        rollback={"from": at(700), "to": at(600), "draw": at(600) * 64},
        skip={"begin": at(640) * 64, "end": at(720) * 64}, set={}, old={}, reset=[],
        price={"steps_lost": at(100), "seconds_lost": 140.0 * scale, "blocks_skipped": at(80) * 64},
    )  # fmt: skip
    story.open("1.01", "1.00", at(600), "loss-spike: rolled back to 600, data skipped")
    story.train(at(600), at(1300), grow=0.34)
    story.find(
        "growth", "warning", at(1300), at(1000), subject="attention_logit_max[3]",
        evidence={
            "value": 61.0, "warning_line": 50.0, "danger_line": 100.0, "base": 5.0,
            "doubling_steps": 200.0 * scale, "forecast_step": at(1450), "ratio": math.inf,
        },
        sentence="attention logits of layer 3 double every 200 steps and cross 100 near step 1,450",
    )  # fmt: skip
    lowered = {**SETTINGS, "optim": {"lr": 3e-4, "clip": 1.0}}
    story.decide(
        "recover", at(1300), "policy", "growth comes back whatever the data: halve the rate",
        cause="growth", subject="attention_logit_max[3]", actions=["rollback", "lower-lr"],
        rollback={"from": at(1300), "to": at(1000), "draw": at(1000) * 64}, skip=None,
        set={"optim.lr": 3e-4}, old={"optim.lr": 6e-4}, reset=["optimizer"], rewarm_steps=at(50),
        poison=[[at(1200), "ab"]], price={"steps_lost": at(300), "progress_lost_share": 0.3},
    )  # fmt: skip
    story.lr = 3e-4
    story.open(
        "1.02", "1.01", at(1000), "growth: rolled back to 1,000, learning rate halved",
        settings=lowered, difference={"optim.lr": (6e-4, 3e-4)},
    )  # fmt: skip
    story.train(at(1000), at(1650))
    story.event("note", at(1650), data={"text": NASTY, "who": "anna"})
    story.event("checkpoint-failed", at(1650), data={"message": "no space left on the device"})
    story.start(2, resumed_from=at(1600), steps_made=at(1650))
    story.now += 1900
    story.track = {"idle": 1880.0, "restart": 20.0}
    changed = {**PRINTS, "software": {"longhaul": "0.4", "packages": {"torch": "2.13.0"}}}
    story.open(
        "1.03", "1.02", at(1600), "restart from step 1600 (the last attempt left no word)",
        settings=lowered, fingerprint=changed, checkpoint=at(1600),
    )  # fmt: skip
    story.train(at(1600), at(2400))
    story.find(
        "plateau", "notice", at(2300), at(2200), evidence={"slope": -1e-6},
        sentence="the loss has not moved for 100 steps; the learning rate may be too low",
    )  # fmt: skip
    story.event("finished", at(2400), data={"loss": 2.94, "bits_per_byte": 0.89})
    story.event("attempt-ended", at(2400), data={"reason": "finished"})
    return story.close()


@pytest.fixture(scope="session")
def told(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return emit(tmp_path_factory.mktemp("runs") / "story", scale=0.1)


@pytest.fixture(scope="module")
def shared_story(tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    """One to be told once, and read by several tests."""
    return Timeline(tmp_path_factory.mktemp("runs") / "shared")


@pytest.fixture
def new_story(tmp_path: Path) -> Callable[[], Timeline]:
    return lambda: Timeline(tmp_path / "runs" / "other")
