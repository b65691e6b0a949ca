"""Nodes with real processes: imitated ones, with parts of their own, and stub workers."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from longhaul.core.records import Decision, Event, StepRecord
from longhaul.logbook.reading import read_journal
from longhaul.supervise.nodes.ledger import NodeEvent, append, read
from longhaul.supervise.ownership import left_over

PASSES = "print('{\"passed\": true}')"


def node(name: str, **more) -> dict:
    return {"name": name, "identity": [f"board:{name.upper()}"]} | more


def nodes(*names: str, spare: str = "") -> list[dict]:
    return [node(name, spare=name in spare) for name in names]


def act(name: str, what: str | dict, step: int = 15, attempts: int = 1) -> dict:
    return {"node": name, "step": step, "do": what, "attempts": attempts}


def events(stubs, kind: str) -> list[Event]:
    records = read_journal(stubs.folder, steps=False)
    return [r for r in records if isinstance(r, Event) and r.kind == kind]


def worlds(stubs) -> list[list[str]]:
    return [[n["name"] for n in e.data["nodes"]] for e in events(stubs, "attempt-began")]


@pytest.fixture(autouse=True)
def quick_probes(monkeypatch, tmp_path) -> None:
    """Torch takes seconds to import; what a real probe does is tested elsewhere."""
    (tmp_path / "passes.py").write_text(PASSES)
    monkeypatch.setenv("STUB_PROBE", str(tmp_path / "passes.py"))


def test_workers_know_their_node_and_the_journal_who_was_where(stubs) -> None:
    stubs.plot(settings={"node": [node("a", slots=2), node("b", slots=2)]})
    code, output = stubs.run()
    assert code == 0, output
    (began,) = events(stubs, "attempt-began")
    assert began.data["nodes"] == [
        {"name": "a", "parts": ["board:A"], "ranks": [0, 1]},
        {"name": "b", "parts": ["board:B"], "ranks": [2, 3]},
    ]
    told = json.loads((stubs.folder.path / "told-3.json").read_text())
    assert told == {"LONGHAUL_NODE": "b", "LONGHAUL_NODE_PARTS": "board:B", "RANK": "3",
                    "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4"}  # fmt: skip
    assert not events(stubs, "node-probed"), "nodes that the recipe names are trusted at first"


@pytest.mark.parametrize(
    "command",
    [
        ["env"],
        *(
            pytest.param(command, marks=pytest.mark.slow)
            for command in (["setsid", "--wait"], ["sh", "-c", '"$@"; exit $?', "sh"])
        ),
    ],
)
def test_a_command_starts_workers_that_are_watched_and_ended_like_any(stubs, command) -> None:
    stubs.plot(act("b", "loop"), steps=30,
               settings={"node": [node("a"), node("b", command=command)]})  # fmt: skip
    code, output = stubs.run()
    assert code == 0, output
    (failure,) = stubs.failures()
    assert (failure.data["cause"], failure.data["node"]) == ("hang", "b")
    assert "rank 1 on b is at step 15, the others at 16" in failure.data["said"]
    assert "in do" in next(stubs.folder.workers.glob("1.before-*.stacks")).read_text()
    assert worlds(stubs) == [["a", "b"], ["a", "b"]]


def test_workers_started_with_a_command_end_with_their_supervisor(stubs, wait_until) -> None:
    stubs.plot(steps=10**6, grace_s=1.0, settings={"node": [
        node("a"), node("b", command=["setsid", "--wait"])
    ]})  # fmt: skip
    process = stubs.start()
    wait_until("step 3", lambda: stubs.step(1) >= 3)
    pid = stubs.worker_pid(1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    wait_until("the end of rank 1", lambda: not Path(f"/proc/{pid}").exists())


def test_a_notice_reaches_workers_behind_a_command(stubs, wait_until) -> None:
    stubs.plot(steps=10**6, settings={"node": [
        node("a", command=["setsid", "--wait"]), node("b", command=["setsid", "--wait"])
    ]})  # fmt: skip
    process = stubs.start()
    wait_until("step 3", lambda: stubs.step(1) >= 3)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 16, output
    assert not left_over(stubs.folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are made by root alone")
def test_a_node_may_be_a_network_namespace(stubs) -> None:
    name = f"lh{os.getpid()}"
    if os.system(f"ip netns add {name} 2>/dev/null") != 0:
        pytest.skip("this system makes no network namespaces")
    try:
        stubs.plot(steps=5, settings={"node": [
            node("a"), node("b", command=["ip", "netns", "exec", name])
        ]})  # fmt: skip
        code, output = stubs.run()
    finally:
        os.system(f"ip netns del {name}")
    assert code == 0, output
    namespaces = [(stubs.folder.path / f"net-{rank}").read_text() for rank in (0, 1)]
    assert namespaces[0] != namespaces[1]


def test_a_node_that_repeats_its_failure_is_left_out_and_its_batch_goes_to_the_rest(stubs) -> None:
    """Incidents M1 and M10: no spare, so fewer replicas."""
    stubs.plot(act("b", "kill", step=12, attempts=9), settings={"node": nodes("a", "b", "c")})
    code, output = stubs.run()
    assert code == 0, output
    assert [f.data["node"] for f in stubs.failures()] == ["b", "b"]
    assert worlds(stubs) == [["a", "b", "c"], ["a", "b", "c"], ["a", "c"]]
    last = events(stubs, "attempt-began")[-1]
    assert [n["ranks"] for n in last.data["nodes"]] == [[0], [1]]
    assert "2 of 3 replicas, the same 64 sequences" in last.data["reason"]
    assert "has ended 2 attempts within a day" in last.data["absent"]["b"]
    assert json.loads((stubs.folder.path / "told-1.json").read_text())["WORLD_SIZE"] == "2"


def test_a_broken_gpu_is_cordoned_for_good_and_a_spare_takes_its_place(stubs) -> None:
    """Incident M6."""
    xid = "kernel NVRM: Xid (PCI:0000:3b:00): 48, pid=1, DBE (double bit error) ECC error"
    stubs.plot(act("b", xid), settings={"node": nodes("a", "b", "c", spare="c")})
    code, output = stubs.run()
    assert code == 0, output
    (failure,) = stubs.failures()
    assert failure.data["cause"] == "ecc-uncorrectable"
    assert failure.data["cordoned"] == {"b": ["board:B"]}
    assert worlds(stubs) == [["a", "b"], ["a", "c"]]
    assert [e.data["node"] for e in events(stubs, "node-probed")] == ["c"], "before it joined"
    assert "cordoned" in {e.kind for e in read(stubs.folder.path)}
    stubs.plot(steps=60, settings={"node": nodes("a", "b", "c", spare="c")})
    assert stubs.run()[0] == 0
    assert worlds(stubs)[-1] == ["a", "c"], "the next supervisor knows it too"


def test_the_only_node_cordoned_ends_the_run_and_names_it(stubs) -> None:
    xid = "kernel NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus"
    stubs.plot(act("a", xid), settings={"node": nodes("a")})
    code, output = stubs.run()
    assert code == 17, output
    assert "no nodes to go on with" in output
    assert "a has board:A, which was cordoned: gpu-lost on a" in output
    assert "[[supervise.node]]" in output, "the way out"


def test_a_replacement_is_ordered_probed_and_used_but_never_the_same_machine(
    stubs, tmp_path
) -> None:
    """Incident M8: first the bad board comes back under another name, then a good one."""
    script = tmp_path / "order.sh"
    script.write_text(
        'echo "$LONGHAUL_NODE $LONGHAUL_NODE_PARTS" >> orders\n'
        "if [ $(wc -l < orders) = 1 ]\n"
        'then echo \'{"name": "z9", "identity": ["board:B"]}\'\n'
        'else printf \'[[supervise.node]]\\nname = "b"\\nidentity = ["board:NEW"]\\n\'; fi\n'
    )
    xid = "kernel NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus"
    stubs.plot(act("b", xid), settings={
        "node": nodes("a", "b"), "replace_command": f"cd {tmp_path} && sh {script}",
    })  # fmt: skip
    code, output = stubs.run()
    assert code == 0, output
    assert (tmp_path / "orders").read_text().splitlines() == ["b board:B"] * 2
    assert "refused: z9 has board:B, which was cordoned, then called b" in output
    assert [e.data["node"] for e in events(stubs, "node-refused")] == ["z9"]
    assert [e.data["node"] for e in events(stubs, "node-probed")] == ["b-2"]
    assert worlds(stubs) == [["a", "b"], ["a", "b-2"]]


def test_an_error_of_the_device_has_the_node_probed_first(stubs, monkeypatch, tmp_path) -> None:
    """Incident M2; b fails its probe, so the run goes on without it."""
    (tmp_path / "picky.py").write_text(
        "import os, sys\n"
        "bad = os.environ.get('PICKY') == 'b'\n"
        "print('{\"passed\": %s, \"reason\": \"it is hot\"}' % ('false' if bad else 'true'))\n"
    )
    monkeypatch.setenv("STUB_PROBE", str(tmp_path / "picky.py"))
    stubs.plot(act("b", "CUDA error: unspecified launch failure"), settings={"node": [
        node("a"), node("b", command=["env", "PICKY=b"])
    ]})  # fmt: skip
    code, output = stubs.run()
    assert code == 0, output
    assert [e.data["passed"] for e in events(stubs, "node-probed")] == [False]
    assert worlds(stubs) == [["a", "b"], ["a"]]
    assert "it is hot" in events(stubs, "attempt-began")[-1].data["absent"]["b"]


def test_a_newcomer_that_hangs_the_job_is_left_out(stubs) -> None:
    """Incident M9: a and b have proven themselves, then c comes in place of b."""
    stubs.plot(act("b", "kill", step=120, attempts=9), act("c", "loop", step=125, attempts=9),
               steps=150, settings={"node": nodes("a", "b", "c", "d", spare="cd")})  # fmt: skip
    code, output = stubs.run()
    assert code == 0, output
    assert [(f.data["cause"], f.data["node"]) for f in stubs.failures()] == [
        ("killed", "b"), ("killed", "b"), ("hang", "c"),
    ]  # fmt: skip
    assert worlds(stubs) == [["a", "b"], ["a", "b"], ["a", "c"], ["a", "d"]]
    assert list(stubs.failures()[-1].data["evicted"]) == ["c"]


def test_a_node_that_is_gone_is_missed_and_taken_back_when_it_answers(
    stubs, monkeypatch, tmp_path
) -> None:
    """Incident M10, there and back."""
    monkeypatch.setenv("STUB_CALL_EVERY_S", "0.2")
    answers = 'test ! -e "$0"/gone/b && exec "$@"'
    stubs.plot(act("b", "forget-node"), steps=400, settings={"node": [
        node("a"), node("b", command=["sh", "-c", answers, str(stubs.folder.path)])
    ]})  # fmt: skip
    process = stubs.start()
    deadline = time.monotonic() + 60
    while len(worlds(stubs)) < 2 or stubs.step() < 30:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    (stubs.folder.path / "gone" / "b").unlink()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    (failure,) = stubs.failures()
    assert (failure.data["cause"], failure.data["node"]) == ("node-gone", "b")
    assert worlds(stubs) == [["a", "b"], ["a"], ["a", "b"]]
    (drained,) = events(stubs, "node-drained")
    assert "b can be used: 2 ranks instead of 1" in drained.data["reason"]
    assert events(stubs, "attempt-began")[-1].data["from_step"] >= 30, "at a checkpoint"


def test_the_only_node_is_waited_for_when_it_is_gone(stubs, wait_until) -> None:
    answers = 'test ! -e "$0"/gone/a && exec "$@"'
    stubs.plot(act("a", "forget-node"), settings={"node": [
        node("a", command=["sh", "-c", answers, str(stubs.folder.path)])
    ]})  # fmt: skip
    process = stubs.start()
    wait_until("its end", lambda: bool(stubs.failures()))
    said = process.stdout.readline()
    while "waiting for nodes to answer" not in said:
        assert said, "the run has ended"
        said = process.stdout.readline()
    assert "a: it does not answer" in said
    (stubs.folder.path / "gone" / "a").unlink()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert [f.data["cause"] for f in stubs.failures()] == ["node-gone"]
    assert worlds(stubs) == [["a"], ["a"]]
    assert "a: it does not answer" in events(stubs, "node-awaited")[0].data["reason"]


def test_corrected_errors_that_pile_up_wait_for_the_next_checkpoint(stubs) -> None:
    """Incident M7."""
    line = "kernel EDAC MC0: 120 CE memory read error on CPU_SrcID#0"
    stubs.plot(act("b", line, step=12), settings={"node": nodes("a", "b", "c", spare="c")},
               steps=100)  # fmt: skip
    code, output = stubs.run()
    assert code == 0, output
    assert not stubs.failures()
    (drained,) = events(stubs, "node-drained")
    assert drained.data["node"] == "b"
    assert "corrected 120 memory errors within an hour" in drained.data["reason"]
    assert worlds(stubs) == [["a", "b"], ["a", "c"]]
    assert events(stubs, "attempt-began")[1].data["from_step"] >= 20, "no step is lost"


def test_a_persons_cordon_is_heard_while_the_run_trains(stubs, monkeypatch, wait_until) -> None:
    monkeypatch.setenv("STUB_CALL_EVERY_S", "0.2")
    stubs.plot(steps=150, settings={"node": nodes("a", "b", "c", spare="c")})
    process = stubs.start()
    wait_until("step 3", lambda: stubs.step() >= 3)
    append(stubs.folder.path, NodeEvent(kind="cordoned", parts=("board:B",), host="b", who="ann",
                                        time=time.time(), reason="it smells burnt"))  # fmt: skip
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert not stubs.failures()
    (drained,) = events(stubs, "node-drained")
    assert drained.data["reason"] == "b has been cordoned by ann: it smells burnt"
    assert worlds(stubs) == [["a", "b"], ["a", "c"]]
    assert events(stubs, "attempt-began")[1].data["from_step"] >= 10, "at a checkpoint"


def test_reputation_decides_who_is_probed_and_who_is_spare(stubs, tmp_path) -> None:
    """Incident M12: an old sinner of other runs becomes the spare."""
    ledger = tmp_path / "ledger"
    for days in (3, 2, 1):
        append(ledger, NodeEvent(kind="failed", parts=("board:A",), host="a", cause="gpu-error",
                                 time=time.time() - days * 86_400))  # fmt: skip
    settings = {"node": nodes("a", "b", "c", spare="c"), "node_ledger": str(ledger)}
    stubs.plot(settings=settings)
    code, output = stubs.run()
    assert code == 0, output
    assert worlds(stubs) == [["b", "c"]]
    assert sorted(e.data["node"] for e in events(stubs, "node-probed")) == ["b", "c"]
    kinds = [(e.kind, e.host) for e in read(ledger)]
    assert ("joined", "b") in kinds
    assert ("left", "b") in kinds


def test_wrong_numbers_cordon_their_node_and_go_back_to_the_last_sound_step(stubs) -> None:
    """Incident M13, the supervisor's half."""
    verdict = {"kind": "corrupt", "ranks": [1], "reason": "step 35: rank 1 computes other numbers",
               "sound_step": 22}  # fmt: skip
    stubs.plot({"step": 35, "do": verdict}, steps=50,
               settings={"node": nodes("a", "b", "c", spare="c")})  # fmt: skip
    code, output = stubs.run()
    assert code == 0, output
    (failure,) = stubs.failures()
    assert failure.data["cause"] == "silent-corruption"
    assert (failure.data["node"], failure.data["cordoned"]) == ("b", {"b": ["board:B"]})
    assert failure.data["rank"] == 1, "whoever was the first to leave"
    decisions = [r for r in read_journal(stubs.folder, steps=False) if isinstance(r, Decision)]
    assert [d.data["checkpoint"] for d in decisions] == [30]
    assert worlds(stubs) == [["a", "b"], ["a", "c"]]
    assert events(stubs, "attempt-began")[1].data["from_step"] == 20


