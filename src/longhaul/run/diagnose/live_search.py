"""The search for a cause in a live run: steps computed again with the live step.

Replays are few: half of the learning rate comes before other data, as what goes away with it needs
none, and lower rates last, until one works. All ranks search together, decide by rank 0's figures,
and give up together.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from longhaul.checkpoint.capture import Stateful, StateMismatch
from longhaul.checkpoint.loader import read_facts, restore
from longhaul.checkpoint.snapshots import DamagedSnapshot
from longhaul.core.records import Safe, StepRecord
from longhaul.data.batches import BatchRequest
from longhaul.diagnose.at_rest import changed_for_good
from longhaul.diagnose.cause import SAME_BITS, Ladder, Verdict, apart, decide, reproduced
from longhaul.diagnose.signs import Series, Symptom, working_rate
from longhaul.parallel.control import Control, first_does
from longhaul.recover.plan import sizes_of
from longhaul.run.diagnose.bundle import Bundle, StepInput, given_to
from longhaul.run.diagnose.recorded import figures_of
from longhaul.run.diagnose.replays import Replayer
from longhaul.run.diagnose.search import CauseSearch, Experiment, has_dropout, rounding_of, skip
from longhaul.store.catalogue import checkpoint_path
from longhaul.store.manifest import RefusedCheckpoint
from longhaul.train.borrowed_step import BorrowedStep
from longhaul.train.orders import Order
from longhaul.train.trainer import Trainer

LIVE_RATES = tuple(0.5 * 0.25**n for n in range(7))
"""Factors on the learning rate, the half and then by powers of four: down to 1/8192 of it."""
_SEARCHED = 2
"""Times `recover.diagnose_steps`, the steps before that included, for the rate that works."""
_MAYBE_OF_DATA = ("loss-spike", "gradient-spike", "divergence")
_OF_A_RATE = ("undetermined", "hyper-parameter")
_AT_REST = ("at rest, before", "at rest, now", "at rest, near ahead", "at rest, far ahead")
_AT_REST_STEPS, _LEAST_AT_REST = 12, 6
"""Steps of data that are read without learning from it, of which the mean is a level."""
_NOT_LIVE = {
    "witness": "a live run asks no other device (`longhaul diagnose RUN --step N --witness` does)",
    "software": "a live run has no other software (`longhaul diagnose RUN --step N --python` has)",
}
_COPIES = 3
"""Of the training state on the host at once: the live one, and those at two steps."""
_CUT = 8
"""Unfused attention takes more of a GPU's memory: micro-batches are cut into so many there."""


class NoReplay(Exception):
    """Why nothing can be computed again."""


_MET_BY_ALL = (NoReplay, DamagedSnapshot, RefusedCheckpoint, StateMismatch)
"""What no rank meets alone. After anything else the others still wait for it: it ends them all."""


@dataclass(frozen=True)
class FindCause(Order):
    """Search with rank 0: what is looked into."""

    symptom: Symptom
    origin: Safe
    """State that replays set out from."""
    line: tuple[StepRecord, ...]
    """Records of all steps from there to where the symptom stands out."""
    set_out: int
    """Step that other data and lower rates set out from."""
    first_sign: int
    """Step of the first sign of all that is looked into, of which the symptom may be the last."""
    only_data: bool = False
    """Only whether data has changed for good is asked: what is planned needs no other cause."""


def look_into(
    question: FindCause,
    trainer: Trainer,
    checkpoints: Path,
    stop_wanted: Callable[[], bool] = lambda: False,
) -> tuple[Verdict, dict[str, Any]]:
    """Search with the live step, and give it back as it was; all ranks together, no step under way.

    `question` and `stop_wanted`, that the run has to stop soon, are rank 0's. The verdict is
    undetermined where it could not be found; beside it are the experiments in figures.
    """
    control = None if trainer.ranks is None else trainer.ranks.control
    try:
        borrowed_step = _borrowed(trainer, control)
    except NoReplay as why:
        return unknown(why), {}
    search = LiveSearch(question, trainer, borrowed_step, checkpoints, stop_wanted)
    try:
        verdict = search.find()
    except Exception as error:
        if control is not None and not isinstance(error, _MET_BY_ALL):
            raise
        verdict = unknown(error)
    finally:
        # What fails here does end the attempt: nobody goes on from half a state.
        trainer.return_step(borrowed_step)
    return verdict, search.figures()


def unknown(error: Exception) -> Verdict:
    """The verdict where nothing can be computed again."""
    why = str(error) if isinstance(error, NoReplay) else f"{type(error).__name__}: {error}"
    return Verdict("undetermined", "", f"it could not be looked for: {why}")


