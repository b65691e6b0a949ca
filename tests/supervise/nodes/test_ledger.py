from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from longhaul.supervise.nodes.ledger import (
    FILE_NAME,
    EventIndex,
    NodeEvent,
    append,
    concerning,
    cordons,
    node_of,
    read,
)


def event(kind="failed", parts=("board:A",), time=1.0, **more) -> NodeEvent:
    return NodeEvent(kind=kind, parts=tuple(parts), host="a", time=time, **more)


def test_what_was_written_is_read_in_order(tmp_path: Path) -> None:
    events = (
        event("joined", run="r"), event(cause="gpu-lost", reason="Grüße\nzwei"),
        event("probed", passed=False, data={"tflops": 312.5}), event("corrected", count=7),
    )  # fmt: skip
    assert read(tmp_path / "state") == ()
    for item in events:
        append(tmp_path / "state", item)
    assert read(tmp_path / "state") == events


def test_torn_and_foreign_lines_cost_themselves_only(tmp_path: Path) -> None:
    append(tmp_path, event(time=1.0))
    with (tmp_path / FILE_NAME).open("ab") as file:
        file.write(b'{"format":1,"kind":"failed","par')
    append(tmp_path, event(time=2.0))
    with (tmp_path / FILE_NAME).open("ab") as file:
        file.write(b'[]\n{"format":2,"kind":"failed"}\n{"format":1,"kind":"hexed","parts":[]}\n')
    append(tmp_path, event(time=3.0))
    assert [item.time for item in read(tmp_path)] == [1.0, 2.0, 3.0]


def test_a_field_that_a_newer_longhaul_added_is_ignored(tmp_path: Path) -> None:
    append(tmp_path, event())
    path = tmp_path / FILE_NAME
    path.write_text(path.read_text().replace('"format":1', '"format":1,"mood":"good"'))
    assert read(tmp_path) == (event(),)


def test_runs_write_at_once_without_losing_a_line(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: append(tmp_path, event(time=float(n))), range(100)))
    assert sorted(item.time for item in read(tmp_path)) == [float(n) for n in range(100)]


def test_a_node_is_concerned_by_what_is_known_of_any_of_its_parts() -> None:
    node = node_of("a", ["gpu:G1", "gpu:G2", "board:B"])
    events = [event(parts=["gpu:G2"]), event(parts=["board:C"]), event(parts=["board:B", "gpu:X"])]
    assert concerning(node, events) == (events[0], events[2])


def test_a_cordon_holds_until_it_is_released_part_by_part() -> None:
    first, again = event("cordoned", ["gpu:1", "gpu:2"]), event("cordoned", ["gpu:2"], 2.0)
    assert cordons([first, again]) == {"gpu:1": first, "gpu:2": first}
    assert cordons([first, event("released", ["gpu:1"])]) == {"gpu:2": first}
    assert cordons([first, event("released", ["gpu:2"]), again])["gpu:2"] == again


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abc")), max_size=20))
def test_the_last_word_on_a_part_counts(words: list[tuple[bool, str]]) -> None:
    events = [event("cordoned" if cordon else "released", [part]) for cordon, part in words]
    last = {part: cordon for cordon, part in words}
    assert cordons(events).keys() == {part for part, cordon in last.items() if cordon}


PARTS = st.lists(st.sampled_from(["board:A", "gpu:1", "gpu:2", "gpu:3"]), min_size=1, unique=True)
KINDS = st.sampled_from(["joined", "failed", "probed", "cordoned", "released"])


@given(st.lists(st.tuples(KINDS, PARTS), max_size=12), PARTS)
def test_an_index_tells_what_reading_all_events_does(told, parts) -> None:
    events = [event(kind, own, time=float(n)) for n, (kind, own) in enumerate(told)]
    index, node = EventIndex(events), node_of("a", parts)
    assert concerning(node, index) == concerning(node, events)
    assert cordons(index) == cordons(events)
    assert list(index) == events
    assert index[-1:] == events[-1:]
