"""The frozen records that flow between stages, and their form as JSON lines."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from longhaul.core.errors import LonghaulError
from longhaul.core.strict import parse_json
from longhaul.core.units import LAST_MOMENT, Nats, Seconds

if TYPE_CHECKING:
    from pydantic import TypeAdapter


class _Read:
    """How pydantic reads a field; imported when a record is read: `longhaul --help` reads none."""

    def __init__(self, **options: Any) -> None:
        self._options = options

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        return handler(source) | self._options


Whole = Annotated[int, _Read(strict=True, ge=-(1 << 63), lt=1 << 63)]
Flag = Annotated[bool, _Read(strict=True)]
Moment = Annotated[Seconds, _Read(strict=True, ge=0, le=LAST_MOMENT)]
"""Unix time that a file gives."""
Spent = Annotated[Seconds, _Read(ge=-LAST_MOMENT, le=LAST_MOMENT)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One completed optimizer step, as judged and kept. Everything scheduled is carried along."""

    attempt: Whole
    segment: str
    step: Whole
    """Updates made once this step is done; the first step is 1."""
    draw: Whole
    """First block of the order of data that this step read."""
    next_draw: Whole
    time: Moment
    """Unix time at which the step was known to be complete."""
    lag_steps: Whole = 0
    """Boundary at which the record was seen, minus the step's own boundary."""
    loss: Nats
    """Mean over all target tokens of the global batch."""
    gradient_norm: float
    """Root of the summed squares over all parameters, before clipping."""
    learning_rate: float
    masked: Flag = False
    """The gate held this update back because loss or gradient was not finite."""
    loss_scale: float | None = None
    """What the loss was multiplied by before the backward pass; None without a loss scale."""
    loss_scale_at_floor: Flag = False
    """The gradient overflowed although the loss scale could not be lowered any more."""
    sequences: Whole
    sequence_length: Whole
    mixture_stage: Whole = 0
    """Stage of the mixture of sources that `draw` lies in; 0 before the first of `data.stages`."""
    attention_window: Whole | None = None
    """Positions that windowed layers attended to, while a stage of `model.window_stages` holds."""
    warmup: Flag = False
    """The learning rate is still rising: by schedule, or after the optimizer's state was reset."""
    evaluation_due: Flag = False
    save_due: Flag = False
    redone: Flag = False
    """An earlier attempt had already made this step and lost it."""
    seconds: Mapping[str, Spent] = field(default_factory=dict)
    """Seconds per bucket (`core.clocks`) since the previous record of this process."""
    gauges: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Per gauge one value a layer; empty between gauge steps."""
    totals: Mapping[str, float] = field(default_factory=dict)
    """Of the whole model, and of one role of weights as `gauge.role`; empty between gauge steps."""
    source_losses: Mapping[str, Nats] = field(default_factory=dict)
    """Mean loss of each source's tokens in this batch; empty between gauge steps."""
    states: tuple[tuple[Whole, Whole, str], ...] | None = None
    """Training states that the run could have gone back to at this boundary: step, draw to go on
    from, and `memory`, `disk` or `remote`; by rising step. None: those of the record before."""

    @property
    def tokens(self) -> int:
        """Target tokens in this step's global batch."""
        return self.sequences * self.sequence_length


