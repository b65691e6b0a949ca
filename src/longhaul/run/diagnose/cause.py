"""Cause before cure for a step of a run that was (`longhaul diagnose`): replays of its records."""

from collections.abc import Iterator, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from longhaul.config.load import with_overrides
from longhaul.core.machine import differences, fingerprint
from longhaul.core.output import Say
from longhaul.diagnose.cause import Ladder, Verdict, first_difference, reproduced
from longhaul.diagnose.signs import Series, Symptom, symptom_of
from longhaul.logbook.folder import open_run
from longhaul.logbook.run_log import NUMBERS_COME_FROM
from longhaul.parallel.device import own_device, torch_facts
from longhaul.run.diagnose.bundle import Bundle, StepInput, save_bundle
from longhaul.run.diagnose.recorded import Recorded
from longhaul.run.diagnose.replays import replay_each, settled
from longhaul.run.diagnose.rerun import Elsewhere, on_device
from longhaul.run.diagnose.search import CauseSearch, Experiment, has_dropout, rounding_of, skip

LEAD_STEPS = 16
"""Steps before the first sign that other data and lower rates set out from."""
RATES = (0.5, 0.125)
"""Factors on the learning rate: a rate that is ten times too high is too high at half too."""


@dataclass(frozen=True)
class RemedyOptions:
    """Where else a step may be computed; what is None is skipped, and reported as such."""

    witness: Elsewhere | str | None = None
    """Another device, or its name on this host. When None, a second GPU is taken if there is one.
    """
    previous: Elsewhere | None = None
    """The software before."""
    lead_steps: int = LEAD_STEPS
    save: Path | None = None
    """Folder for the bundles, so that another machine can be the witness."""


@dataclass(frozen=True)
class Diagnosed:
    """The verdict on one step, and what it rests on."""

    symptom: Symptom
    verdict: Verdict
    ladder: Ladder
    began: int
    """Step of the state that the replays set out from."""
    changed: tuple[str, ...] = ()
    """What of software and machine differs from when the step was made."""


def diagnose(
    run: str | Path,
    step: int,
    runs: Path = Path("runs"),
    *,
    attempt: int | None = None,
    options: RemedyOptions = RemedyOptions(),
    report: Say = lambda line: None,
) -> Diagnosed:
    """Find what made `step` go wrong, by computing it again with one thing changed at a time.

    `attempt` of a step made more than once is the last when None; `report` takes what is being
    done, for a person. UsageError if there is no such step, or nothing to set out from.
    """
    with closing(Recorded(open_run(run, runs), step, attempt)) as recorded:
        settings, opening = recorded.settings_at(step), recorded.segment
        device = own_device(settings.machine.device)
        before = opening.fingerprint if opening else {}
        with settled(settings, before.get("torch", {}).get("threads"), device):
            differ = differences(before, fingerprint(torch_facts(device)))
            changed = tuple(
                f"{path} {old!r} → {new!r}"
                for path, (old, new) in differ.items()
                if path.startswith(NUMBERS_COME_FROM)
            )
            search = _RecordedSearch(recorded, device, options, not changed, report)
            verdict = search.find()
            assert search.ladder is not None
            return Diagnosed(search.symptom, verdict, search.ladder, search.began, changed)


