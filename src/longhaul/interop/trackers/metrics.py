"""The figures of a run that Prometheus is shown, as a fold over its journal."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pydantic import TypeAdapter

from longhaul.core.clocks import STEP_BUCKETS, goodput
from longhaul.core.events import EventKind
from longhaul.core.records import Decision, Event, Finding, Record, StepRecord

_RATE_OVER = 20
"""Steps over which throughput is taken: several may be seen complete together."""
_CHECKPOINTS = 64
"""Steps that are kept of each health, to go back to where newer ones are poisoned."""


@dataclass(frozen=True)
class Metric:
    """One metric with its samples: a counter only rises, over all attempts of a run."""

    name: str
    """Without `longhaul_` before it, and without a counter's `_total` after it."""
    kind: Literal["gauge", "counter"]
    help: str
    label: str = ""
    """What tells the samples apart; empty where there is one."""
    samples: Mapping[str, float] = field(default_factory=dict)


@dataclass
class RunMetrics:
    """A run so far. What is not known yet is None, and not shown."""

    attempt: int = 0
    step: int = 0
    total_steps: int | None = None
    loss: float | None = None
    gradient_norm: float | None = None
    learning_rate: float | None = None
    loss_scale: float | None = None
    validation_loss: float | None = None
    bits_per_byte: float | None = None
    tokens: int = 0
    skipped: int = 0
    last_step_time: float | None = None
    rates: list[tuple[int, float]] = field(default_factory=list)
    """(tokens, seconds) of the last steps."""
    seconds: dict[str, float] = field(default_factory=dict)
    restarts: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    rollbacks: int = 0
    findings: dict[str, int] = field(default_factory=dict)
    saves_failed: int = 0
    saved: dict[str, list[int]] = field(default_factory=dict)
    """Health → steps of the newest checkpoints that have come to have it and are not poisoned."""
    away: list[int] = field(default_factory=list)
    """Replicas that training goes on without."""
    paused: bool = False
    finished: bool = False
    died: bool = False
    """The last attempt has left no word of its end, or a cause."""

    def take(self, record: Record) -> None:
        """Add a record, in the order of the journal."""
        if isinstance(record, StepRecord):
            self._step(record)
        elif isinstance(record, Finding):
            self.findings[record.severity] = self.findings.get(record.severity, 0) + 1
        elif isinstance(record, Decision):
            self._decided(record)
        else:
            self._event(record)

    def _step(self, record: StepRecord) -> None:
        self._book(record.seconds)
        self.tokens += record.tokens
        self.skipped += record.masked
        if record.attempt < self.attempt:
            return  # of one that was taken for dead
        self.attempt, self.step, self.loss = record.attempt, record.step, record.loss
        self.gradient_norm, self.learning_rate = record.gradient_norm, record.learning_rate
        self.loss_scale, self.last_step_time = record.loss_scale, record.time
        own = sum(record.seconds.get(bucket, 0.0) for bucket in STEP_BUCKETS)
        self.rates = [*self.rates, (record.tokens, own)][-_RATE_OVER:]

    def _event(self, event: Event) -> None:
        self._book(event.seconds)
        data = event.data
        match event.kind:
            case EventKind.ATTEMPT_STARTED:
                self.restarts += self.died
                self.attempt, self.died, self.finished = event.attempt, True, False
                self.paused, self.away, self.rates = False, [], []
                self.total_steps = _whole(data.get("total_steps"))
            case EventKind.ATTEMPT_ENDED:
                self.died = "cause" in data
                if self.died:
                    cause = str(data["cause"])
                    self.failures[cause] = self.failures.get(cause, 0) + 1
            case EventKind.FINISHED | EventKind.EVALUATION:
                self.finished = event.kind == EventKind.FINISHED
                loss, bits = data.get("loss"), data.get("bits_per_byte")
                self.validation_loss = self.validation_loss if loss is None else float(loss)
                self.bits_per_byte = self.bits_per_byte if bits is None else float(bits)
            case EventKind.ROLLED_BACK:
                self.rollbacks += 1
            case EventKind.CHECKPOINT_FAILED:
                self.saves_failed += 1
            case EventKind.REPLICA_LOST:
                self.away = sorted({*self.away, int(data.get("rank") or 0)})
            case EventKind.REPLICA_BACK:
                self.away = [one for one in self.away if one != data.get("rank")]
            case EventKind.PAUSED | EventKind.RESUMED:
                self.paused = event.kind == EventKind.PAUSED

    def _decided(self, decision: Decision) -> None:
        data = decision.data
        poisoned = [int(pair[0]) for pair in data.get("poison") or ()]
        if decision.kind == "checkpoint-health":
            step, health = int(data["checkpoint"]), str(data["health"])
            if health == "poisoned":
                poisoned = [step]
            else:
                self.saved[health] = sorted({*self.saved.get(health, ()), step})[-_CHECKPOINTS:]
        for health, steps in self.saved.items():
            self.saved[health] = [step for step in steps if step not in poisoned]

    def _book(self, seconds: Mapping[str, float]) -> None:
        for bucket, spent in seconds.items():
            self.seconds[bucket] = self.seconds.get(bucket, 0.0) + spent

    def metrics(self) -> Iterator[Metric]:
        """All that is known, as Prometheus names things."""
        yield from self._of_training()
        yield from self._of_the_run()

    def _of_training(self) -> Iterator[Metric]:
        tokens, seconds = sum(t for t, _ in self.rates), sum(s for _, s in self.rates)
        yield from _gauges({
            "step": (self.step, "Updates made by the last attempt that made any."),
            "target_steps": (self.total_steps, "Updates after which the run is finished."),
            "training_loss": (self.loss, "Loss of the last step, in nats a token."),
            "gradient_norm": (self.gradient_norm, "Norm of the last gradient, before clipping."),
            "learning_rate": (self.learning_rate, "Learning rate of the last step."),
            "loss_scale": (self.loss_scale, "What the last loss was multiplied by (fp16)."),
            "validation_loss": (self.validation_loss, "Last held-out loss, in nats a token."),
            "validation_bits_per_byte": (self.bits_per_byte, "The same in bits a byte of text."),
            "throughput_tokens_per_second": (
                tokens / seconds if seconds else None,
                f"Target tokens a second over the last {_RATE_OVER} steps, their own time alone.",
            ),
            "last_step_timestamp_seconds": (
                self.last_step_time, "Unix time at which the last step was known to be complete.",
            ),
        })  # fmt: skip
        yield _counter("tokens", self.tokens, "Target tokens trained on, lost steps included.")
        yield _counter("skipped_updates", self.skipped, "Updates held back: not finite.")

    def _of_the_run(self) -> Iterator[Metric]:
        spent = goodput(self.seconds)
        yield from _gauges({
            "attempt": (self.attempt, "Number of the newest attempt."),
            "goodput_ratio": (
                spent if spent == spent else None,
                "Share of all time so far that went into training that was kept.",
            ),
            "checkpoint_last_verified_step": (
                self._newest("verified"), "Step of the newest checkpoint that was read back.",
            ),
            "checkpoint_last_good_step": (
                self._newest("good"),
                "Step of the newest checkpoint after which training stayed healthy.",
            ),
            "replicas_away": (len(self.away), "Replicas that training goes on without."),
            "paused": (self.paused, "1 while training waits for space or a network."),
            "finished": (self.finished, "1 once the run has made all its steps."),
        })  # fmt: skip
        yield _counter("restarts", self.restarts, "Attempts that began after a failed one.")
        yield Metric("failures", "counter", "Attempts that failed, by cause.", "cause",
                     dict(self.failures))  # fmt: skip
        yield _counter("rollbacks", self.rollbacks, "Times that training went back by decision.")
        yield Metric("findings", "counter", "What detectors found, by severity.", "severity",
                     dict(self.findings))  # fmt: skip
        yield _counter("checkpoint_failures", self.saves_failed, "Saves that did not succeed.")
        yield Metric("time_seconds", "counter", "Seconds of the run, by what they went into.",
                     "bucket", dict(self.seconds))  # fmt: skip

    def _newest(self, health: str) -> int | None:
        return max(self.saved.get(health, ()), default=None)

    def state(self) -> dict[str, Any]:
        """The fold so far, for `restored`."""
        return asdict(self)

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> "RunMetrics":
        """The fold that was kept; ValueError if that is damaged."""
        return TypeAdapter(cls).validate_python(state)


def _gauges(found: Mapping[str, tuple[float | None, str]]) -> Iterator[Metric]:
    for name, (value, words) in found.items():
        if value is not None:
            yield Metric(name, "gauge", words, samples={"": float(value)})


def _counter(name: str, value: float, words: str) -> Metric:
    return Metric(name, "counter", words, samples={"": float(value)})


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None
