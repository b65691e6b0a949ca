"""Training one form of a case, through the loop of `longhaul train` itself.

Enters: a case, a form. Leaves: an `Ended`: how it ended, what it cost, what was done. Never knows:
what is a good end.

The run has a folder, a lease, a journal, checkpoints and snapshots as any other. People act on it
by the functions behind `longhaul set`, `fork`, `stop` and `train --set`: requests are files in its
folder. Only the trainer's desk is made to look at every step border, not twice a second, so that
a request is granted at the same step each time.
"""

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from benchmarks.divergence_lab.ends.cases import SNAPSHOT_STEPS, Case, Change
from benchmarks.divergence_lab.ends.faults import disturbed
from benchmarks.divergence_lab.other import is_of_other_text, located, sources
from benchmarks.divergence_lab.runs import BASE

import longhaul.run.train.request_handler
import longhaul.run.train.worker
from longhaul.config.load import load_recipe, with_overrides
from longhaul.config.recipe import Recipe
from longhaul.core.clocks import RealClock
from longhaul.core.errors import ExitCode, LonghaulError
from longhaul.core.output import View
from longhaul.core.records import Decision, Event, Finding, Record, StepRecord
from longhaul.data.dataset import Dataset
from longhaul.data.prepare import prepare
from longhaul.logbook.folder import RunFolder, create_run
from longhaul.logbook.reading import read_journal
from longhaul.logbook.run_spec import RunSpec, write_run_spec
from longhaul.recover.plan import WHO
from longhaul.run.train.control_requests import request_fork, request_set, request_stop
from longhaul.run.train.launch import Start, start
from longhaul.supervise.ranks.group import BEGAN

Form = Literal["undisturbed", "nobody", "policy"]
FORMS: tuple[Form, ...] = ("undisturbed", "nobody", "policy")
"""The twin; the fault with `recover.mode = "report"`; the fault with the policy acting."""
_HELD_OUT_TEXT = 0.004, 0.005
"""Shares held out of the lab's text and of the other: some 100 kB, whose loss is the end."""
_CURVE_STEPS = 10
_NO_ACTIONS = frozenset({"mask", "report"})
_BOOKKEEPING = ("checkpoint-health",)
_COMMON: dict[str, Any] = {
    "checkpoint.interval_steps": 100,
    "checkpoint.snapshot_interval_steps": SNAPSHOT_STEPS,
    "sample.tokens": 0,
    "precision.compute": "float32",
    "optim.muon.newton_schulz": "bf16",
}
"""Saves and snapshots about a fifth and a twentieth of a run apart, as in long ones, and formats
that no machine chooses. Of the policy's own settings none."""


@dataclass(frozen=True, slots=True)
class Action:
    """Something that the policy did."""

    step: int
    cause: str
    actions: tuple[str, ...]
    to: int | None
    """Step that it went back to."""
    settings: dict[str, Any]
    verdict: str
    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    """How one form of a case ended."""

    name: str
    form: Form
    code: int
    """Exit code of the last attempt."""
    loss: float | None
    """Mean validation loss over all held-back text, in nats; None: it did not come to its end."""
    step: int
    total: int
    """Steps to make."""
    made: int
    """Steps made, those made again included."""
    again: int
    """Steps that a rollback threw away."""
    seconds: float
    """From the first step to the end: training, evaluation, saves, replays."""
    wasted_s: float
    """Of these: steps thrown away, replays in search of a cause, going back."""
    actions: tuple[Action, ...]
    alarms: tuple[tuple[int, str], ...]
    """Step and kind of every finding that is more than a notice."""
    curve: tuple[float, ...]
    """Mean training loss of ten steps each, of those that the end stands on."""
    why: str = ""
    """What the program said, if it did not come to its end."""

    @property
    def lowest(self) -> int | None:
        """The earliest step that the policy went back to."""
        return min((a.to for a in self.actions if a.to is not None), default=None)


@cache
def _text(home: Path, paths: tuple[tuple[str, str], ...], held_out: float) -> Dataset:
    sources = [{"name": name, "path": path} for name, path in paths]
    changed = {"data.sources": sources, "data.held_out.fraction": held_out}
    return prepare(with_overrides(load_recipe(str(BASE)).recipe, changed), home, lambda _: None)


def text_of(case: Case, home: Path) -> Dataset:
    """The text of a case, prepared once for all with the same sources; weights are the case's."""
    data = settings_of(case, "undisturbed").data
    paths = tuple((source.name, source.path) for source in data.sources)
    text = _text(home, paths, data.held_out.fraction)
    weights = {source.name: source.weight for source in data.sources}
    return replace(text, sources=tuple(replace(s, weight=weights[s.name]) for s in text.sources))


@cache
def _base(other: bool) -> Recipe:
    """The recipe that all cases of one text begin from."""
    changed: dict[str, Any] = {"data.held_out.fraction": _HELD_OUT_TEXT[other]}
    if other:
        changed["data.sources"] = located(sources())
    return with_overrides(load_recipe(str(BASE)).recipe, {**_COMMON, **changed})


def settings_of(case: Case, form: Form) -> Recipe:
    """The recipe of one form, checked as any other is."""
    other = is_of_other_text(case.run)
    changed = {**case.run.settings, "seed": case.run.seed}
    if "data.sources" in changed:
        changed["data.sources"] = located(changed["data.sources"])
    if "H7" not in case.run.harmless:
        changed.setdefault("evaluation.interval_steps", 0)
    mode = "act" if form == "policy" else "report"
    return with_overrides(_base(other), {**changed, "recover.mode": mode})


