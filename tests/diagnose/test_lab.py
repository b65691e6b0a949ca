"""The divergence lab: its split, its truth, its scores, and the judgement on stored traces."""

import hashlib
import inspect
import math
import random
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.divergence_lab import drive, lab, score, traces
from benchmarks.divergence_lab.causes import CAUSES
from benchmarks.divergence_lab.generate import Made
from benchmarks.divergence_lab.runs import HARMLESS, MORE_FROM, catalogue
from benchmarks.divergence_lab.split import UNSEEN_MECHANISM, part_of
from benchmarks.divergence_lab.truth import Truth, judged_by_itself, judged_by_twin

from longhaul.checkpoint.saver import Saver
from longhaul.core.records import Event, Finding, StepRecord

RUNS = list(catalogue())
SPLIT = "ecde84eb6c39861e"
HELD_OUT_RUNS = "32dfb3280d758442"
RECALL = 0.9  # of few runs; `make lab` holds all held-out runs against 0.95
MOST_FALSE_ALARMS = 1


# --- the split -------------------------------------------------------------------------------


def test_the_split_was_fixed_before_any_limit_and_stays() -> None:
    """Whoever moves a run from held-out to tuning invalidates every published figure."""
    first = [run for run in RUNS if int(run.name.split("/")[1]) < MORE_FROM]
    assert _hashed(f"{run.name} {part_of(run.name)}" for run in first) == SPLIT


def test_runs_that_were_added_are_for_tuning_and_none_that_is_held_out_has_changed() -> None:
    held_out = [run for run in RUNS if part_of(run.name) == "held-out"]
    # The key is a hash over everything that decides a run's records.
    assert _hashed(f"{run.name} {run.key()}" for run in held_out) == HELD_OUT_RUNS
    added = [run for run in RUNS if int(run.name.split("/")[1]) >= MORE_FROM]
    assert added
    assert {part_of(run.name) for run in added} == {"tuning"}