class _RecordedSearch(CauseSearch):
    """Steps made again as they are in the journal."""

    shifts = (1, -1, 4, -4, 8, 16)
    choices = 4

    def __init__(
        self,
        recorded: Recorded,
        device: torch.device,
        options: RemedyOptions,
        same_software: bool,
        report: Say,
    ) -> None:
        self._recorded = recorded
        self._device = device
        self._options = options
        self._same_software = same_software
        self._report = report
        seen = symptom_of(recorded.figures(), recorded.step)
        # A detector may have seen the first sign earlier.
        told = (finding.first_step for finding in recorded.findings if finding.kind == seen.kind)
        symptom = replace(seen, first_step=min(seen.first_step, next(told, seen.first_step)))
        set_out = max(0, symptom.first_step - 1 - options.lead_steps)
        super().__init__(symptom, set_out, recorded.records)

    def _as_trained(self) -> Ladder:
        """Twice over; a third time if the noise points to a step whose state is wanted."""
        recorded = self._recorded
        self.replayer, self.began = recorded.replayer(self.set_out, self._device)
        began = self.began
        self.set_out = max(self.set_out, began)
        start = self.replayer.bundle(())
        steps = f"steps {began + 1} to {recorded.step}"
        self._report(f"replaying {steps} from the state of step {began}, twice")
        first = self._from_start(self._frame_steps(None))
        ladder = Ladder(
            recorded=recorded.figures(began),
            replays=(first,),
            as_trained=tuple(f for f in first if f.step > self.set_out),
            rounding=rounding_of(recorded.settings_at(recorded.step)),
            same_software=self._same_software,
        )
        for _ in range(2):
            wanted = self._frame_steps(first_difference(ladder)) - self.frames.keys()
            if len(ladder.replays) > 1 and not wanted:
                break
            self.replayer.replay(start)
            ladder = replace(ladder, replays=(*ladder.replays, self._from_start(wanted)))
        captured = self.captured()
        if self._options.save is not None:
            for bundle in captured:
                save_bundle(self._options.save / f"step-{bundle.step}", bundle)
        here, here_again = (tuple(map(self.replayer.replay, captured)) for _ in range(2))
        return replace(ladder, here=here, here_again=here_again)

    def _experiments(self, ladder: Ladder) -> Sequence[Experiment]:
        if not reproduced(ladder):
            # What does not come again cannot be seen to go away; and a machine is not accused
            # of what the software before may explain.
            return [lambda ladder: self._previous(self._witness(ladder))]
        found: list[Experiment] = [self._witness, self._plain, self._previous]
        if self.symptom.kind != "none":
            found += [self.other_data, self._lower_rates]
        return found

    def _frame(self, step: int) -> Bundle:
        # With the step and the one after it, where a wrong update shows.
        return self.replayer.bundle(tuple(self._recorded.inputs(step - 1, step + 1)))

    def _inputs(self, first: int, last: int, shift: int = 0) -> Iterator[StepInput]:
        return self._recorded.inputs(first - 1, last, shift)

    def other_data(self, ladder: Ladder) -> Ladder:
        self._report(f"other batches from step {self.set_out + 1} on")
        return super().other_data(ladder)

    def _frame_steps(self, differs: int | None) -> set[int]:
        """Steps whose state is captured."""
        named = {self.set_out + 1, self.symptom.first_step, self._recorded.step}
        # A wrong update shows in the figures of the step after it.
        return named if differs is None else named | {max(self.began + 1, differs - 1), differs}

    def _from_start(self, wanted: Set[int]) -> Series:
        return self._made(self._recorded.inputs(self.began, self._recorded.step), wanted)

    def _witness(self, ladder: Ladder) -> Ladder:
        frames = self.captured()
        witness = self._options.witness
        if witness is None and self._device.type == "cuda" and torch.cuda.device_count() > 1:
            witness = "cuda:1" if self._device.index == 0 else "cuda:0"
        if witness is None:
            return skip(ladder, "witness", "there is no other device (--witness names one)")
        if isinstance(witness, str):
            another_kind = torch.device(witness).type != self._device.type
            if another_kind and self._has_dropout():
                return skip(ladder, "witness", f"{witness} draws dropout differently")
            witness = on_device(witness)
        self._report("another device")
        first, again = witness(frames)
        return replace(ladder, witness=first, witness_again=again)

    def _plain(self, ladder: Ladder) -> Ladder:
        self._report("eager float32, unsharded")
        frames, beside = self.captured(), ladder.here
        if self._has_dropout():
            frames = tuple(map(_without_dropout, frames))
            beside = replay_each(frames, self._device)
        plain = replay_each(frames, self._device, plain=True)
        return replace(ladder, beside_plain=beside, plain=plain)

    def _has_dropout(self) -> bool:
        return any(has_dropout(bundle.inputs[0].settings) for bundle in self.frames.values())

    def _previous(self, ladder: Ladder) -> Ladder:
        if self._options.previous is None:
            return skip(ladder, "software", "no other environment was named (--python)")
        self._report("the software before")
        first, _ = self._options.previous(self.captured())
        return replace(ladder, previous=first)

    def _lower_rates(self, ladder: Ladder) -> Ladder:
        for factor in RATES:
            self._report(f"{factor:g} of the learning rate from step {self.set_out + 1} on")
            ladder = self._at_rate(ladder, factor)
        return ladder


def _without_dropout(bundle: Bundle) -> Bundle:
    off = {f"model.{kind}": 0.0 for kind in ("dropout", "attention_dropout", "embedding_dropout")}
    inputs = (replace(g, settings=with_overrides(g.settings, off)) for g in bundle.inputs)
    return replace(bundle, inputs=tuple(inputs))