Severity = Literal["notice", "warning", "alarm"]
"""`notice`: reported, never acted on; `warning`: it will do harm; `alarm`: it does harm now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What the judgement sees in the records of a run. Kinds are listed in `diagnose/`."""

    kind: str
    severity: Severity
    attempt: Whole
    segment: str = ""
    step: Whole
    """Step whose record brought it to light."""
    first_step: Whole
    """Step of the first sign of it: whatever was learned from there on is in doubt."""
    first_draw: Whole
    """First block of data of that step."""
    time: Moment
    subject: str = ""
    """What it is about: a gauge and its layer as `gauge[3]`, a role of weights, a source."""
    evidence: Mapping[str, float] = field(default_factory=dict)
    sentence: str
    """The same in words, for a tired person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to the run other than a step; `EventKind`: what `data` carries."""

    kind: str
    attempt: Whole
    segment: str = ""
    step: Whole = 0
    time: Moment
    seconds: Mapping[str, Spent] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A change to the ledger: written and fsynced before it takes effect; never rolled back.

    `kind` and its `data`:
        set: {"path": dotted setting, "value": new, "old": previous}
        unset: {"path": dotted setting, "old": previous}, the recipe's own value holds again
        skip: {"begin": draw, "end": draw}, blocks begin ≤ draw < end are passed over
        checkpoint-health: {"checkpoint": step, "health": word, "manifest": hash}
        stop: {}
        restart: {"settings": {path: [before, since]}, "surroundings": the same of software, machine
            and ranks}, what an attempt found changed where it went on
        recover: what the policy decided, or a person who asked for a rollback, as one line, so
            that a crash keeps all of it or nothing:
            {"cause": kind of finding, "subject": its subject, "first_step": of its first sign,
             "first_draw": first block of that step, "actions": [words],
             "rollback": {"from": step, "to": step, "draw": draw to go on from} or null,
             "skip": {"begin": draw, "end": draw} or null, "set": {path: value},
             "old": {path: value before}, "reset": ["optimizer" | "loss-scale"],
             "rewarm_steps": n, "poison": [[checkpoint step, manifest hash]], "price": {…},
             "fallback": name of what was forked to or "", "undo": [changes that are undone],
             "failed": [learning rates that the run could not bear],
             "verdict": {"cause", "rung", "sentence"} of replays made before it, or null}
    """

    kind: str
    attempt: Whole
    segment: str = ""
    step: Whole
    """Boundary (updates made) at which it was decided."""
    from_step: Whole = 0
    """First step count it governs, in every attempt; 0 governs whatever a restart returns to."""
    time: Moment
    who: str
    reason: str
    data: Mapping[str, Any] = field(default_factory=dict)


Record = StepRecord | Finding | Event | Decision
_WORDS: dict[type[Record], str] = {
    StepRecord: "step", Finding: "finding", Event: "event", Decision: "decision",
}  # fmt: skip


Where = Literal["memory", "disk", "remote"]


@dataclass(frozen=True, slots=True)
class Safe:
    """A training state that can be gone back to."""

    step: int
    """Updates made."""
    draw: int
    """First block of data that the next step would read."""
    where: Where
    """`remote`: a tier has it, and it must be fetched first."""


class RecordError(LonghaulError):
    """A line that is no record: damaged, or written by a newer longhaul."""


def finite_or_word(value: Any) -> Any:
    """The same for JSON, which has no words for numbers that are not finite."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, Mapping):
        return {key: finite_or_word(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_word(item) for item in value]
    return value


def to_line(record: Record) -> str:
    """One JSON object without a newline."""
    body = {"record": _WORDS[type(record)]} | asdict(record)
    return json.dumps(finite_or_word(body), ensure_ascii=False, separators=(",", ":"), default=str)


def from_line(line: str | bytes) -> Record:
    """The record in a JSON line; RecordError if it is none, or a field is absent or impossible."""
    try:
        text = line if isinstance(line, str) else line.decode()
        # The many numbers of a step are all looked at as its fields.
        is_step = text.startswith('{"record":"step"')
        body = parse_json(text, "journal", check_numbers=not is_step)
        # Fields a newer longhaul added are ignored: an old reader must not lose the line.
        return _readers()[body.pop("record")].validate_python(body)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        shown = line[:80].decode(errors="replace") if isinstance(line, bytes) else line[:80]
        raise RecordError(f"not a journal record: {shown!r}") from error


@cache
def _readers() -> dict[str, "TypeAdapter[Record]"]:
    from pydantic import TypeAdapter

    return {word: TypeAdapter(kind) for kind, word in _WORDS.items()}