def _hashed(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def test_no_run_of_the_unseen_mechanism_is_for_tuning() -> None:
    unseen = [run for run in RUNS if run.mechanism == UNSEEN_MECHANISM]
    assert unseen
    assert {part_of(run.name) for run in unseen} == {"unseen"}


def test_every_other_mechanism_and_every_disturbance_is_in_both_parts() -> None:
    mechanisms = {(run.mechanism, part_of(run.name)) for run in RUNS}
    disturbances = {(name, part_of(run.name)) for run in RUNS for name in run.harmless}
    for part in ("tuning", "held-out"):
        assert {m for m, p in mechanisms if p == part} == {"healthy", *CAUSES} - {UNSEEN_MECHANISM}
        assert {d for d, p in disturbances if p == part} == set(HARMLESS)


def test_names_are_unique_and_runs_the_same_each_time() -> None:
    assert len({run.name for run in RUNS}) == len(RUNS)
    assert list(catalogue()) == RUNS


# --- the truth -------------------------------------------------------------------------------


def curve(steps: int = 200, noise: float = 0.05, seed: int = 0) -> list[float]:
    """A healthy loss: a power law with noise."""
    uniform = random.Random(seed).random
    return [2 + 3 / math.sqrt(n) + noise * (uniform() - 0.5) for n in range(1, steps + 1)]


def disturbed(first: int, last: int, by: float) -> list[float]:
    return [
        loss + (by if first <= step <= last else 0.0) for step, loss in enumerate(curve(), start=1)
    ]


def test_a_run_equal_to_its_twin_is_in_band() -> None:
    assert judged_by_twin(curve(), curve(), 50).outcome == "in-band"


def test_a_lone_spike_is_no_harm() -> None:
    assert judged_by_twin(disturbed(100, 101, 3.0), curve(), 50).outcome == "in-band"


@pytest.mark.parametrize(
    ("losses", "outcome", "left"),
    [
        (disturbed(100, 200, 1.0), "diverged", 100),
        (disturbed(100, 130, 1.0), "spiked", 100),
        (disturbed(100, 200, -1.0), "too-good", 100),
        (disturbed(100, 200, 0.4), "doubtful", 100),
        ([*curve()[:99], *[math.nan] * 101], "non-finite", 100),
        ([*curve()[:99], math.inf, *curve()[100:]], "masked", 100),
        ([max(loss, curve()[7]) for loss in curve()], "stalled", None),
    ],
)
def test_what_became_of_a_run_follows_from_its_loss(
    losses: list[float], outcome: str, left: int | None
) -> None:
    truth = judged_by_twin(losses, curve(), 20)
    assert truth.outcome == outcome
    assert left is None or truth.left_band == left


def test_to_learn_faster_than_the_twin_is_no_harm() -> None:
    faster = [2 + 3 / n for n in range(1, 201)]
    assert judged_by_twin(faster, curve(), 1).outcome == "in-band"


def test_before_the_onset_nothing_is_blamed_on_the_cause() -> None:
    assert judged_by_twin(disturbed(10, 30, 2.0), curve(), 60).outcome == "in-band"


def test_a_run_without_a_cause_must_not_rise_above_its_past() -> None:
    stages = [0] * 200
    assert judged_by_itself(curve(), stages).healthy
    assert judged_by_itself(disturbed(100, 200, 1.0), stages).outcome == "unplanned"


def test_a_rise_at_a_scheduled_change_is_no_harm() -> None:
    stages = [0] * 99 + [1] * 101
    assert judged_by_itself(disturbed(100, 200, 1.0), stages).healthy


# --- the score -------------------------------------------------------------------------------

RECORD = StepRecord(
    attempt=1, segment="1.00", step=1, draw=0, next_draw=8, time=0.0, loss=3.0, gradient_norm=1.0,
    learning_rate=1e-3, sequences=8, sequence_length=32,
)  # fmt: skip


def made(mechanism: str, outcome: str, onset: int = 100, left: int | None = 150) -> Made:
    steps = tuple(replace(RECORD, step=n) for n in range(1, 301))
    truth = Truth(outcome, onset, left, 1.0, 0.25)  # type: ignore[arg-type]
    return Made(f"{mechanism}/000", mechanism, (), truth, steps)


def found(kind: str, step: int, severity: str = "alarm") -> Finding:
    return Finding(
        kind=kind, severity=severity, attempt=1, step=step, first_step=step, first_draw=0,
        time=0.0, sentence="",
    )  # type: ignore[arg-type]  # fmt: skip


HARMED = made("attention-logits", "diverged")
HEALTHY = made("healthy", "in-band", 1, None)


def test_the_lead_is_counted_to_the_step_at_which_the_loss_left_its_band() -> None:
    judged = score.Judged(HARMED, (found("growth", 120),))
    assert judged.lead() == 30
    assert score.score([judged]).recall.value == 1


@pytest.mark.parametrize(
    "finding",
    [found("growth", 120, "notice"), found("growth", 99), found("growth", 201)],
    ids=["a notice", "before the cause", "too late"],
)
def test_what_does_not_count_as_found(finding: Finding) -> None:
    judged = score.Judged(HARMED, (finding,))
    assert judged.found() is None
    assert judged.lead() == -score.LATE_STEPS


def test_a_finding_of_another_kind_counts_for_recall_and_not_for_recall_of_kind() -> None:
    figures = score.score([score.Judged(HARMED, (found("frozen-group", 120),))])
    assert (figures.recall.value, figures.recall_of_kind.value) == (1, 0)


def test_false_alarms_are_those_in_healthy_runs_and_before_the_cause() -> None:
    judged = [
        score.Judged(HEALTHY, (found("loss-spike", 250), found("loss-spike", 260, "notice"))),
        score.Judged(HARMED, (found("growth", 50), found("growth", 130))),
        score.Judged(made("lr-too-high", "doubtful"), (found("growth", 50),)),
    ]
    figures = score.score(judged)
    assert figures.healthy_steps == 300 + 99
    assert figures.false_alarms.value == pytest.approx(2 * 10_000 / 399)
    assert figures.precision.value == pytest.approx(1 / 3)


def test_intervals_are_those_of_the_textbook() -> None:
    share = score.wilson(19, 20)
    assert (share.low, share.high) == pytest.approx((0.764, 0.991), abs=0.001)
    events = score.rate(3, 10_000)
    assert (events.low, events.high) == pytest.approx((0.619, 8.767), abs=0.001)
    assert score.rate(0, 10_000).high == pytest.approx(3.689, abs=0.001)


# --- traces ----------------------------------------------------------------------------------


def test_a_trace_comes_back_as_it_was_kept(tmp_path: Path) -> None:
    rich = replace(
        RECORD, loss=math.nan, gradient_norm=math.inf, loss_scale=1024.0, masked=True,
        gauges={"residual_rms": (0.1, math.nan)}, totals={"update_ratio.matrix": 0.0},
        source_losses={"made-up": 2.3456789}, seconds={"training": 0.51},
    )  # fmt: skip
    event = Event(kind="evaluation", attempt=1, segment="1.00", step=1, time=0.0, data={"loss": 2})
    kept = tuple(traces.as_kept(record) for record in (rich, event, replace(RECORD, step=2)))
    traces.write(tmp_path / "t.parquet", {"a/000": kept, "b/000": kept[:1]})
    read = traces.read(tmp_path / "t.parquet")
    assert traces.same(read["a/000"], kept)
    assert traces.same(read["b/000"], kept[:1])
    assert list(traces.read(tmp_path / "t.parquet", ["b/000"])) == ["b/000"]


def test_rounding_is_small_and_keeps_what_is_special() -> None:
    for value in (1e-9, 0.37, 2.5, 65504.0, 3e12):
        assert traces.rounded(value) == pytest.approx(value, rel=2**-12)
        assert traces.rounded(traces.rounded(value)) == traces.rounded(value)
    assert traces.rounded(0.0) == 0.0
    assert traces.rounded(math.inf) == math.inf
    assert math.isnan(traces.rounded(math.nan))


# --- the judgement ---------------------------------------------------------------------------


def test_the_judgement_on_stored_traces() -> None:
    """A small `make lab`: a few runs of every way to go wrong, and healthy ones."""
    wanted = dict.fromkeys(CAUSES, 3) | {"healthy": 16}
    counts: Counter[str] = Counter()
    names = []
    for name in lab.stored_names():
        mechanism = name.split("/")[0]
        counts[mechanism] += 1
        if counts[mechanism] <= wanted[mechanism]:
            names.append(name)
    judged = lab.judge(lab.stored(names))
    figures = score.score([j for j in judged if j.made.mechanism != UNSEEN_MECHANISM])
    # Ways, not names: nobody should tune limits on runs that are held out.
    missed = [j.made.mechanism for j in judged if j.made.truth.harmed and j.found() is None]
    false = [f.kind for j in judged for f in j.false_alarms()]
    assert figures.harmed >= 20
    assert figures.recall.value >= RECALL, Counter(missed)
    assert len(false) <= MOST_FALSE_ALARMS, Counter(false)


# --- what stands in for the real thing ---------------------------------------------------------


@pytest.mark.parametrize("name", ["save", "wait", "poll"])
def test_the_saver_of_the_lab_takes_what_the_trainer_gives_a_real_one(name: str) -> None:
    def arguments(kind: type[Saver]) -> list[str]:
        return list(inspect.signature(getattr(kind, name)).parameters)

    assert arguments(drive.SlowSaver) == arguments(Saver)
