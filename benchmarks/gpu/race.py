"""Time and tokens to a target loss: `speedrun-124m` against `gpt2-124m` on the same text.

Both are cut to the same batch, context and evaluation, so that their losses can be compared, and
every length that their schedules name, window stages included, is cut as the run is; all else is
as the recipes are shipped. The clock runs during steps: what
compiles, evaluates or saves stands still, as in modded-nanogpt's own records.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from benchmarks.common import Bar, at_most, figure
from benchmarks.gpu.setting import LIMIT_S, NotMeasured, Outcome, Setting

if TYPE_CHECKING:
    from longhaul.config.recipe import Recipe
    from longhaul.core.records import Record

TIME_BAR = 0.2
_TOKENS = 80_000_000
"""That the baseline trains on, on a device of an H200's peak; fewer on a lesser one."""
_PEAK = 989e12
_SEQUENCES, _LENGTH = 96, 1024
SHARES = (0.1, 0.15, 0.2, 0.3)
"""Of the baseline's tokens: the speedrun's lengths, tried one after the other until one gets there.
Its schedule ends where the run does, so each is a run of its own."""

Curve = list[tuple[float, int, float]]
"""(seconds of training, tokens, held-out loss) at each evaluation."""


def baseline(setting: Setting) -> Outcome:
    """`gpt2-124m`: its last loss is the target."""
    steps = _steps(setting)
    curve = _train(setting, "gpt2-124m", steps, "baseline")
    seconds, tokens, loss = curve[-1]
    bars = [
        figure("gpt2-124m: held-out loss at the end", loss, "nats", f"{tokens:,} tokens"),
        figure("gpt2-124m: seconds of training", seconds, "s"),
        figure("gpt2-124m: tokens/s", tokens / seconds, "tokens/s"),
    ]
    return Outcome(bars, {"curve": curve})


def speedrun(setting: Setting) -> Outcome:
    """`speedrun-124m`, ever longer, until it reaches the baseline's loss."""
    if "race-gpt2" not in setting.earlier:
        raise NotMeasured("it needs the target of part race-gpt2, which has none")
    seconds, tokens, target = setting.earlier["race-gpt2"]["curve"][-1]
    best: Curve = []
    for number, share in enumerate(setting.pick(SHARES, SHARES[-1:])):
        if best and setting.left_s < 0.35 * LIMIT_S:
            break
        steps = max(2, round(share * _steps(setting)))
        best = _train(setting, "speedrun-124m", steps, f"speedrun-{number}")
        reached = first_at(best, target)
        if reached is not None:
            return Outcome(
                [
                    at_most("time to gpt2-124m's loss over its own", reached[0] / seconds, "×",
                            TIME_BAR, f"{reached[0]:.1f} s against {seconds:.1f} s"),
                    figure("tokens to gpt2-124m's loss over its own", reached[1] / tokens, "×",
                           f"{reached[1]:,} against {tokens:,}"),
                    figure("held-out loss at the end", best[-1][2], "nats",
                           f"target {target:.4f}; a schedule of {steps} steps"),
                ],
                {"curve": best},
            )  # fmt: skip
    name, over = "time to gpt2-124m's loss over its own", best[-1][0] / seconds
    note = f"more than that: {best[-1][2]:.4f} after {best[-1][1]:,} tokens, target {target:.4f}"
    return Outcome([Bar(name, over, "×", TIME_BAR, False, note)], {"curve": best})


def first_at(curve: Curve, loss: float) -> tuple[float, int, float] | None:
    """The first evaluation that is no higher."""
    return next((point for point in curve if point[2] <= loss), None)


def curve_of(records: Iterable["Record"]) -> Curve:
    """Evaluations of a run, in order, with what was trained before each; the last one, over the
    whole split, included.
    """
    from longhaul.core.clocks import STEP_BUCKETS
    from longhaul.core.events import EventKind
    from longhaul.core.records import Event, StepRecord

    curve: Curve = []
    seconds, tokens = 0.0, 0
    for record in records:
        seconds += sum(getattr(record, "seconds", {}).get(b, 0.0) for b in STEP_BUCKETS)
        if isinstance(record, StepRecord):
            tokens += record.tokens
        elif isinstance(record, Event) and record.kind in (
            EventKind.EVALUATION,
            EventKind.FINISHED,
        ):
            if curve and curve[-1][1] == tokens:
                curve.pop()  # of the same state, by fewer tokens of the split
            curve.append((round(seconds, 3), tokens, float(record.data["loss"])))
    return curve


def cut(recipe: "Recipe", steps: int) -> list[str]:
    """Overrides that make a run of so many steps; warm-ups and stages move in proportion."""
    from longhaul.config.load import as_toml
    from longhaul.plan.ladder.variants import moved_in_time

    moved = moved_in_time(recipe, steps / (recipe.total_steps() or steps))
    own = {"train": {"steps": steps}, "evaluation.interval_steps": max(1, steps // 20)}
    return [f"{path}={as_toml(value)}" for path, value in (own | moved).items()]


def _steps(setting: Setting) -> int:
    if setting.tiny:
        return 20
    tokens = _TOKENS * min(1.0, (setting.peak or 0.3 * _PEAK) / _PEAK)
    return round(tokens / (_SEQUENCES * _LENGTH))


def shape(setting: Setting) -> Sequence[str]:
    """Batch and context that both have."""
    if setting.tiny:
        return ("evaluation.tokens=1024", "sample.tokens=0", "checkpoint.interval_steps=0")
    return (
        f"model.context={_LENGTH}", f"batch.sequence_length={_LENGTH}",
        f"batch.sequences={_SEQUENCES}", "batch.micro_sequences=48",
        "evaluation.tokens=1_048_576", "sample.tokens=0", "checkpoint.interval_steps=0",
    )  # fmt: skip


def _train(setting: Setting, recipe: str, steps: int, run: str) -> Curve:
    from longhaul.logbook.reading import read_journal

    settings = [*shape(setting)]
    settings += cut(setting.recipe(recipe, *settings), steps)
    curve = curve_of(read_journal(setting.train(recipe, *settings, run=run)))
    if not curve:
        raise NotMeasured(f"{recipe}: the journal has no evaluation")
    return curve
