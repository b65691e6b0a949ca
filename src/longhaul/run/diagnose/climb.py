"""The ladder of replays in a live run: steps computed again, with one thing changed at a time.

Replays are few. Half of the learning rate comes before other data: what goes away with it needs no
other data, and what goes away with other data needs no more rates. Then lower rates are tried until
one works.

All ranks climb together, as a step is computed by all of them. What they decide follows from
figures, which are taken from rank 0; where a rank by itself may have to give up, all of them do.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from longhaul.checkpoint.capture import Stateful, StateMismatch
from longhaul.checkpoint.loader import read_facts, restore
from longhaul.checkpoint.snapshots import DamagedSnapshot
from longhaul.config.recipe import Recipe
from longhaul.core.records import StepRecord
from longhaul.data.batches import BatchRequest
from longhaul.diagnose.cause import (
    SAME_BITS,
    Ladder,
    Verdict,
    apart,
    decide,
    reproduced,
)
from longhaul.diagnose.symptom import Series, Symptom, working_rate
from longhaul.logbook.ledger import LedgerState
from longhaul.parallel.control import Control, first_does
from longhaul.recover.plan import Safe
from longhaul.run.diagnose.bundle import Bundle, StepInput, given_to, with_rate
from longhaul.run.diagnose.cause import has_dropout, rounding_of, symptom_in_words
from longhaul.run.diagnose.recorded import figures_of
from longhaul.run.diagnose.replays import Replayer
from longhaul.store.commit import checkpoint_path
from longhaul.store.strict import RefusedCheckpoint
from longhaul.train.loan import Loan
from longhaul.train.trainer import Trainer

_SHIFTS = (-1, -2, 8, 16)
"""Where other data is taken from: so many lengths of the stretch back, which was sound, or on."""
LIVE_RATES = tuple(0.5 * 0.25**n for n in range(7))
"""Factors on the learning rate, the half and then by powers of four: down to 1/8192 of it."""
_SEARCHED = 2
"""Times `recover.diagnose_steps`, the steps before that included, for the rate that works."""
_CHOICES = 2
"""Stretches of other data that are tried."""
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
class Question:
    """What is looked into."""

    symptom: Symptom
    origin: Safe
    """State that replays set out from."""
    line: tuple[StepRecord, ...]
    """Records of all steps from there to where the symptom stands out."""
    set_out: int
    """Step that other data and lower rates set out from."""

    @property
    def varied(self) -> tuple[StepRecord, ...]:
        """The steps that other data and lower rates are tried on."""
        return tuple(record for record in self.line if record.step > self.set_out)


def look_into(
    question: Question,
    trainer: Trainer,
    checkpoints: Path,
    stop_wanted: Callable[[], bool] = lambda: False,
) -> tuple[Verdict, dict[str, Any]]:
    """Climb with the live step, and give it back as it was; all ranks together.

    Args:
        question: rank 0's.
        trainer: at a step border, no step under way.
        checkpoints: the run's.
        stop_wanted: the run has to stop soon; rank 0 is asked.

    Returns:
        The verdict, undetermined where it could not be found, and the rungs in figures.
    """
    control = None if trainer.ranks is None else trainer.ranks.control
    try:
        loan = _lent(trainer, control)
    except NoReplay as why:
        return unknown(why), {}
    climb = _Climb(question, trainer, loan, checkpoints, stop_wanted)
    try:
        verdict = climb.climb()
    except Exception as error:
        if control is not None and not isinstance(error, _MET_BY_ALL):
            raise
        verdict = unknown(error)
    finally:
        # What fails here does end the attempt: nobody goes on from half a state.
        trainer.take_back(loan)
    return verdict, climb.figures()


def unknown(error: Exception) -> Verdict:
    """A ladder that cannot be climbed."""
    said = str(error) if isinstance(error, NoReplay) else f"{type(error).__name__}: {error}"
    return Verdict("undetermined", "", f"it could not be looked for: {said}")


def _lent(trainer: Trainer, control: Control | None) -> Loan:
    """The live step of every rank, or of none.

    Raises:
        NoReplay: it is not lent.
    """
    loan, why = None, "another rank does not lend its step"
    try:
        loan = trainer.lend(_COPIES)
    except Exception as error:  # noqa: BLE001 (no recovery fails for want of a cause)
        why = f"{type(error).__name__}: {error}"
    lent_by_all = loan is not None if control is None else control.agree(loan is not None)
    if loan is not None and lent_by_all:
        return loan
    if loan is not None:
        trainer.take_back(loan)
    raise NoReplay(why)


class _Climb:
    """The rungs, one after the other, until one changes the answer or the steps are spent."""

    def __init__(
        self,
        question: Question,
        trainer: Trainer,
        loan: Loan,
        checkpoints: Path,
        stop_wanted: Callable[[], bool],
    ) -> None:
        self._question = question
        self._settings: Recipe = trainer.settings
        self._ledger: LedgerState = trainer.ledger
        self._snapshots = trainer.snapshots
        self._control = None if trainer.ranks is None else trainer.ranks.control
        self._loan = loan
        self._checkpoints = checkpoints
        self._stop_wanted = stop_wanted
        self._replayer = Replayer(loan.step, trainer.settings)
        self._frames: dict[int, Bundle] = {}
        self._spent = 0
        self._ladder: Ladder | None = None

    def climb(self) -> Verdict:
        """Replay until the verdict is found."""
        question = self._question
        if why := self._too_many(len(question.line)):
            raise NoReplay(why)
        self._ladder = self._as_trained()
        verdict = decide(question.symptom, self._ladder)
        if not reproduced(self._ladder):
            return verdict  # what does not come again cannot be seen to go away
        for rung in (self._plain, self._half_rate, self._other_data):
            self._ladder = rung(self._ladder)
            verdict = decide(question.symptom, self._ladder)
            if verdict.found:
                break
        if verdict.cause in ("undetermined", "hyper-parameter"):
            verdict = self._search_rate(self._ladder)
        return verdict

    def figures(self) -> dict[str, Any]:
        """The rungs in figures, for the journal."""
        question, ladder = self._question, self._ladder
        found: dict[str, Any] = {
            "symptom": symptom_in_words(question.symptom),
            "began": question.origin.step,
            "replayed_steps": self._spent,
        }
        if ladder is None:
            return found

        def highest(series: Series) -> float:
            symptom = question.symptom
            values = [symptom.measured(f) for f in series if f.step >= symptom.first_step]
            return next(
                (value for value in values if not math.isfinite(value)),
                max(values, default=math.nan),
            )

        rungs = {"recorded": highest(ladder.recorded), "as trained": highest(ladder.replays[0])}
        if ladder.plain is not None:
            rungs["eager float32"] = highest(tuple(f for series in ladder.plain for f in series))
        rungs |= {f"{factor:g} of the rate": highest(s) for factor, s in ladder.lower_rates}
        rungs |= {f"other data {n}": highest(s) for n, s in enumerate(ladder.other_data, 1)}
        return found | {"rungs": rungs, "skipped": dict(ladder.skipped)}

    def _as_trained(self) -> Ladder:
        """The same again, which measures the noise: the run itself was the first time."""
        question = self._question
        recorded = tuple(map(figures_of, question.line))
        replays = [self._from_origin()]
        if _alike(replays[0], recorded):
            replays.append(recorded)
        elif not self._too_many(len(question.line)):
            replays.append(self._from_origin())
        return Ladder(
            recorded=recorded,
            replays=tuple(replays),
            here=self._at_frames(replays[0]),
            here_again=self._at_frames(replays[-1]),
            as_trained=tuple(f for f in replays[0] if f.step > question.set_out),
            rounding=rounding_of(self._settings),
            skipped=_NOT_LIVE,
        )

    def _plain(self, ladder: Ladder) -> Ladder:
        steps = sum(map(len, ladder.here))
        why = self._too_many(steps)
        if self._settings.precision.half_weights is not None:
            why = "weights in float32 would be a second copy of the model on the device"
        elif has_dropout(self._settings):
            why = "dropout draws differently there"
        elif self._settings.parallel.pipeline > 1 and self._settings.precision.compute != "float32":
            why = "the stages of a pipeline hand on what they compute in the format of training"
        if why:
            return _skip(ladder, "plain", why)
        found = []
        with self._replayer.in_plain_form():
            for bundle, here in zip(self._in_order(), ladder.here, strict=True):
                inputs = self._inputs(here[0].step, here[-1].step)
                parts = 1 if self._loan.step.device.type == "cpu" else _CUT
                plain = (_in_parts(given, parts) for given in inputs)
                found.append(self._replay(bundle, plain, len(here)))
        return replace(ladder, beside_plain=ladder.here, plain=tuple(found))

    def _half_rate(self, ladder: Ladder) -> Ladder:
        return self._at_rate(ladder, LIVE_RATES[0])

    def _search_rate(self, ladder: Ladder) -> Verdict:
        """Down by powers of four until a rate works, so that the run can go there at once: each
        rollback that finds one by halving costs more than all of these replays.
        """
        symptom = self._question.symptom
        for factor in LIVE_RATES[1:]:
            works = working_rate(symptom, ladder.lower_rates)
            if (works and ladder.lower_rates[-1][0] < works) or "rate" in ladder.skipped:
                break  # the one below it was no better
            ladder = self._at_rate(ladder, factor, _SEARCHED)
        self._ladder = ladder
        return decide(symptom, ladder)

    def _at_rate(self, ladder: Ladder, factor: float, times: int = 1) -> Ladder:
        if why := self._too_many(len(self._question.varied), times):
            return _skip(ladder, "rate", why)
        inputs = (with_rate(given, factor) for given in self._varied())
        series = self._replay(self._begin(), inputs, len(self._question.varied))
        return replace(ladder, lower_rates=(*ladder.lower_rates, (factor, series)))

    def _other_data(self, ladder: Ladder) -> Ladder:
        varied = self._question.varied
        first, blocks = varied[0].draw, varied[-1].next_draw - varied[0].draw
        shifts = [times * blocks for times in _SHIFTS if first + times * blocks >= 0][:_CHOICES]
        if why := self._too_many(len(shifts) * len(varied)):
            return _skip(ladder, "data", why)
        found = [self._replay(self._begin(), self._varied(by), len(varied)) for by in shifts]
        return replace(ladder, other_data=tuple(found))

    def _from_origin(self) -> Series:
        """All steps from the origin on; the first time the states at two of them are kept."""
        question, found = self._question, []
        self._go_to_origin()
        wanted = {question.set_out + 1, question.symptom.first_step} - self._frames.keys()
        for given in self._inputs(question.origin.step + 1, question.symptom.step):
            self._replayer.prepare(given)
            if given.step in wanted:
                self._frames[given.step] = self._replayer.bundle(())
            found.append(self._replayer.make(given))
            self._spent += 1
        return self._same(tuple(found))

    def _go_to_origin(self) -> None:
        origin, replayer = self._question.origin, self._replayer

        def parts_for(facts: Mapping[str, Any]) -> Mapping[str, Stateful]:
            return replayer.parts_for(facts, self._loan.dataset)

        if origin.where == "memory":
            self._snapshots.hand_back(origin.step, parts_for)
            return
        path = checkpoint_path(self._checkpoints, origin.step)
        facts = first_does(self._control, lambda: read_facts(path).facts)
        restore(path, parts_for(facts), self._control)

    def _replay(self, bundle: Bundle, inputs: Iterator[StepInput], steps: int) -> Series:
        self._spent += steps
        return self._same(self._replayer.replay(bundle, inputs))

    def _same(self, series: Series) -> Series:
        """Rank 0's figures, so that all ranks decide alike."""
        return series if self._control is None else self._control.share(series)

    def _varied(self, shift: int = 0) -> Iterator[StepInput]:
        return self._inputs(self._question.set_out + 1, self._question.symptom.step, shift)

    def _inputs(self, first: int, last: int, shift: int = 0) -> Iterator[StepInput]:
        """What these steps were given, with draws `shift` further on."""
        for record in self._question.line:
            if not first <= record.step <= last:
                continue
            if self._must_stop():
                raise NoReplay("the run has to stop")
            batch = self._loan.batches.read(
                BatchRequest(
                    record.draw + shift,
                    record.sequences,
                    record.sequence_length,
                    self._ledger.skips,
                )
            )
            if not shift and (batch.draw, batch.next_draw) != (record.draw, record.next_draw):
                raise NoReplay(f"the data of step {record.step:,} is passed over by now")
            yield given_to(record, self._settings, batch, self._ledger.resets)

    def _must_stop(self) -> bool:
        wanted = self._stop_wanted()
        return wanted if self._control is None else bool(self._control.first_number(wanted))

    def _begin(self) -> Bundle:
        return self._frames[self._question.set_out + 1]

    def _in_order(self) -> list[Bundle]:
        return [self._frames[step] for step in sorted(self._frames)]

    def _at_frames(self, series: Series) -> tuple[Series, ...]:
        """Of each state that was kept, its step and the one after, where a wrong update shows."""
        steps = sorted(self._frames)
        return tuple(tuple(f for f in series if step <= f.step <= step + 1) for step in steps)

    def _too_many(self, steps: int, times: int = 1) -> str:
        """Why so many steps more may not be computed; empty if they may."""
        most = self._settings.recover.diagnose_steps * times
        if self._spent + steps <= most:
            return ""
        already = f" after {self._spent}" if self._spent else ""
        allows = "allows" if times == 1 else f"times {times} allows"
        return f"it takes {steps} steps{already}, and recover.diagnose_steps {allows} {most}"


def _in_parts(given: StepInput, parts: int) -> StepInput:
    micro_sequences = max(1, given.micro_sequences // parts)
    return replace(given, micro_sequences=micro_sequences, read_gauges=False)


def _alike(a: Series, b: Series) -> bool:
    return all(apart(x, y, SAME_BITS) <= 1.0 for x, y in zip(a, b, strict=True))


def _skip(ladder: Ladder, rung: str, why: str) -> Ladder:
    return replace(ladder, skipped={**ladder.skipped, rung: why})