def test_without_a_witness_nobody_is_cordoned_and_all_are_probed(stubs) -> None:
    verdict = {"kind": "corrupt", "ranks": [0, 1], "reason": "step 15: ranks 0, 1 differ",
               "sound_step": 12}  # fmt: skip
    stubs.plot({"step": 15, "do": verdict}, settings={"node": nodes("a", "b")})
    code, output = stubs.run()
    assert code == 0, output
    assert stubs.failures()[0].data["cordoned"] == {}
    assert sorted(e.data["node"] for e in events(stubs, "node-probed")) == ["a", "b"]


def test_wrong_numbers_on_the_only_machine_end_the_run_but_never_from_a_bad_state(stubs) -> None:
    verdict = {"kind": "corrupt", "ranks": [1], "reason": "step 35: rank 1", "sound_step": 22}
    stubs.plot({"step": 35, "do": verdict}, processes=2)
    code, output = stubs.run()
    assert code == 17, output
    assert "this machine must not be used, and there is no other" in output
    decisions = [r for r in read_journal(stubs.folder, steps=False) if isinstance(r, Decision)]
    assert [d.data["checkpoint"] for d in decisions] == [30]
    assert not events(stubs, "attempt-began"), "nothing is said of nodes where none are named"


def test_two_that_differ_on_the_only_machine_go_back_after_a_probe(stubs) -> None:
    verdict = {"kind": "corrupt", "ranks": [], "among": [0, 1], "reason": "ranks 0, 1 differ",
               "sound_step": 22}  # fmt: skip
    stubs.plot({"step": 35, "do": verdict}, processes=2)
    code, output = stubs.run()
    assert code == 0, output
    (failure,) = stubs.failures()
    assert (failure.data["cause"], failure.data["remedy"]) == ("silent-corruption", "probe")
    assert failure.data["rank"] is None, "nobody is accused"
    decisions = [r for r in read_journal(stubs.folder, steps=False) if isinstance(r, Decision)]
    assert [d.data["checkpoint"] for d in decisions] == [30]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_slow_node_gives_way_to_a_spare(stubs, monkeypatch, at_once) -> None:
    """Incident M5: at once where that is wanted, else at the next restart."""
    monkeypatch.setenv("STUB_CALL_EVERY_S", "0.2")
    slow = {"kind": "straggler", "ranks": [1], "reason": "rank 1 computes 21% slower"}
    stubs.plot({"step": 15, "do": slow}, act("a", "kill", step=100), steps=120, settings={
        "node": nodes("a", "b", "c", spare="c"), "replace_stragglers": at_once,
    })  # fmt: skip
    code, output = stubs.run()
    assert code == 0, output
    assert [e.data["node"] for e in events(stubs, "node-slow")] == ["b"]
    assert len(events(stubs, "node-drained")) == at_once
    assert worlds(stubs)[:2] == [["a", "b"], ["a", "c"]]


