"""One judgement: told once, forgotten after a rollback, the same live and replayed."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from longhaul.config.diagnose import DiagnoseSection
from longhaul.core.records import Decision, Event, from_line, to_line
from longhaul.diagnose.diagnosis import Diagnosis


def jumping(record):
    return {"loss": record.loss + 2} if record.step >= 300 else {}


def test_an_incident_is_told_once_and_again_only_when_it_worsens(made):
    findings = made.judge(made.changed(made.healthy(360), jumping))
    assert len(findings) == len({(f.kind, f.subject, f.severity) for f in findings})


def test_after_a_rollback_the_same_trouble_is_told_again(made):
    bad = made.changed(made.healthy(320), jumping)
    again = [replace(record, segment="1.01") for record in bad if record.step > 250]
    findings = made.judge([*bad, *again])
    first = [f for f in findings if f.segment == "1.00"]
    second = [f for f in findings if f.segment == "1.01"]
    assert [(f.kind, f.severity, f.step) for f in first] == [
        (f.kind, f.severity, f.step) for f in second
    ]


def test_after_a_rollback_what_was_learned_on_the_lost_stretch_is_forgotten(made):
    """The lost stretch taught a high level; without it, 1 nat less is still a jump."""
    lost = made.changed(made.healthy(700), jumping)
    good = [replace(r, segment="1.01") for r in made.healthy(500) if r.step > 290]
    after = made.changed(good, lambda r: {"loss": r.loss + 1} if r.step >= 400 else {})
    findings = [f for f in made.judge([*lost, *after]) if f.segment == "1.01"]
    untouched = made.judge(made.changed(made.healthy(500), lambda r: {"loss": r.loss + 1}
                                        if r.step >= 400 else {}))  # fmt: skip
    assert [(f.kind, f.step, f.evidence) for f in findings] == [
        (f.kind, f.step, f.evidence) for f in untouched
    ]


def test_where_the_data_has_changed_for_good_losses_are_judged_by_their_new_level(made):
    records = made.changed(made.healthy(420), jumping)
    accepted = Event(kind="data-changed", attempt=1, segment="1.00", step=312, time=312.0)
    told = made.judge([*records[:312], accepted, *records[312:]])
    assert {f.kind for f in told if f.step <= 312} == {"loss-spike"}
    assert not [f for f in told if f.step > 312]
    assert [f for f in made.judge(records) if f.step > 312], "without it they go on being told"
    restarted = [replace(record, attempt=2) for record in records[330:]]
    again = made.judge([*records[:312], accepted, *records[312:330], *restarted])
    assert not [f for f in again if f.step > 312], "nor is it forgotten in another attempt"
    worse = made.changed(records, lambda r: {"loss": r.loss + 2} if r.step >= 400 else {})
    harm = made.judge([*worse[:312], accepted, *worse[312:]])
    assert any(f.step >= 400 for f in harm), "what rises from the new level is told"


def test_where_the_data_has_changed_for_good_gradients_are_judged_by_their_new_level_too(made):
    def steeper(record):
        since = record.step >= 300
        return jumping(record) | ({"gradient_norm": record.gradient_norm * 8} if since else {})

    records = made.changed(made.healthy(420), steeper)
    accepted = Event(kind="data-changed", attempt=1, segment="1.00", step=312, time=312.0)
    told = made.judge([*records[:312], accepted, *records[312:]])
    assert made.told([f for f in told if f.step <= 312], "gradient-spike")
    assert not [f for f in told if f.step > 312]


def test_what_was_accepted_on_a_lost_stretch_is_forgotten(made):
    bad = made.changed(made.healthy(340), jumping)
    accepted = Event(kind="data-changed", attempt=1, segment="1.00", step=312, time=312.0)
    again = [replace(record, segment="1.01") for record in bad if record.step > 280]
    findings = made.judge([*bad[:312], accepted, *bad[312:], *again])
    assert "loss-spike" in {f.kind for f in findings if f.segment == "1.01"}


def journal(made, breaks, wild):
    """Records of a run that restarts or rolls back where `breaks` says: (step, back, restart)."""
    source = made.healthy(420, 3)
    records, attempt, minor, step = [], 1, 0, 1
    plan = sorted(breaks)
    while step <= 420:
        record = replace(source[step - 1], attempt=attempt, segment=f"1.{minor:02d}")
        if step in wild:
            record = replace(record, loss=record.loss + 3, gradient_norm=50.0)
        records.append(record)
        if step % 50 == 0:
            records.append(Event(kind="evaluation", attempt=attempt, step=step, time=float(step),
                                 data={"loss": record.loss}))  # fmt: skip
        if plan and step == plan[0][0]:
            _, back, restart = plan.pop(0)
            step, minor, attempt = max(step - back, 0), minor + 1, attempt + restart
        step += 1
    return records


BREAKS = st.lists(
    st.tuples(st.integers(30, 400), st.integers(0, 60), st.booleans()),
    max_size=4, unique_by=lambda item: item[0],
)  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(BREAKS, st.sets(st.integers(60, 420), max_size=40), st.data())
def test_live_with_restarts_is_the_same_as_replayed(made_once, breaks, wild, data):
    """A new attempt rebuilds its judgement from the last records; the findings are the same."""
    limits = DiagnoseSection(memory_steps=256)
    records = journal(made_once, breaks, wild)
    kept = (from_line(to_line(record)) for record in records)
    replayed = made_once.judge(kept, limits=limits)
    live, diagnosis, seen = [], Diagnosis(limits), []
    for record in records:
        if seen and record.attempt != seen[-1].attempt:
            diagnosis = Diagnosis(limits)
            for again in seen[-data.draw(st.integers(256, 400)) :]:
                diagnosis.observe(again)
        live.extend(diagnosis.observe(record))
        seen.append(record)
    assert live == replayed


def test_records_of_other_kinds_say_nothing(made):
    diagnosis = Diagnosis(DiagnoseSection())
    decision = Decision(kind="stop", attempt=1, step=3, time=0.0, who="anna", reason="")
    assert diagnosis.observe(decision) == ()
    assert diagnosis.observe(Event(kind="note", attempt=1, time=0.0)) == ()


def test_findings_of_two_judgements_do_not_touch_each_other(made):
    bad = made.changed(made.healthy(360), jumping)
    one, other = Diagnosis(DiagnoseSection()), Diagnosis(DiagnoseSection())
    for record in made.healthy(360):
        other.observe(record)
    assert [f for r in bad for f in one.observe(r)] == made.judge(bad)


def test_changed_limits_hold_for_what_is_remembered(made):
    diagnosis = Diagnosis(DiagnoseSection())
    for record in made.healthy(320):
        diagnosis.observe(record)
    strict = DiagnoseSection()
    strict = strict.model_copy(
        update={"non_finite": strict.non_finite.model_copy(update={"alarm": 1})}
    )
    diagnosis.change(strict, None)
    bad = replace(made.healthy(321)[-1], loss=float("nan"), masked=True)
    assert [f.severity for f in diagnosis.observe(bad)] == ["alarm"]


def test_every_kind_has_a_sentence_that_ends(made):
    findings = made.judge(made.changed(made.healthy(360), jumping))
    assert findings
    assert all(f.sentence.endswith(".") and f.sentence[0].isupper() for f in findings)
