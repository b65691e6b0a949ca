import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longhaul.core.records import (
    Decision,
    Event,
    Finding,
    RecordError,
    StepRecord,
    from_line,
    to_line,
)

COUNTS = st.integers(0, (1 << 63) - 1)
FLOATS = st.floats(allow_nan=True, allow_infinity=True)
STEPS = st.builds(
    StepRecord,
    attempt=st.integers(1, 99),
    segment=st.just("1.00"),
    step=st.integers(0, 10**9),
    draw=st.integers(0, 10**12),
    next_draw=st.integers(0, 10**12),
    time=st.floats(0, 2e9),
    loss=FLOATS,
    gradient_norm=FLOATS,
    learning_rate=st.floats(0, 1),
    masked=st.booleans(),
    sequences=st.integers(1, 4096),
    sequence_length=st.integers(1, 4096),
    mixture_stage=st.integers(0, 9),
    attention_window=st.none() | st.integers(1, 4096),
    gauges=st.dictionaries(st.text(min_size=1), st.lists(FLOATS, max_size=4).map(tuple)),
    totals=st.dictionaries(st.text(min_size=1), FLOATS),
    source_losses=st.dictionaries(st.text(min_size=1), FLOATS),
    loss_scale=st.none() | FLOATS,
    states=st.none()
    | st.lists(st.tuples(COUNTS, COUNTS, st.sampled_from(["memory", "disk"]))).map(tuple),
)


def same(a: object, b: object) -> bool:
    """Equality in which NaN equals NaN."""
    return repr(a) == repr(b)


@given(STEPS)
def test_a_step_reads_back_as_written_nan_and_infinity_included(record: StepRecord) -> None:
    line = to_line(record)
    assert "\n" not in line
    assert same(from_line(line), record)


@given(STEPS)
def test_lines_are_json_that_any_reader_accepts(record: StepRecord) -> None:
    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is not JSON")

    json.loads(to_line(record), parse_constant=refuse)


def test_events_and_decisions_read_back_as_written() -> None:
    event = Event(kind="note", attempt=1, time=2.0, data={"text": "zwölf\nlines", "n": [1, 2]})
    decision = Decision(
        kind="set", attempt=1, step=3, time=4.0, who="ada", reason="why not",
        data={"path": "optim.lr", "value": 1e-4},
    )  # fmt: skip
    finding = Finding(
        kind="loss-spike", severity="alarm", attempt=1, segment="1.00", step=9, first_step=8,
        first_draw=64, time=5.0, subject="loss", evidence={"loss": 7.5, "limit": math.inf},
        sentence="the loss jumped",
    )  # fmt: skip
    assert from_line(to_line(finding)) == finding
    assert from_line(to_line(event)) == event
    assert from_line(to_line(decision)) == decision


def test_a_field_of_a_newer_longhaul_is_ignored() -> None:
    body = json.loads(to_line(Event(kind="note", attempt=1, time=2.0)))
    assert from_line(json.dumps(body | {"mood": "good"})) == Event(kind="note", attempt=1, time=2.0)


@pytest.mark.parametrize(
    "line",
    ["", "{", "null", "[]", "3", '{"record":"poem"}', '{"record":"step","step":1}', b"\xff\xfe"],
)
def test_what_is_no_record_is_refused_and_shown(line: str | bytes) -> None:
    with pytest.raises(RecordError, match="not a journal record"):
        from_line(line)


def test_tokens_are_those_of_the_global_batch() -> None:
    record = StepRecord(
        attempt=1, segment="1.00", step=1, draw=0, next_draw=4, time=0.0, loss=math.nan,
        gradient_norm=0.0, learning_rate=0.0, sequences=8, sequence_length=32,
    )  # fmt: skip
    assert record.tokens == 256


@pytest.mark.parametrize(
    ("name", "value"),
    [("step", "5"), ("step", 10**30), ("kind", 7), ("time", 1e300), ("time", -1.0), ("data", [1])],
)
def test_a_value_that_no_run_writes_is_no_record(name: str, value: object) -> None:
    event = {"record": "event", "kind": "note", "attempt": 1, "step": 1, "time": 1.8e9}
    assert isinstance(from_line(json.dumps(event)), Event)
    with pytest.raises(RecordError):
        from_line(json.dumps(event | {name: value}))
