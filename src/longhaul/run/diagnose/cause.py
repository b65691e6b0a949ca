"""Cause before cure: the ladder of replays for one step of a run (`longhaul diagnose`)."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

from longhaul.config.load import with_overrides
from longhaul.config.recipe import Recipe
from longhaul.core.fingerprint import differences, fingerprint
from longhaul.diagnose.cause import (
    FLOAT32,
    HALF,
    Ladder,
    Rounding,
    Verdict,
    decide,
    first_difference,
    reproduced,
)
from longhaul.diagnose.symptom import Series, Symptom, SymptomKind, symptom_of
from longhaul.logbook.folder import open_run
from longhaul.parallel.device import own_device, torch_facts
from longhaul.run.diagnose.bundle import Bundle, save_bundle, with_rate
from longhaul.run.diagnose.recorded import Recorded
from longhaul.run.diagnose.replays import Replayer, replay_each, settled
from longhaul.run.diagnose.rerun import Elsewhere, on_device
from longhaul.run.train.restarted import NUMBERS_COME_FROM

LEAD_STEPS = 16
"""Steps before the first sign that the rungs with other data and lower rates set out from."""
RATES = (0.5, 0.125)
"""Factors on the learning rate: a rate that is ten times too high is too high at half too."""
_SHIFTS = (1, -1, 4, -4, 8, 16)
"""Where other data is taken from: so many lengths of the stretch further on, or back."""
_CHOICES = 4
"""Stretches of other data that are tried."""
_KINDS: Mapping[str, SymptomKind] = {
    "non-finite": "non-finite",
    "loss-spike": "loss-spike",
    "gradient-spike": "gradient-spike",
    "divergence": "divergence",
}

Say = Callable[[str], None]


@dataclass(frozen=True)
class Means:
    """Where else a step may be computed; what is None is skipped, and said to be."""

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
    changed: tuple[str, ...] = field(default=())
    """What of software and machine differs from when the step was made."""


def diagnose(
    run: str | Path,
    step: int,
    runs: Path = Path("runs"),
    *,
    attempt: int | None = None,
    means: Means = Means(),
    symptom: Symptom | None = None,
    say: Say = lambda line: None,
) -> Diagnosed:
    """Find what made `step` go wrong, by computing it again with one thing changed at a time.

    Args:
        run: name or folder.
        step: updates made once the step was done.
        runs: folder that holds the runs.
        attempt: of a step made more than once; the last when None.
        means: where else it may be computed.
        symptom: what is wrong; seen in the records and findings of the step when None.
        say: told what is being done.

    Raises:
        UsageError: no such step, or nothing to set out from.
    """
    recorded = Recorded(open_run(run, runs), step, attempt)
    try:
        settings = recorded.settings_at(step)
        device = own_device(settings.machine.device)
        opening = recorded.segment
        before = opening.fingerprint if opening else {}
        with settled(settings, before.get("torch", {}).get("threads"), device):
            changed = _changed(before, fingerprint(torch_facts(device)))
            return _Climb(recorded, device, means, symptom, changed, say).climb()
    finally:
        recorded.close()


def symptom_in(recorded: Recorded) -> Symptom:
    """What stands out at the step, by its finding if the judgement has one, else by its record."""
    seen = symptom_of(recorded.figures(), recorded.step)
    for finding in recorded.findings:
        kind = _KINDS.get(finding.kind)
        if kind == seen.kind:
            return replace(seen, first_step=min(seen.first_step, finding.first_step))
    return seen


def symptom_in_words(symptom: Symptom) -> str:
    """What is looked into, for a person."""
    if symptom.kind == "none":
        return f"step {symptom.step}: nothing stands out against the steps before it"
    what = "gradient norm" if symptom.kind == "gradient-spike" else "loss"
    since = (
        f", first seen at step {symptom.first_step}" if symptom.first_step < symptom.step else ""
    )
    levels = ""
    if symptom.kind != "non-finite":
        levels = f": {what} {symptom.healthy:.4g} before it, up to {symptom.reached:.4g}"
    return f"step {symptom.step}: {symptom.kind}{since}{levels}"


class _Climb:
    """The rungs, one after the other, until one changes the answer."""

    def __init__(
        self,
        recorded: Recorded,
        device: torch.device,
        means: Means,
        symptom: Symptom | None,
        changed: tuple[str, ...],
        say: Say,
    ) -> None:
        self._recorded = recorded
        self._device = device
        self._means = means
        self._changed = changed
        self._say = say
        self._symptom = symptom or symptom_in(recorded)
        self._set_out = max(0, self._symptom.first_step - 1 - means.lead_steps)

    def climb(self) -> Diagnosed:
        """Replay until the verdict is found or every rung has been climbed."""
        recorded = self._recorded
        replayer, began = recorded.replayer(self._set_out, self._device)
        self._set_out = max(self._set_out, began)
        start = replayer.bundle(())
        steps = f"steps {began + 1} to {recorded.step}"
        self._say(f"replaying {steps} from the state of step {began}, twice")
        frames: dict[int, Bundle] = {}
        first = self._stretch(replayer, began, self._frame_steps(began, None), frames)
        ladder = self._first_rung(first, began)
        for _ in range(2):
            # Again for the noise, and once more if it points to a step whose state is wanted.
            wanted = self._frame_steps(began, first_difference(ladder)) - frames.keys()
            if len(ladder.replays) > 1 and not wanted:
                break
            replayer.replay(start)
            again = self._stretch(replayer, began, wanted, frames)
            ladder = replace(ladder, replays=(*ladder.replays, again))
        captured = tuple(frames[step] for step in sorted(frames))
        if self._means.save is not None:
            for bundle in captured:
                save_bundle(self._means.save / f"step-{bundle.step}", bundle)
        here, here_again = (tuple(map(replayer.replay, captured)) for _ in range(2))
        ladder = replace(ladder, here=here, here_again=here_again)
        verdict = decide(self._symptom, ladder)
        for rung in self._rungs(replayer, ladder, captured):
            ladder = rung(ladder)
            verdict = decide(self._symptom, ladder)
            if verdict.found:
                break
        return Diagnosed(self._symptom, verdict, ladder, began, self._changed)

    def _rungs(
        self, replayer: Replayer, ladder: Ladder, frames: tuple[Bundle, ...]
    ) -> Sequence[Callable[[Ladder], Ladder]]:
        begin = next(bundle for bundle in frames if bundle.step == self._set_out + 1)
        witness = partial(self._witness, frames)
        previous = partial(self._previous, frames)
        if not reproduced(ladder):
            # What does not come again cannot be seen to go away; and a machine is not accused
            # of what the software before may explain.
            return [lambda ladder: previous(witness(ladder))]
        rungs = [witness, partial(self._plain, frames), previous]
        if self._symptom.kind != "none":
            rungs.append(partial(self._other_data, replayer, begin))
            rungs.append(partial(self._lower_rates, replayer, begin))
        return rungs

    def _frame_steps(self, began: int, differs: int | None) -> set[int]:
        """Steps whose state is captured."""
        named = {self._set_out + 1, self._symptom.first_step, self._recorded.step}
        # A wrong update shows in the figures of the step after it.
        return named if differs is None else named | {max(began + 1, differs - 1), differs}

    def _stretch(
        self, replayer: Replayer, began: int, wanted: Set[int], frames: dict[int, Bundle]
    ) -> Series:
        """Steps made as recorded; the states before some of them are added to `frames`."""
        figures = []
        for given in self._recorded.inputs(began, self._recorded.step):
            replayer.prepare(given)
            if given.step in wanted:
                both = self._recorded.inputs(given.step - 1, given.step + 1)
                frames[given.step] = replayer.bundle(tuple(both))
            figures.append(replayer.make(given))
        return tuple(figures)

    def _first_rung(self, first: Series, began: int) -> Ladder:
        settings = self._recorded.settings_at(self._recorded.step)
        return Ladder(
            recorded=self._recorded.figures(began),
            replays=(first,),
            as_trained=tuple(f for f in first if f.step > self._set_out),
            rounding=rounding_of(settings),
            same_software=not self._changed,
        )

    def _witness(self, frames: tuple[Bundle, ...], ladder: Ladder) -> Ladder:
        witness = self._means.witness or _second_gpu(self._device)
        if witness is None:
            return _skip(ladder, "witness", "there is no other device (--witness names one)")
        if isinstance(witness, str):
            another_kind = torch.device(witness).type != self._device.type
            if another_kind and _have_dropout(frames):
                return _skip(ladder, "witness", f"{witness} draws dropout differently")
            witness = on_device(witness)
        self._say("another device")
        first, again = witness(frames)
        return replace(ladder, witness=first, witness_again=again)

    def _plain(self, frames: tuple[Bundle, ...], ladder: Ladder) -> Ladder:
        self._say("eager float32, unsharded")
        beside = ladder.here
        if _have_dropout(frames):
            frames = tuple(map(_without_dropout, frames))
            beside = replay_each(frames, self._device)
        plain = replay_each(frames, self._device, "plain")
        return replace(ladder, beside_plain=beside, plain=plain)

    def _previous(self, frames: tuple[Bundle, ...], ladder: Ladder) -> Ladder:
        if self._means.previous is None:
            return _skip(ladder, "software", "no other environment was named (--python)")
        self._say("the software before")
        first, _ = self._means.previous(frames)
        return replace(ladder, previous=first)

    def _other_data(self, replayer: Replayer, begin: Bundle, ladder: Ladder) -> Ladder:
        self._say(f"other batches from step {self._set_out + 1} on")
        recorded = self._recorded
        blocks, draw = recorded.blocks(self._set_out), recorded.first_draw(self._set_out)
        shifts = [times * blocks for times in _SHIFTS if draw + times * blocks >= 0][:_CHOICES]
        found = []
        for shift in shifts:
            inputs = recorded.inputs(self._set_out, recorded.step, shift)
            found.append(replayer.replay(begin, inputs))
        return replace(ladder, other_data=tuple(found))

    def _lower_rates(self, replayer: Replayer, begin: Bundle, ladder: Ladder) -> Ladder:
        found = []
        for factor in RATES:
            self._say(f"{factor:g} of the learning rate from step {self._set_out + 1} on")
            given = self._recorded.inputs(self._set_out, self._recorded.step)
            inputs = (with_rate(item, factor) for item in given)
            found.append((factor, replayer.replay(begin, inputs)))
        return replace(ladder, lower_rates=tuple(found))


def has_dropout(settings: Recipe) -> bool:
    """Whether a model of these settings drops anything out, which kernels do each in its way."""
    model = settings.model
    return any((model.dropout, model.attention_dropout, model.embedding_dropout))


def _have_dropout(frames: tuple[Bundle, ...]) -> bool:
    return any(has_dropout(bundle.inputs[0].settings) for bundle in frames)


def _without_dropout(bundle: Bundle) -> Bundle:
    off = {f"model.{kind}": 0.0 for kind in ("dropout", "attention_dropout", "embedding_dropout")}
    inputs = (replace(g, settings=with_overrides(g.settings, off)) for g in bundle.inputs)
    return replace(bundle, inputs=tuple(inputs))


def _skip(ladder: Ladder, rung: str, why: str) -> Ladder:
    return replace(ladder, skipped={**ladder.skipped, rung: why})


def rounding_of(settings: Recipe) -> Rounding:
    """What two correct computations of a step may differ by under these settings."""
    exact = settings.precision.compute == "float32" and not settings.precision.tf32
    return FLOAT32 if exact else HALF


def _second_gpu(device: torch.device) -> str | None:
    if device.type != "cuda" or torch.cuda.device_count() < 2:
        return None
    return "cuda:1" if device.index == 0 else "cuda:0"


def _changed(before: Mapping[str, object], now: Mapping[str, object]) -> tuple[str, ...]:
    """What computes numbers and is not as it was."""
    found = differences(before, now)
    return tuple(
        f"{path} {old!r} → {new!r}"
        for path, (old, new) in found.items()
        if path.startswith(NUMBERS_COME_FROM)
    )