def test_a_single_machine_is_probed_after_an_error_of_its_device(stubs, monkeypatch, tmp_path):
    stubs.plot({"rank": 0, "step": 15, "do": "CUDA error: unspecified launch failure"},
               processes=1)  # fmt: skip
    assert stubs.run()[0] == 0
    (tmp_path / "fails.py").write_text('print(\'{"passed": false, "reason": "wrong sums"}\')')
    monkeypatch.setenv("STUB_PROBE", str(tmp_path / "fails.py"))
    stubs.plot({"rank": 0, "step": 45, "do": "CUDA error: unspecified launch failure",
                "attempts": 9}, processes=1, steps=60)  # fmt: skip
    code, output = stubs.run()
    assert code == 17, output
    assert "this machine has not passed a probe: wrong sums" in output


def test_a_real_run_goes_on_with_fewer_replicas_and_the_same_batch(room) -> None:
    """Incident M10 with longhaul's own workers: the recipe asks for two replicas by number."""
    process = room.start(
        "train", "drill", "--set", "train.steps=26", "--set", "checkpoint.interval_steps=10",
        "--set", "evaluation.interval_steps=0", "--set", "parallel.replicate=2",
        "--set", "model.dropout=0.0",
        "--set", 'supervise.node=[{name="a",identity=["board:A"]},'
        '{name="b",identity=["board:B"]}]',
    )  # fmt: skip
    for attempt in (1, 2):
        room.wait_for(
            f"step {11 + attempt} of attempt {attempt}",
            lambda r: isinstance(r, StepRecord) and r.step > 11 and r.attempt == attempt,  # noqa: B023
        )
        (on_b,) = [worker for worker in left_over(room.folder()) if worker.rank == 1]
        os.kill(on_b.pid, signal.SIGKILL)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    records = room.records()
    began = [r for r in records if isinstance(r, Event) and r.kind == "attempt-began"]
    assert [[n["name"] for n in e.data["nodes"]] for e in began] == [["a", "b"]] * 2 + [["a"]]
    steps = [r for r in records if isinstance(r, StepRecord)]
    assert {step.attempt for step in steps} == {1, 2, 3}
    assert len({step.sequences for step in steps}) == 1, "the same global batch"
    by_step: dict[int, list[float]] = {}
    for step in steps:
        by_step.setdefault(step.step, []).append(step.loss)
    again = [losses for losses in by_step.values() if len(losses) > 1]
    assert again
    for losses in again:
        assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-4)
