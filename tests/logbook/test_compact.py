import duckdb
import pytest

from fakes import FakeClock
from longhaul.logbook.journal import Journal
from longhaul.logbook.lease import acquire
from longhaul.logbook.queries import compact, connect, parquet_file, rollup_file


def write_steps(folder, make_step, attempt=1, steps=range(1, 4), **values):
    journal = Journal(folder, attempt)
    for step in steps:
        journal.append(make_step(step, attempt=attempt, **values))
    journal.close()


def count_steps(folder):
    with connect(folder) as connection:
        return connection.execute("SELECT count(*) FROM steps").fetchone()[0]


def test_compacting_again_does_nothing(folder, make_step):
    write_steps(folder, make_step)
    before = {p.name: p.read_bytes() for p in folder.journal.glob("*.jsonl")}
    assert compact(folder, FakeClock()) == [1]
    made = parquet_file(folder, 1).stat().st_ino
    assert compact(folder, FakeClock()) == []
    assert parquet_file(folder, 1).stat().st_ino == made
    assert {p.name: p.read_bytes() for p in folder.journal.glob("*.jsonl")} == before


def test_the_live_attempt_is_left_alone(folder, make_step):
    clock = FakeClock()
    write_steps(folder, make_step, 1)
    lease = acquire(folder, clock)
    assert lease.attempt == 2
    write_steps(folder, make_step, 2)
    assert compact(folder, clock) == [1]
    lease.release()
    assert compact(folder, clock) == [2]


def test_of_a_live_attempt_the_files_are_compacted_that_it_has_closed(
    folder, make_step, monkeypatch
):
    monkeypatch.setattr("longhaul.logbook.journal._ROTATE_BYTES", 2000)
    clock = FakeClock()
    lease = acquire(folder, clock)
    write_steps(folder, make_step, steps=range(1, 21))
    before = sorted(path.name for path in folder.journal.glob("*.jsonl"))
    assert compact(folder, clock) == [1]
    assert compact(folder, clock) == []

    def compacted():
        return duckdb.sql(
            f"SELECT max(step) FROM read_parquet('{parquet_file(folder, 1)}')"
        ).fetchall()[0][0]

    first = compacted()
    assert 10 < first < 20
    assert count_steps(folder) == 20
    write_steps(folder, make_step, steps=range(21, 41))
    assert len(sorted(folder.journal.glob("*.jsonl"))) > len(before)
    assert count_steps(folder) == 40
    assert compact(folder, clock) == [1]
    assert first < compacted() < 40
    lease.release()
    assert compact(folder, clock) == [1]
    assert compacted() == count_steps(folder) == 40


def test_an_attempt_that_wrote_on_is_read_from_json_and_compacted_again(folder, make_step):
    write_steps(folder, make_step)
    compact(folder, FakeClock())
    write_steps(folder, make_step, 1, steps=range(4, 6))
    assert count_steps(folder) == 5
    assert compact(folder, FakeClock()) == [1]
    assert count_steps(folder) == 5


def test_a_damaged_parquet_file_is_not_believed(folder, make_step):
    write_steps(folder, make_step)
    compact(folder, FakeClock())
    parquet_file(folder, 1).write_bytes(b"PAR1 and nothing more")
    assert count_steps(folder) == 3
    assert compact(folder, FakeClock()) == [1]


def test_a_crash_on_the_way_leaves_no_half_file(folder, make_step, monkeypatch):
    write_steps(folder, make_step)

    def crash(descriptor):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr("os.fsync", crash)
        with pytest.raises(OSError, match="Input/output"):
            compact(folder, FakeClock())
    assert list(folder.compacted.iterdir()) == []
    assert count_steps(folder) == 3


def test_roll_ups_hold_least_most_and_mean_of_finite_values(folder, make_step):
    journal = Journal(folder, 1)
    for step in range(1, 251):
        loss = float("nan") if step == 7 else float(step)
        journal.append(make_step(step, loss=loss, masked=step == 7))
    journal.close()
    compact(folder, FakeClock())
    rows = duckdb.sql(
        "SELECT first_step, last_step, steps, non_finite, masked, loss_min, loss_max, loss_mean, "
        "tokens_per_second_mean, gradient_norm_max "
        f"FROM read_parquet('{rollup_file(folder, 1)}') ORDER BY first_step"
    ).fetchall()
    finite = [step for step in range(1, 101) if step != 7]
    assert rows == [
        (1, 100, 100, 1, 1, 1.0, 100.0, sum(finite) / 99, pytest.approx(512.0), 0.5),
        (101, 200, 100, 0, 0, 101.0, 200.0, 150.5, pytest.approx(512.0), 0.5),
        (201, 250, 50, 0, 0, 201.0, 250.0, 225.5, pytest.approx(512.0), 0.5),
    ]


def test_a_run_without_steps_has_nothing_to_compact(folder):
    assert compact(folder, FakeClock()) == []
