"""The run log sent to a store, and what comes back of it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from longhaul.core.clocks import RealClock
from longhaul.core.errors import NotOwner
from longhaul.core.records import Decision, StepRecord
from longhaul.logbook.folder import RunFolder, create_run
from longhaul.logbook.journal import Journal
from longhaul.logbook.ledger import load_ledger
from longhaul.store.fetching import Found, best_first, bring_run_log, find_run_log
from longhaul.store.manifest import FileEntry
from longhaul.store.remote_log import (
    FOLDER,
    PAGES,
    PlaceTaken,
    RunLogMirror,
    editions,
    render_index,
)
from longhaul.store.transfers import StoreError

CLOCK = RealClock()


class Run:
    """A run with a journal, and a store it may be sent to."""

    def __init__(self, path: Path, files: Callable[..., object]) -> None:
        self.folder = create_run(path / "trial", CLOCK)
        self.folder.recipe.write_text("name = 'trial'\n")
        (self.folder.path / "asked.json").write_text("{}\n")
        segment = self.folder.segments / "1.00"
        segment.mkdir()
        (segment / "settings.json").write_text('{"format": 1}\n')
        self.files = files

    def mirror(self, attempt: int = 1, writer: str = "aaaaaaaa") -> RunLogMirror:
        return RunLogMirror(self.folder, self.files(), attempt, writer, CLOCK)

    def decide(self, rate: float, attempt: int = 1) -> None:
        journal = Journal(self.folder, attempt)
        data = {"path": "optim.lr", "value": rate}
        journal.append_durably(
            Decision(
                kind="set", attempt=attempt, step=3, time=CLOCK.wall(), who="anna", reason="r",
                data=data,
            )
        )  # fmt: skip
        journal.close()

    def step(self, step: int, attempt: int = 1) -> None:
        journal = Journal(self.folder, attempt)
        journal.append(
            StepRecord(
                attempt=attempt, segment="1.00", step=step, draw=step, next_draw=step + 1,
                time=float(step), loss=1.0, gradient_norm=1.0, learning_rate=0.1, sequences=1,
                sequence_length=8,
            )
        )  # fmt: skip
        journal.close()

    def back(self, into: Path) -> tuple[RunFolder, list[str]]:
        """What the store gives back."""
        found = find_run_log(self.files())
        assert found is not None
        lacking = bring_run_log([found], into, lambda _: None)
        return RunFolder(into), [str(page) for page in lacking]


@pytest.fixture
def run(tmp_path: Path, tier_of, store) -> Run:
    return Run(tmp_path, lambda: tier_of(store).files)


def always() -> bool:
    return True


def pages(tmp_path: Path) -> set[str]:
    return {path.name.rpartition("-")[0] for path in (tmp_path / "remote" / PAGES).iterdir()}


def test_a_book_comes_back_with_its_ledger_and_without_a_torn_tail(tmp_path: Path, run) -> None:
    run.decide(0.25)
    run.step(1)
    journal = run.folder.journal / "000001.pilot.jsonl"
    whole = journal.read_bytes()
    with journal.open("ab") as file:
        file.write(b'{"record": "st')
    run.mirror().send(always)
    back, lacking = run.back(tmp_path / "back")
    assert lacking == []
    assert (back.journal / "000001.pilot.jsonl").read_bytes() == whole
    assert load_ledger(back)[0].overrides_at(9) == {"optim.lr": 0.25}
    for name in ("run.json", "recipe.toml", "asked.json", "segments/1.00/settings.json"):
        assert (back.path / name).read_bytes() == (run.folder.path / name).read_bytes()


def test_closed_pages_are_sent_once_and_growing_ones_anew(tmp_path: Path, run, store) -> None:
    run.step(1)
    mirror = run.mirror()
    mirror.send(always)
    store.written.clear()
    assert mirror.send(always) == 0
    assert store.written == [], "nothing has changed"
    for step in range(2, 6):
        run.step(step)
        mirror.send(always)
    sent = [name.rpartition("-")[0] for name in store.written if "pilot" in name]
    assert sent == ["journal-000001.pilot.jsonl"] * 4
    assert not any("recipe" in name for name in store.written)
    left = [path.name for path in (tmp_path / "remote" / PAGES).iterdir()]
    assert sum("pilot" in name for name in left) == 2, "those of the last two editions"
    assert sum(path.suffix == ".json" for path in (tmp_path / "remote" / FOLDER).iterdir()) == 2
    run.step(6, attempt=2)
    store.written.clear()
    run.mirror(attempt=2).send(always)
    names = [name for name in store.written if not name.endswith(".json")]
    assert [name.rpartition("-")[0] for name in names] == ["journal-000002.pilot.jsonl"]
    assert [index.edition.attempt for index in editions(run.files())] == [2, 2]


def test_a_book_that_is_cut_off_is_the_one_before_it(tmp_path: Path, run, store) -> None:
    run.decide(0.5)
    mirror = run.mirror()
    mirror.send(always)
    run.decide(0.25)
    (before,) = (n for n in pages(tmp_path) if n.endswith("events.jsonl"))
    store.away = True
    with pytest.raises(StoreError, match="503"):
        mirror.send(always)
    store.away = False
    assert before in pages(tmp_path)
    assert load_ledger(run.back(tmp_path / "one")[0])[0].overrides_at(9) == {"optim.lr": 0.5}
    mirror.send(always)
    assert load_ledger(run.back(tmp_path / "two")[0])[0].overrides_at(9) == {"optim.lr": 0.25}


def test_pages_go_before_the_index_that_names_them(run, store) -> None:
    run.step(1)
    run.mirror().send(always)
    assert store.written[-1].startswith("000001-000001-")
    assert all(not name.startswith("0") for name in store.written[:-1])


def test_half_an_index_is_passed_over(tmp_path: Path, run) -> None:
    mirror = run.mirror()
    run.decide(0.5)
    mirror.send(always)
    run.decide(0.25)
    mirror.send(always)
    newest = sorted((tmp_path / "remote" / FOLDER).glob("*.json"))[-1]
    newest.write_bytes(newest.read_bytes()[:-20])
    assert load_ledger(run.back(tmp_path / "back")[0])[0].overrides_at(9) == {"optim.lr": 0.5}


def test_an_owner_that_was_taken_over_writes_nothing_over_a_newer_book(run, store) -> None:
    run.decide(0.5)
    old, new = run.mirror(attempt=3), run.mirror(attempt=4, writer="bbbbbbbb")
    old.send(always)
    new.send(always)
    run.decide(9.0, attempt=3)
    sealed = [name for name in store.written if name.endswith(".json")]
    for mirror in (old, run.mirror(attempt=3)):
        with pytest.raises(PlaceTaken, match="attempt 4 at this run, begun elsewhere"):
            mirror.send(always)
    assert [name for name in store.written if name.endswith(".json")] == sealed
    assert next(editions(run.files())).edition.attempt == 4


def test_of_two_that_came_by_the_same_number_one_gives_way(run) -> None:
    run.decide(0.5)
    first, second = run.mirror(attempt=2), run.mirror(attempt=2, writer="bbbbbbbb")
    first.send(always)
    with pytest.raises(PlaceTaken):
        second.send(always)
    run.decide(0.25)
    first.send(always)
    run.mirror(attempt=2).send(always)  # another process of the same attempt


def test_another_run_of_the_same_name_is_left_alone(tmp_path: Path, run, tier_of, store) -> None:
    run.decide(0.5)
    run.mirror().send(always)
    there = {path: path.read_bytes() for path in (tmp_path / "remote").rglob("*") if path.is_file()}
    other = Run(tmp_path / "other", run.files)
    identity = json.loads(other.folder.identity.read_bytes()) | {"created": 12.0}
    other.folder.identity.write_text(json.dumps(identity))
    other.decide(9.0, attempt=7)
    with pytest.raises(PlaceTaken, match="another run of this name"):
        other.mirror(attempt=7).send(always)
    for path, content in there.items():
        assert path.read_bytes() == content
    assert {path for path in (tmp_path / "remote").rglob("*") if path.is_file()} == set(there)


def test_who_has_lost_the_lease_seals_nothing(run) -> None:
    run.decide(0.5)
    with pytest.raises(NotOwner):
        run.mirror().send(lambda: False)
    assert find_run_log(run.files()) is None


def test_a_page_that_is_gone_is_named_and_taken_from_an_older_edition(tmp_path: Path, run) -> None:
    mirror = run.mirror()
    run.decide(0.5)
    mirror.send(always)
    run.decide(0.25)
    mirror.send(always)
    growing = [p for p in (tmp_path / "remote" / PAGES).iterdir() if "events" in p.name]
    max(growing, key=lambda path: path.stat().st_size).write_bytes(b"{}")
    next((tmp_path / "remote" / PAGES).glob("recipe.toml-*")).unlink()
    back, lacking = run.back(tmp_path / "back")
    assert lacking[0] == "recipe.toml (nothing is left of it)"
    assert lacking[1].startswith("journal/000001.pilot.events.jsonl (an older edition of it, ")
    assert len(lacking) == 2
    assert load_ledger(back)[0].overrides_at(9) == {"optim.lr": 0.5}
    assert not (back.path / "recipe.toml").exists()


def test_a_store_that_falls_silent_is_no_loss_of_pages(tmp_path: Path, run, store) -> None:
    run.decide(0.5)
    run.mirror().send(always)
    found = find_run_log(run.files())
    store.away = True
    with pytest.raises(StoreError, match="503"):
        bring_run_log([found], tmp_path / "back", lambda _: None)


def test_what_one_store_has_lost_another_one_gives(tmp_path: Path, run, tier_of) -> None:
    run.decide(0.5)
    second = tier_of(name="second").files
    run.mirror().send(always)
    RunLogMirror(run.folder, second, 1, "aaaaaaaa", CLOCK).send(always)
    for page in (tmp_path / "remote" / PAGES).iterdir():
        page.write_bytes(page.read_bytes()[:-1])
    time_buckets = best_first([find_run_log(run.files()), find_run_log(second)])
    assert bring_run_log(time_buckets, tmp_path / "back", lambda _: None) == []
    assert load_ledger(RunFolder(tmp_path / "back"))[0].overrides_at(9) == {"optim.lr": 0.5}


def test_a_hostile_index_writes_nothing_elsewhere(tmp_path: Path, run, store) -> None:
    run.decide(0.5)
    run.mirror().send(always)
    (index,) = editions(run.files())
    good = index.edition.path
    evil = index.pages[0].__class__("../../evil", 1, "a" * 64)
    edition = index.edition.__class__(9, 1, "cccccccc")
    hostile = index.__class__(
        edition=edition, created=index.created, host="", time=1.0, pages=(evil,)
    )
    (tmp_path / "remote" / edition.path).write_bytes(render_index(hostile))
    assert [found.edition.path for found in editions(run.files())] == [good]
    run.back(tmp_path / "deep" / "back")
    assert not list(tmp_path.rglob("evil"))


def test_pages_that_somebody_removed_are_sent_again(tmp_path: Path, run) -> None:
    run.decide(0.5)
    mirror = run.mirror()
    mirror.send(always)
    for page in (tmp_path / "remote" / PAGES).iterdir():
        page.unlink()
    run.decide(0.25)
    mirror.send(always)
    _, lacking = run.back(tmp_path / "back")
    assert lacking == []


def test_a_line_that_is_taken_back_while_it_is_sent_is_not_half_there(
    tmp_path: Path, run, monkeypatch
) -> None:
    run.decide(0.5)
    events = run.folder.journal / "000001.pilot.events.jsonl"
    whole = events.read_bytes()
    run.decide(0.25)
    mirror = run.mirror()
    send = mirror._files.send
    taken: list[FileEntry] = []

    def crooked(source: Path, path: str, file: FileEntry, growing: bool = False) -> None:
        if source == events and not taken:
            taken.append(file)
            events.write_bytes(whole)  # as where its fsync fails
        send(source, path, file, growing=growing)

    monkeypatch.setattr(mirror._files, "send", crooked)
    mirror.send(always)
    back, lacking = run.back(tmp_path / "back")
    assert lacking == []
    assert taken[0].size_bytes > len(whole)
    assert (back.journal / events.name).read_bytes() == whole


def test_found_books_of_one_run_come_newest_first(run, tier_of) -> None:
    run.decide(0.5)
    second = tier_of(name="second").files
    RunLogMirror(run.folder, second, 1, "aaaaaaaa", CLOCK).send(always)
    run.mirror(attempt=2).send(always)
    order = best_first([find_run_log(second), find_run_log(run.files())])
    assert [run_log.newest.edition.attempt for run_log in order] == [2, 1]
    assert isinstance(order[0], Found)
