import math
from dataclasses import fields, replace

import pytest

from fakes import FakeClock
from longhaul.core.records import Decision, Event, StepRecord
from longhaul.logbook import queries
from longhaul.logbook.folder import create_run
from longhaul.logbook.journal import Journal
from longhaul.logbook.queries import compact, connect
from longhaul.logbook.reading import read_journal

STEP_COLUMNS = [field.name for field in fields(StepRecord)]


def same(a, b):
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def steps_by_sql(folder):
    with connect(folder) as connection:
        return connection.execute(
            f"SELECT {', '.join(STEP_COLUMNS)} FROM steps ORDER BY attempt, step"
        ).fetchall()


@pytest.fixture
def written(folder, make_step, make_event, make_decision, monkeypatch):
    """Two attempts with every awkward number, a damaged line and a torn tail."""
    monkeypatch.setattr("longhaul.logbook.journal._ROTATE_BYTES", 700)
    first = Journal(folder, 1)
    awkward = [float("nan"), float("inf"), float("-inf"), 0.1 + 0.2, 5e-324, 1.7976931348623157e308]
    for step, value in enumerate(awkward, 1):
        first.append(
            make_step(
                step,
                loss=value,
                gradient_norm=abs(value),
                gauges={"norm": (value, 1.0)},
                seconds={"training": 0.1 * step, "checkpoint_stall": 1e-6},
                masked=value != value,
            )
        )
    first.append(make_event("evaluation", 6, data={"loss": 3.25, "sources": {"a": float("nan")}}))
    first.append_durably(make_decision(value=[1, "é'"], from_step=7))
    first.close()
    second = Journal(folder, 2)
    for step in range(4, 9):
        second.append(make_step(step, attempt=2, segment="1.01", redone=step < 7))
    second.close()
    path = folder.journal / "000002.pilot.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines.insert(2, b'{"record":"step","loss":1.0,"st \xff\n\0\0\n\n')
    path.write_bytes(b"".join(lines) + lines[0][:100])
    return folder


def test_sql_sees_the_same_steps_as_the_reader(written):
    records = list(read_journal(written, events=False))
    wanted = [tuple(getattr(record, name) for name in STEP_COLUMNS) for record in records]
    assert same(steps_by_sql(written), wanted)
    assert len(wanted) == 11


def test_what_an_older_version_compacted_lacks_the_newer_columns_and_nothing_else(
    written, monkeypatch
):
    before = steps_by_sql(written)
    newer = ("mixture_stage", "attention_window", "totals", "source_losses", "loss_scale")
    older = {name: kind for name, kind in queries._STEP_FIELDS.items() if name not in newer}
    with monkeypatch.context() as then:
        then.setattr(queries, "_STEP_FIELDS", older)
        assert compact(written, FakeClock()) == [1, 2]
    # An attempt of today is read from its JSON lines beside them.
    journal = Journal(written, 3)
    journal.append(
        replace(next(iter(read_journal(written, events=False))), attempt=3, attention_window=7)
    )
    journal.close()
    unknown = [STEP_COLUMNS.index(name) for name in newer]
    wanted = [tuple(None if n in unknown else v for n, v in enumerate(row)) for row in before]
    *found, latest = steps_by_sql(written)
    assert same(found, wanted)
    assert latest[STEP_COLUMNS.index("attention_window")] == 7


def test_parquet_and_json_answer_the_same(written):
    before = steps_by_sql(written)
    assert compact(written, FakeClock()) == [1, 2]
    assert same(steps_by_sql(written), before)
    with connect(written) as connection:
        plan = str(connection.execute("EXPLAIN SELECT * FROM steps").fetchall())
        assert "PARQUET" in plan.upper()
        assert "READ_JSON" not in plan.upper()


def test_events_and_decisions_are_one_view(written):
    records = [r for r in read_journal(written, steps=False) if isinstance(r, Event | Decision)]
    with connect(written) as connection:
        rows = connection.execute(
            "SELECT record, kind, step, from_step, who, data->>'value' FROM events ORDER BY time"
        ).fetchall()
        loss = connection.execute(
            "SELECT CAST(data->>'loss' AS DOUBLE) FROM events WHERE kind = 'evaluation'"
        ).fetchone()
    assert [row[0] for row in rows] == ["decision", "event"]
    assert len(rows) == len(records)
    assert rows[0][1:] == ("set", 5, 7, "anna", '[1,"é\'"]')
    assert loss == (3.25,)


def test_an_empty_run_has_empty_views_with_all_columns(folder):
    assert steps_by_sql(folder) == []
    with connect(folder) as connection:
        assert connection.execute("SELECT count(*), sum(tokens) FROM steps").fetchone() == (0, None)
        assert connection.execute("SELECT kind, data FROM events").fetchall() == []


def test_a_live_file_is_read_anew_by_every_question(folder, make_step):
    journal = Journal(folder, 1)
    journal.append(make_step(1))
    with connect(folder) as connection:
        question = "SELECT max(step), sum(tokens) FROM steps"
        assert connection.execute(question).fetchone() == (1, 512)
        journal.append(make_step(2))
        assert connection.execute(question).fetchone() == (2, 1024)
    journal.close()


def test_a_folder_name_is_no_pattern(tmp_path, make_step):
    folder = create_run(tmp_path / "odd [a*] 'x'?" / "run", FakeClock())
    journal = Journal(folder, 1)
    journal.append(make_step(1))
    journal.close()
    assert len(steps_by_sql(folder)) == 1
    assert compact(folder, FakeClock()) == [1]
    assert compact(folder, FakeClock()) == []
    assert len(steps_by_sql(folder)) == 1
