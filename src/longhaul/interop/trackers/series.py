"""What a tracker shows of a run: figures by name, and the lines of its story."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from longhaul.core.clocks import tokens_per_second
from longhaul.core.events import EventKind
from longhaul.core.records import Decision, Event, Finding, Record, StepRecord
from longhaul.interop.trackers.mirror import Target
from longhaul.logbook.description import decision_in_words, event_in_words, readable_line

Values = dict[str, float]


def values_of_step(record: StepRecord) -> Values:
    """Name → figure of one step.

    `train/loss` in nats a token; `train/gradient_norm` before clipping; `train/tokens_per_second`
    over the step alone; `gauges/NAME/LAYER`; `model/NAME/ROLE` of the whole model or of one role
    of weights; `train/loss_by_source/NAME`. Gauges stand only where they were read.
    """
    values = {
        "train/loss": record.loss,
        "train/gradient_norm": record.gradient_norm,
        "train/learning_rate": record.learning_rate,
        "train/skipped_update": float(record.masked),
        "train/sequence_length": float(record.sequence_length),
    }
    if record.loss_scale is not None:
        values["train/loss_scale"] = record.loss_scale
    rate = tokens_per_second(record)
    if rate == rate:
        values["train/tokens_per_second"] = rate
    values |= {f"train/loss_by_source/{name}": x for name, x in record.source_losses.items()}
    values |= {f"model/{name.replace('.', '/')}": total for name, total in record.totals.items()}
    for name, layers in record.gauges.items():
        values |= {f"gauges/{name}/{layer:02d}": x for layer, x in enumerate(layers)}
    return values


def values_of_event(event: Event) -> Values:
    """Name → figure of an evaluation; none of other events. The end of a run repeats its last."""
    data = event.data
    if event.kind != EventKind.EVALUATION or "loss" not in data:
        return {}
    sources = data.get("sources")
    found = {
        "validation/loss": data["loss"],
        "validation/bits_per_byte": data.get("bits_per_byte"),
    }
    for name, loss in sources.items() if isinstance(sources, Mapping) else ():
        found[f"validation/loss_by_source/{name}"] = loss
    return {name: float(value) for name, value in found.items() if value is not None}


def line_of(record: Record) -> str:
    """What a person should read of a record beside the curves; empty where that is nothing."""
    if isinstance(record, Finding):
        return readable_line(record)
    if isinstance(record, Decision):
        told = record.kind == "recover" or decision_in_words(record) != ""
        return readable_line(record) if told else ""
    if isinstance(record, Event):
        told = record.kind == EventKind.SEGMENT_OPENED or event_in_words(record) is not None
        return readable_line(record) if told else ""
    return ""


@dataclass
class TokenCount:
    """Target tokens that the run's present weights were trained on, after any step."""

    runs: list[tuple[int, int]] = field(default_factory=list)
    """(first step, tokens a step) of stretches with equal steps, by rising step."""

    def add(self, step: int, tokens: int) -> None:
        """A step of so many tokens was made; those from there on are made anew."""
        self.undo(step - 1)
        if not self.runs or self.runs[-1][1] != tokens:
            self.runs.append((step, tokens))

    def undo(self, step: int) -> None:
        """Forget what came after `step` updates."""
        while self.runs and self.runs[-1][0] > step:
            self.runs.pop()

    def at(self, step: int) -> int:
        """Tokens after `step` updates, the last one made or an earlier one."""
        ends = [*(first - 1 for first, _ in self.runs[1:]), step]
        stretches = zip(self.runs, ends, strict=False)
        return sum((min(end, step) - first + 1) * tokens for (first, tokens), end in stretches)


class Tracker:
    """Where a run is shown; this one shows nothing. What cannot be written raises OSError.

    Steps come by rising number, until `undo` takes some back.
    """

    def values(self, step: int, time: float, values: Values) -> None:
        """Figures after `step` updates, at this Unix time."""

    def text(self, step: int, time: float, line: str) -> None:
        """What happened after `step` updates."""

    def undo(self, step: int) -> None:
        """Training goes on from `step` updates: what was shown of later ones is not so any more."""

    def settings(self, time: float, settings: Mapping[str, Any]) -> None:
        """What is in force from here on, as nested tables."""

    def flush(self) -> None:
        """Hand over all that was given."""

    def close(self) -> None:
        """Nothing more comes."""

    def state(self) -> Mapping[str, Any]:
        """What `restore` needs to go on after all that was flushed."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there. What was given since then will be given again."""


class Lineage(Target):
    """Tells a tracker the records of a journal, so that of each step it shows the one that counts:
    where training went back, the steps after are taken back before others come.
    """

    def __init__(
        self,
        tracker: Tracker,
        settings_of: Callable[[str], Mapping[str, Any] | None] = lambda segment: None,
    ) -> None:
        self.tracker = tracker
        self._settings_of = settings_of
        """Settings of a segment, if they can be read."""
        self._attempt = 0
        self._step = 0
        """Last step that the tracker shows anything of."""
        self._tokens = TokenCount()

    def take(self, record: Record) -> None:
        """See `Target`."""
        if isinstance(record, StepRecord):
            # A step of an attempt that was taken for dead, and wrote on, is nobody's.
            if record.attempt < self._attempt:
                return
            self._attempt = record.attempt
            self._go_back(record.step - 1)
            self._tokens.add(record.step, record.tokens)
            values = values_of_step(record) | {"train/tokens": float(self._tokens.at(record.step))}
            self.tracker.values(record.step, record.time, values)
            self._step = record.step
            return
        if isinstance(record, Event) and record.kind == EventKind.SEGMENT_OPENED:
            self._go_back(record.step)
            if (settings := self._settings_of(record.segment)) is not None:
                self.tracker.settings(record.time, settings)
        if isinstance(record, Event) and (values := values_of_event(record)):
            self.tracker.values(record.step, record.time, values)
            self._step = max(self._step, record.step)
        if line := line_of(record):
            self.tracker.text(record.step, record.time, line)

    def look_ends(self) -> None:
        """See `Target`."""
        self.tracker.flush()

    def close(self) -> None:
        """See `Target`."""
        self.tracker.close()

    def state(self) -> dict[str, Any]:
        """See `Target`."""
        return {
            "attempt": self._attempt, "step": self._step, "tokens": self._tokens.runs,
            "tracker": dict(self.tracker.state()),
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """See `Target`."""
        self._attempt, self._step = int(state.get("attempt", 0)), int(state.get("step", 0))
        self._tokens = TokenCount([(int(a), int(b)) for a, b in state.get("tokens", ())])
        self.tracker.restore(state.get("tracker", {}))

    def _go_back(self, step: int) -> None:
        if step < self._step:
            self.tracker.undo(step)
            self._tokens.undo(step)
            self._step = step
