"""The search for a cause: experiments, each a replay with one thing changed, until one changes the
answer. Steps come from a run's records (`cause.py`) or from the live trainer (`live_search.py`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace

from longhaul.config.recipe import Recipe
from longhaul.core.records import StepRecord
from longhaul.diagnose.cause import FLOAT32, HALF, Ladder, Rounding, Verdict, decide
from longhaul.diagnose.signs import Series, Symptom
from longhaul.run.diagnose.bundle import Bundle, StepInput
from longhaul.run.diagnose.replays import Replayer

Experiment = Callable[[Ladder], Ladder]
"""Adds its figures, or why it was skipped."""


class CauseSearch(ABC):
    """Replays as trained, then experiments until one changes the answer."""

    shifts: tuple[int, ...]
    """Where other data is taken from: so many lengths of the stretch further on, or back."""
    choices: int
    """Stretches of other data that are tried."""
    replayer: Replayer

    def __init__(self, symptom: Symptom, set_out: int, line: Mapping[int, StepRecord]) -> None:
        self.symptom = symptom
        self.set_out = set_out
        """Step that other data and lower rates set out from."""
        self.line = line
        """Records of the steps that are made again."""
        self.frames: dict[int, Bundle] = {}
        """States captured before steps, to set out from again."""
        self.ladder: Ladder | None = None

    def find(self) -> Verdict:
        """Replay until the verdict is found or no experiment is left."""
        self.ladder = self._as_trained()
        verdict = decide(self.symptom, self.ladder)
        for experiment in self._experiments(self.ladder):
            self.ladder = experiment(self.ladder)
            verdict = decide(self.symptom, self.ladder)
            if verdict.found:
                break
        return verdict

    @abstractmethod
    def _as_trained(self) -> Ladder:
        """The same again, which measures the noise."""

    @abstractmethod
    def _experiments(self, ladder: Ladder) -> Sequence[Experiment]:
        """What is tried after that, in order."""

    def _frame(self, step: int) -> Bundle:
        """The state as it is now, before `step`."""
        return self.replayer.bundle(())

    @abstractmethod
    def _inputs(self, first: int, last: int, shift: int = 0) -> Iterator[StepInput]:
        """What these steps were given, with draws `shift` further on."""

    def _replay(self, bundle: Bundle, inputs: Iterator[StepInput]) -> Series:
        return self.replayer.replay(bundle, inputs)

    def _varied(self, shift: int = 0, factor: float = 1.0, first: int = 0) -> Series:
        """Steps from `first` or after `set_out`: draws `shift` further on, `factor` of the rate."""
        begin = self.set_out + 1
        inputs = (
            replace(given, learning_rate=given.learning_rate * factor)
            for given in self._inputs(first or begin, self.symptom.step, shift)
        )
        return self._replay(self.frames[begin], inputs)

    def _refusal(self, steps: int, times: int = 1) -> str:
        """Why so many steps more may not be computed; empty if they may."""
        return ""

    def captured(self) -> tuple[Bundle, ...]:
        """The frames, in the order of their steps."""
        return tuple(self.frames[step] for step in sorted(self.frames))

    def _made(self, inputs: Iterable[StepInput], wanted: Set[int]) -> Series:
        """Steps made one after the other; the states before `wanted` ones become frames."""
        figures = []
        for given in inputs:
            self.replayer.prepare(given)
            if given.step in wanted:
                self.frames[given.step] = self._frame(given.step)
            figures.append(self.replayer.make(given))
        return tuple(figures)

    def other_data(self, ladder: Ladder) -> Ladder:
        """The steps after `set_out` on other batches."""
        first = self.line[self.set_out + 1].draw
        blocks = self.line[self.symptom.step].next_draw - first
        shifts = [by * blocks for by in self.shifts if first + by * blocks >= 0][: self.choices]
        if why := self._refusal(len(shifts) * (self.symptom.step - self.set_out)):
            return skip(ladder, "data", why)
        return replace(ladder, other_data=tuple(map(self._varied, shifts)))

    def _at_rate(self, ladder: Ladder, factor: float, times: int = 1) -> Ladder:
        """The same at a lower learning rate; `times` the usual steps may be spent."""
        if why := self._refusal(self.symptom.step - self.set_out, times):
            return skip(ladder, "rate", why)
        found = factor, self._varied(factor=factor)
        return replace(ladder, lower_rates=(*ladder.lower_rates, found))


def skip(ladder: Ladder, experiment: str, why: str) -> Ladder:
    """The ladder with an experiment left out, and the reason."""
    return replace(ladder, skipped={**ladder.skipped, experiment: why})


def has_dropout(settings: Recipe) -> bool:
    """Whether a model of these settings drops anything out, which kernels do each in its way."""
    model = settings.model
    return any((model.dropout, model.attention_dropout, model.embedding_dropout))


def rounding_of(settings: Recipe) -> Rounding:
    """What two correct computations of a step may differ by under these settings."""
    exact = settings.precision.compute == "float32" and not settings.precision.tf32
    return FLOAT32 if exact else HALF
