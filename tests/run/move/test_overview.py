"""The runs of every cluster in one table."""

import shutil
import threading
from pathlib import Path

from longhaul.core.clocks import RealClock
from longhaul.run.move import overview as module
from longhaul.run.move.overview import Row, overview, settled
from longhaul.run.move.sites import Site


def row(
    cluster: str, attempt: int, last_move: str = "", state: str = "stopped", created=1.0, **more
) -> Row:
    return Row(
        cluster=cluster, run="x", state=state, attempt=attempt, created=created,
        last_move=last_move, **more,
    )  # fmt: skip


def shown(*rows: Row) -> list[tuple[str, str, str]]:
    return [(r.cluster, r.state, r.where) for r in settled(rows)]


def test_a_run_lives_where_its_last_move_went() -> None:
    assert shown(row("a", 2), row("b", 5, "b", "live"), row("c", 3, "c")) == [
        ("b", "live", ""), ("a", "moved", "to b"), ("c", "moved", "to b"),
    ]  # fmt: skip


def test_a_copy_in_the_store_of_another_cluster_is_not_where_it_lives() -> None:
    """As where its recipe goes on naming the store of the cluster that it has left."""
    assert shown(row("a", 6, "b", "elsewhere"), row("b", 5, "b", "live")) == [
        ("b", "live", ""), ("a", "moved", "to b"),
    ]  # fmt: skip


def test_a_run_that_never_moved_is_where_it_is() -> None:
    assert shown(row("a", 2), row("b", 2, state="elsewhere")) == [
        ("a", "stopped", ""), ("b", "elsewhere", ""),
    ]  # fmt: skip


def test_runs_that_only_share_a_name_are_two() -> None:
    for other in (2.0, None):
        found = settled([row("a", 2), row("b", 5, "b", created=other)])
        assert {r.state for r in found} == {"stopped"}


def test_what_a_folder_says_of_itself_stays() -> None:
    assert shown(row("a", 9, "b", "moved", where="to b"), row("b", 4, "b")) == [
        ("b", "stopped", ""), ("a", "moved", "to b"),
    ]  # fmt: skip


def sites(path: Path) -> list[Site]:
    return [Site(name, path / name, str(path / f"store-{name}")) for name in ("a", "b")]


def rows_of(pair, here: str | None = "a", **more):
    known = sites(pair.path)
    own = next((site for site in known if site.name == here), None)
    runs = pair.path / (here or "laptop")
    found = overview([*known, *more.get("others", ())], own, runs, RealClock(), more.get("wait", 9))
    return {r.cluster: (r.state, r.where) for r in found.rows}, found


def test_a_move_is_followed_from_either_side(pair) -> None:
    (pair.path / "b").mkdir()
    assert rows_of(pair)[0] == {"a": ("dead", "")}
    pair.leave("a", "b")
    assert rows_of(pair)[0] == {"a": ("moved", "to b")}
    pair.arrive("b")
    for here in ("a", "b"):
        assert rows_of(pair, here)[0] == {"a": ("moved", "to b"), "b": ("stopped", "")}


def test_of_a_cluster_that_is_not_mounted_the_store_tells(pair) -> None:
    pair.leave("a", "b")
    found, whole = rows_of(pair)
    assert found == {"a": ("moved", "to b"), "b": ("arriving", "from a")}
    assert {r.cluster: r.summary.step for r in whole.rows} == {"a": 30, "b": 30}
    pair.arrive("b")
    shutil.rmtree(pair.path / "b")
    assert rows_of(pair)[0]["b"] == ("stopped", "as its store has it")


def test_a_silent_cluster_is_named_and_holds_nobody_up(pair, monkeypatch) -> None:
    (pair.path / "b").mkdir()
    (pair.path / "c").mkdir()
    released, mounted = threading.Event(), module._mounted

    def hanging(site, runs, clock):
        if site.name == "c":
            released.wait(60)
        return mounted(site, runs, clock)

    monkeypatch.setattr(module, "_mounted", hanging)
    others = [Site("c", pair.path / "c"), Site("d", pair.path / "d"),
              Site("e", pair.path / "e", "nowhere://x")]  # fmt: skip
    found, whole = rows_of(pair, others=others, wait=1.0)
    released.set()
    assert found == {"a": ("dead", "")}
    silent = {line.split(":")[0]: line for line in whole.silent}
    assert silent["cluster c"] == "cluster c: no answer within 1.0 s"
    assert "is not mounted here, and it has no remote tier" in silent["cluster d"]
    assert "nowhere" in silent["cluster e"]


def test_two_clusters_whose_folders_are_called_the_same_are_not_mixed_up(pair) -> None:
    known = [Site("a", pair.path / "a"), Site("b", pair.path / "a", str(pair.path / "store-b"))]
    pair.leave("a", "b")
    found = overview(known, known[0], pair.path / "a", RealClock(), 9.0)
    assert {r.cluster: r.state for r in found.rows} == {"a": "moved", "b": "arriving"}


def test_a_broken_run_does_not_hide_the_others(pair) -> None:
    (pair.path / "b" / "y").mkdir(parents=True)
    (pair.path / "b" / "y" / "run.json").write_text("{")
    (pair.path / "b" / "y" / "journal").write_text("no folder")
    _, whole = rows_of(pair)
    assert {(r.run, r.cluster) for r in whole.rows} >= {("x", "a")}