def train(case: Case, form: Form, home: Path) -> Ended:
    """Train one form of a case to its end.

    Args:
        case: as declared; the twin is made of it.
        form: which.
        home: where prepared text is.
    """
    made = case.undisturbed() if form == "undisturbed" else case
    settings = settings_of(made, form)
    with tempfile.TemporaryDirectory(prefix="longhaul-ends-") as room:
        folder = create_run(Path(room) / "run", RealClock())
        values = settings.model_dump(mode="json")
        write_run_spec(
            folder, RunSpec(str(BASE), (), None, str(home.resolve()), values, str(Path.cwd()))
        )
        with disturbed(made, settings), _seams(text_of(made, home)):
            code, why = _play(folder, made.change)
        if code in (ExitCode.START_AGAIN, ExitCode.INTERRUPTED):
            raise KeyboardInterrupt  # whoever told this process to stop meant the lab, not the run
        records = list(read_journal(folder))
    return _ended(case.run.name, form, settings.total_steps() or 0, (code, why), records)


class _Person(View):
    """Watches the run, and does something to it once it has come so far."""

    def __init__(self, step: int, act: Callable[[], object]) -> None:
        super().__init__()
        self._step, self._act = step, act
        self._done = False

    def show(self, record: StepRecord | Event) -> None:
        """A record that was just journalled."""
        if isinstance(record, StepRecord) and record.step == self._step and not self._done:
            self._done = True
            self._act()


def _play(folder: RunFolder, change: Change | None) -> tuple[int, str]:
    """Start the run, and start it again where a person has stopped it."""
    view = View() if change is None else _Person(change.at, lambda: _act(folder, change))
    code, why = _attempt(folder, (), view)
    if change is not None and change.how == "restart" and code == 16:
        options = tuple(f"{path}={value}" for path, value in change.settings.items())
        code, why = _attempt(folder, options, View())
    return code, why


def _act(folder: RunFolder, change: Change) -> None:
    options = [f"{path}={value}" for path, value in change.settings.items()]
    if change.how == "set":
        for option in options:
            request_set(folder, option, "", 0.0, force=True)
    elif change.how == "fork":
        request_fork(folder, change.at - change.back, options, (), "", 0.0, force=True)
    else:
        request_stop(folder, "", 0.0)


def _attempt(folder: RunFolder, options: tuple[str, ...], view: View) -> tuple[int, str]:
    os.environ[BEGAN] = str(time.time())  # this process makes many runs
    try:
        return int(start(Start(str(folder.path), options), view)), ""
    except LonghaulError as error:
        return int(error.exit_code), error.message
    finally:
        del os.environ[BEGAN]


@contextmanager
def _seams(text: Dataset) -> Iterator[None]:
    """Text that was prepared once for all, and a desk that looks at every border."""
    request_handler, worker = longhaul.run.train.request_handler, longhaul.run.train.worker
    before = request_handler._LOOK_EVERY_S, worker.text_for_training
    request_handler._LOOK_EVERY_S, worker.text_for_training = 0.0, lambda folder, asked, say: text
    try:
        yield
    finally:
        request_handler._LOOK_EVERY_S, worker.text_for_training = before


def _ended(
    name: str, form: Form, total: int, end: tuple[int, str], records: Sequence[Record]
) -> Ended:
    steps = [record for record in records if isinstance(record, StepRecord)]
    events = [record for record in records if isinstance(record, Event)]
    began = min((record.time for record in steps), default=math.inf)
    finished = [event for event in events if event.kind == "finished"]
    stood, thrown_away = _line(records)
    searching = [event for event in events if event.kind in ("cause", "rolled-back")]
    losses = [record.loss for record in stood]
    return Ended(
        name, form, end[0],
        float(finished[-1].data["loss"]) if finished else None,
        stood[-1].step if stood else 0, total, len(steps), len(thrown_away),
        _seconds(r for r in (*steps, *events) if r.time >= began),
        _seconds((*thrown_away, *searching)),
        tuple(_actions(records)),
        tuple((r.step, r.kind) for r in records
              if isinstance(r, Finding) and r.severity != "notice"),
        tuple(float(f"{fmean(losses[n : n + _CURVE_STEPS]):.4g}")
              for n in range(0, len(losses), _CURVE_STEPS)),
        end[1],
    )  # fmt: skip


def _line(records: Sequence[Record]) -> tuple[list[StepRecord], list[StepRecord]]:
    """The steps that the end stands on, and those that the policy threw away."""
    stood: list[StepRecord] = []
    thrown_away: list[StepRecord] = []
    for record in records:
        if isinstance(record, StepRecord):
            stood.append(record)
        elif isinstance(record, Decision) and (back := record.data.get("rollback")):
            left = [step for step in stood if step.step > back["to"]]
            if record.who == WHO:
                thrown_away += left
            stood = stood[: len(stood) - len(left)]
    return stood, thrown_away


def _seconds(records: Iterable[StepRecord | Event]) -> float:
    return round(sum(sum(record.seconds.values()) for record in records), 3)


def _actions(records: Sequence[Record]) -> Iterator[Action]:
    for record in records:
        if not isinstance(record, Decision) or record.who != WHO or record.kind in _BOOKKEEPING:
            continue
        data = record.data
        actions = tuple(data.get("actions", (record.kind,)))
        if _NO_ACTIONS.issuperset(actions):
            continue
        back, verdict = data.get("rollback"), data.get("verdict")
        yield Action(
            record.step, str(data.get("cause", "")), actions, back["to"] if back else None,
            dict(data.get("set", {})), verdict["cause"] if verdict else "", record.reason,
        )  # fmt: skip