def _borrowed(trainer: Trainer, control: Control | None) -> BorrowedStep:
    """The live step of every rank; NoReplay where one does not lend its own."""
    borrowed_step, why = None, "another rank does not lend its step"
    try:
        borrowed_step = trainer.borrow_step(_COPIES)
    except Exception as error:  # noqa: BLE001 (no recovery fails for want of a cause)
        why = f"{type(error).__name__}: {error}"
    lent = borrowed_step is not None
    by_all = lent if control is None else control.agree(lent)
    if borrowed_step is not None:
        if by_all:
            return borrowed_step
        trainer.return_step(borrowed_step)
    raise NoReplay(why)


class LiveSearch(CauseSearch):
    """Steps made again by the live trainer, no more of them than the settings allow."""

    shifts = (-1, -2, 8, 16)  # back, which was sound, or on
    choices = 2

    def __init__(
        self,
        question: FindCause,
        trainer: Trainer,
        borrowed_step: BorrowedStep,
        checkpoints: Path,
        stop_wanted: Callable[[], bool],
    ) -> None:
        line = {record.step: record for record in question.line}
        super().__init__(question.symptom, question.set_out, line)
        self._question = question
        self._trainer = trainer
        self._settings = trainer.settings
        self._control = None if trainer.ranks is None else trainer.ranks.control
        self._borrowed_step = borrowed_step
        self._checkpoints = checkpoints
        self._stop_wanted = stop_wanted
        self.replayer = Replayer(borrowed_step.step, trainer.settings)
        self.at_rest: tuple[Series, ...] = ()
        self._spent = 0

    def find(self) -> Verdict:
        """Replay until the verdict is found; of a rate that is too high also which one works."""
        if self._question.only_data:
            why = "weights at rest do not find that the data has changed for good"
            return self._read_at_rest() or Verdict("undetermined", "", why)
        too_long = self._refusal(len(self._question.line))
        verdict = None if too_long else super().find()
        ladder = self.ladder
        if ladder is None or (
            reproduced(ladder) and verdict and verdict.cause in ("undetermined", "data")
        ):
            verdict = self._read_at_rest() or verdict
        if verdict is None:
            raise NoReplay(too_long)
        if ladder is not None and reproduced(ladder) and verdict.cause in _OF_A_RATE:
            return self._search_rate(ladder)
        return verdict

    def _experiments(self, ladder: Ladder) -> Sequence[Experiment]:
        """None where what went wrong does not come again, and so cannot be seen to go away."""
        if not reproduced(ladder):
            return ()
        return self._plain, partial(self._at_rate, factor=LIVE_RATES[0]), self.other_data

    def figures(self) -> dict[str, Any]:
        """The experiments in figures, for the journal."""
        question, ladder = self._question, self.ladder
        found: dict[str, Any] = {
            "symptom": str(question.symptom),
            "began": question.origin.step,
            "replayed_steps": self._spent,
        }

        def highest(series: Series) -> float:
            symptom = question.symptom
            values = [symptom.measured(f) for f in series if f.step >= symptom.first_step]
            wild = (value for value in values if not math.isfinite(value))
            return next(wild, max(values, default=math.nan))

        tried = {
            name: fmean(map(question.symptom.measured, series))
            for name, series in zip(_AT_REST, self.at_rest, strict=False)
        }
        if ladder is None:
            return found | ({"rungs": tried} if tried else {})
        tried |= {"recorded": highest(ladder.recorded), "as trained": highest(ladder.replays[0])}
        if ladder.plain is not None:
            tried["eager float32"] = highest(tuple(f for series in ladder.plain for f in series))
        tried |= {f"{factor:g} of the rate": highest(s) for factor, s in ladder.lower_rates}
        tried |= {f"other data {n}": highest(s) for n, s in enumerate(ladder.other_data, 1)}
        return found | {"rungs": tried, "skipped": dict(ladder.skipped)}

    def _as_trained(self) -> Ladder:
        """The same again: the run itself was the first time."""
        question = self._question
        recorded = tuple(map(figures_of, question.line))
        replays = [self._from_origin()]
        if all(apart(a, b, SAME_BITS) <= 1.0 for a, b in zip(replays[0], recorded, strict=True)):
            replays.append(recorded)
        elif not self._refusal(len(question.line)):
            replays.append(self._from_origin())
        return Ladder(
            recorded=recorded,
            replays=tuple(replays),
            here=self._at_frames(replays[0]),
            here_again=self._at_frames(replays[-1]),
            as_trained=tuple(f for f in replays[0] if f.step > self.set_out),
            rounding=rounding_of(self._settings),
            skipped=_NOT_LIVE,
        )

    def _refusal(self, steps: int, times: int = 1) -> str:
        """`recover.diagnose_steps` bounds all replays together."""
        most = self._settings.recover.diagnose_steps * times
        if self._spent + steps <= most:
            return ""
        already = f" after {self._spent}" if self._spent else ""
        allows = "allows" if times == 1 else f"times {times} allows"
        return f"it takes {steps} steps{already}, and recover.diagnose_steps {allows} {most}"

    def _plain(self, ladder: Ladder) -> Ladder:
        why = self._refusal(sum(map(len, ladder.here)))
        if self._settings.precision.half_weights is not None:
            why = "weights in float32 would be a second copy of the model on the device"
        elif has_dropout(self._settings):
            why = "dropout draws differently there"
        elif self._settings.parallel.pipeline > 1 and self._settings.precision.compute != "float32":
            why = "the stages of a pipeline hand on what they compute in the format of training"
        if why:
            return skip(ladder, "plain", why)
        parts = 1 if self._borrowed_step.step.device.type == "cpu" else _CUT

        def cut(given: StepInput) -> StepInput:
            fewer = max(1, given.micro_sequences // parts)
            return replace(given, micro_sequences=fewer, read_gauges=False)

        found = []
        with self.replayer.in_plain_form():
            for bundle, here in zip(self.captured(), ladder.here, strict=True):
                inputs = map(cut, self._inputs(here[0].step, here[-1].step))
                found.append(self._replay(bundle, inputs))
        return replace(ladder, beside_plain=ladder.here, plain=tuple(found))

    def _read_at_rest(self) -> Verdict | None:
        """Figures at rate 0 on data of before, of now and ahead; None if they say nothing."""
        line, first_sign = self._question.line, self._question.first_sign
        now = line[-_AT_REST_STEPS:]
        steps, blocks = len(now), now[-1].next_draw - now[-1].draw
        skipped = max(sizes_of(self._settings.recover, self._settings.total_steps()).skip, steps)
        late = max(0, line[0].step - first_sign)  # so many steps of it came before the origin
        before = line[0].draw - now[0].draw - (2 * steps + late) * blocks
        shifts = (before, 0, skipped * blocks, 4 * skipped * blocks)
        too_few = steps < _LEAST_AT_REST or now[0].draw + before < 0
        if too_few or self.symptom.kind not in _MAYBE_OF_DATA:
            return None
        if self._refusal(len(shifts) * steps, _SEARCHED):
            return None
        if self.set_out + 1 not in self.frames:
            self._go_to_origin()  # where nothing was replayed it is as good, and no work to reach
            self.frames[self.set_out + 1] = self._frame(self.set_out + 1)
        self.at_rest = tuple(self._varied(shift, 0.0, now[0].step) for shift in shifts)
        return changed_for_good(self.symptom, self.at_rest)

    def _search_rate(self, ladder: Ladder) -> Verdict:
        """Down until a rate works: a rollback for each halving would cost more than the replays."""
        for factor in LIVE_RATES[1:]:
            works = working_rate(self.symptom, ladder.lower_rates)
            if (works and ladder.lower_rates[-1][0] < works) or "rate" in ladder.skipped:
                break  # the one below it was no better
            ladder = self._at_rate(ladder, factor, _SEARCHED)
        self.ladder = ladder
        return decide(self.symptom, ladder)

    def _from_origin(self) -> Series:
        """All steps from the origin on; the first time the states at two of them are kept."""
        self._go_to_origin()
        wanted = {self.set_out + 1, self.symptom.first_step} - self.frames.keys()
        inputs = self._inputs(self._question.origin.step + 1, self.symptom.step)
        return self._same(self._made(inputs, wanted))

    def _go_to_origin(self) -> None:
        origin, replayer = self._question.origin, self.replayer

        def parts_for(facts: Mapping[str, Any]) -> Mapping[str, Stateful]:
            return replayer.parts_for(facts, self._borrowed_step.dataset)

        if origin.where == "memory":
            self._trainer.snapshots.hand_back(origin.step, parts_for)
            return
        path = checkpoint_path(self._checkpoints, origin.step)
        facts = first_does(self._control, lambda: read_facts(path).facts)
        restore(path, parts_for(facts), self._control)

    def _replay(self, bundle: Bundle, inputs: Iterator[StepInput]) -> Series:
        return self._same(self.replayer.replay(bundle, inputs))

    def _same(self, series: Series) -> Series:
        """Rank 0's figures, so that all ranks decide alike."""
        return series if self._control is None else self._control.share(series)

    def _inputs(self, first: int, last: int, shift: int = 0) -> Iterator[StepInput]:
        for step, record in self.line.items():
            if not first <= step <= last:
                continue
            stop = self._stop_wanted()
            if self._control is not None:
                stop = bool(self._control.first_number(stop))
            if stop:
                raise NoReplay("the run has to stop")
            size = record.sequences, record.sequence_length
            request = BatchRequest(record.draw + shift, *size, self._trainer.ledger.skips)
            batch = self._borrowed_step.batches.read(request)
            if not shift and (batch.draw, batch.next_draw) != (record.draw, record.next_draw):
                raise NoReplay(f"the data of step {record.step:,} is passed over by now")
            yield given_to(record, self._settings, batch, self._trainer.ledger.resets)
            self._spent += 1

    def _at_frames(self, series: Series) -> tuple[Series, ...]:
        """Of each state that was kept, its step and the one after, where a wrong update shows."""
        steps = sorted(self.frames)
        return tuple(tuple(f for f in series if step <= f.step <= step + 1) for step in steps)
