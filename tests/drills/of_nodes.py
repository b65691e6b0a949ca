"""The incident book's rows about nodes: M1, M5 to M13.

Nodes are imitated: each has hardware of its own to go by, and its workers are processes here.
"""

import random
import shutil
from collections.abc import Iterator, Sequence

from drills.machine_drill import (
    MachineDrill,
    Played,
    began,
    failures,
    poisoned,
    usual_tale,
)
from drills.runs import LONGEST_S
from drills.stage import SOON_NOTICED, Stage
from drills.story import Timeline
from longhaul.core.clocks import RealClock
from longhaul.core.records import Decision, Event, Record
from longhaul.core.units import Seconds
from longhaul.logbook.ledger import load_ledger
from longhaul.logbook.run_spec import read_run_spec
from longhaul.run.train.control_requests import request_set
from longhaul.supervise.nodes.ledger import Kind, Node, NodeEvent, append, cordons, node_of, read
from longhaul.supervise.nodes.reputation import PROVEN_STEPS, admit, by_reliability
from longhaul.supervise.run_process import Seen

_DAY_S: Seconds = 86_400.0
_NO_DROPOUT = ("model.dropout=0",)
"""Other layouts add up in another order, and draw other masks."""
_FAILS_PROBES = """['sh', '-c', 'test $# -lt 5 || exit 1; exec "$@"', 'sh']"""
"""A node that says who it is when it is asked with three words, and fails when with more."""
_REASON = "decided before all was lost"
_LONG = PROVEN_STEPS + 60
_COMPARED = ("monitor.witness_every=10", "monitor.hash_every=10")


def nodes() -> tuple[MachineDrill, ...]:
    """The drills."""
    return (*_of_bad_nodes(), *_of_other_nodes())


def _of_bad_nodes() -> tuple[MachineDrill, ...]:
    """A node of the world has something wrong with it."""
    return (
        MachineDrill(
            name="M1", happened="the worker of one node dies, twice",
            world=(_nodes("abc", spares="c"), "checkpoint.snapshot_interval_steps=5"),
            faults=("kill@nodeb:step28", "kill@nodeb:step43"),
            failures=(("killed", 1), ("killed", 1)),
            check=_without_it_if_it_repeats, tale=_worlds_in_words,
        ),
        MachineDrill(
            name="M5", happened="one node computes twice as slowly", steps=200,
            options=("train.steps=200",), pace_s=0.05,
            world=(_nodes("abc", spares="c"), "supervise.replace_stragglers=true"),
            faults=("slow:2@nodeb:step1-200",), check=_straggler_replaced,
            tale=_worlds_in_words, blinded=("supervise.replace_stragglers=false",),
        ),
        MachineDrill(
            name="M6", happened="a GPU's memory loses data: uncorrectable ECC error",
            world=(_nodes("abc", spares="c"),), faults=("ecc@nodeb:step25",),
            failures=(("ecc-uncorrectable", 1),), check=_cordoned_for_good, tale=_worlds_in_words,
        ),
        MachineDrill(
            name="M7", happened="a GPU's memory corrects errors at a high rate",
            pace_s=0.1, world=(_nodes("abc", spares="c"),), faults=("ecc:92@nodeb:step25",),
            check=_drained, tale=_worlds_in_words, blinded=(_nodes("ab"),),
        ),
        MachineDrill(
            name="M13", happened="one of three nodes computes wrong gradients", processes=3,
            options=_COMPARED, world=(_nodes("abcd", spares="d"),),
            faults=("bitflip-grad@nodeb:step21-60",), failures=(("silent-corruption", 1),),
            check=_quarantined, same="kept bits", tale=_worlds_in_words,
            blinded=("monitor.witness_every=0", "monitor.hash_every=0"),
        ),
    )  # fmt: skip


def _of_other_nodes() -> tuple[MachineDrill, ...]:
    """Others come in the place of nodes, or there are none."""
    return (
        MachineDrill(
            name="M8", happened="the replacement of a bad machine is the same machine",
            options=_NO_DROPOUT, world=(_nodes("ab"), _order("x", "b")),
            faults=("ecc@nodeb:step25",), failures=(("ecc-uncorrectable", 1),), same="losses",
            check=_refused, tale=_worlds_in_words, blinded=(_order("x", "y"),),
        ),
        MachineDrill(
            name="M9", happened="the run hangs after a new node joined",
            steps=_LONG, same="losses",
            options=(*_NO_DROPOUT, f"train.steps={_LONG}"),
            world=(_nodes("abc", spares="c"), *SOON_NOTICED),
            faults=(f"node-gone:10@nodeb:step{PROVEN_STEPS + 15}", "stop@nodec:step125:attempt*"),
            failures=(("node-gone", 1), ("hang", 1)),
            check=_newcomer_evicted, tale=_worlds_in_words,
        ),
        MachineDrill(
            name="M10", happened="two of four nodes go, and there is one spare", processes=4,
            options=_NO_DROPOUT, world=(_nodes("abcde", spares="e"),),
            faults=("node-gone:600@nodeb:step25", "node-gone:600@noded:step45"),
            failures=(("node-gone", 1), ("node-gone", 2)), same="losses",
            check=_fewer_replicas, tale=_worlds_in_words,
        ),
        MachineDrill(
            name="M11", happened="the cluster is deleted, and comes back with bad machines",
            pace_s=0.05, play=_deleted, check=_came_back, tale=_worlds_in_words,
            from_newest=False, blinded=("checkpoint.remote=[]",),
        ),
        MachineDrill(
            name="M12", happened="three of 63 nodes cause half of all failures, in six runs",
            codes=(), play=_replayed, blinded=("supervise.node_ledger='elsewhere'",),
            tale=lambda story: "the three are the spares, and probed first",
        ),
    )  # fmt: skip


def _nodes(names: str, spares: str = "") -> str:
    """A recipe's nodes, one slot each, known by boards of their own."""
    tables = (
        f"{{name='{name}', slots=1, identity=['board:{name}1'], "
        f"spare={'true' if name in spares else 'false'}}}"
        for name in names
    )
    return f"supervise.node=[{', '.join(tables)}]"


def _order(name: str, board: str) -> str:
    """A command that brings a node of this name with the board of another one."""
    entry = f'{{"name": "{name}", "slots": 1, "identity": ["board:{board}1"]}}'
    return f"supervise.replace_command='''echo '{entry}' '''"


def _worlds(story: Timeline) -> list[tuple[str, ...]]:
    """Names of the nodes of every attempt, in order."""
    return [
        tuple(node["name"] for node in event.data["nodes"])
        for event in story.events("attempt-began")
    ]


def _worlds_in_words(story: Timeline) -> str:
    failed = usual_tale(story)
    ways = " → ".join("".join(world) for world in _worlds(story))
    return f"nodes {ways}" + (f"; {failed}" if failures(story) else "")


def _absent(story: Timeline, name: str, since: int = 1) -> Iterator[str]:
    """Whoever was evicted must not be in any later world, whatever it is called there."""
    began_with = story.events("attempt-began")
    parts = {part for event in began_with[:1] for node in event.data["nodes"]
             if node["name"] == name for part in node["parts"]}  # fmt: skip
    for number, event in enumerate(began_with[since:], start=since + 1):
        for node in event.data["nodes"]:
            if node["name"] == name or parts & set(node["parts"]):
                yield f"node {name} is in world {number} as {node['name']}"


def _went(story: Timeline, *worlds: str) -> Iterator[str]:
    found = ["".join(world) for world in _worlds(story)]
    if found != list(worlds):
        yield f"the worlds were {found}, not {list(worlds)}"


def _without_it_if_it_repeats(story: Timeline) -> Iterator[str]:
    yield from _went(story, "ab", "ab", "ac")
    # The first time the node is still there, and with it the snapshots in its memory.
    if [event.step for event in story.events("restored")] != [25]:
        yield f"from memory it went on at {[event.step for event in story.events('restored')]}"


def _verdicts(story: Timeline, kind: str) -> list[Event]:
    return [event for event in story.events("machine-verdict") if event.data["kind"] == kind]


def _straggler_replaced(story: Timeline) -> Iterator[str]:
    named = _verdicts(story, "straggler")
    if not named or named[0].data["ranks"] != [1] or named[0].step > 100:
        yield f"not named within 100 steps: {[(v.data['ranks'], v.step) for v in named]}"
    elif "every step waits" not in named[0].data["reason"]:
        yield f"its price is not told: {named[0].data['reason']}"
    yield from _went(story, "ab", "ac")


def _ledger(story: Timeline) -> tuple[NodeEvent, ...]:
    return read(story.folder.path)


def _cordoned_for_good(story: Timeline) -> Iterator[str]:
    yield from _went(story, "ab", "ac")
    yield from _absent(story, "b")
    if "board:b1" not in cordons(_ledger(story)):
        yield "node b is not cordoned in the ledger"
    if not any(e.kind == "probed" and "board:c1" in e.parts for e in _ledger(story)):
        yield "the spare was not probed before it was used"


def _drained(story: Timeline) -> Iterator[str]:
    yield from _went(story, "ab", "ac")
    yield from _absent(story, "b")
    steps = [record.step for record in story.steps]
    if len(steps) != len(set(steps)):
        yield f"{len(steps) - len(set(steps))} steps were lost: it was not drained at a checkpoint"
    if cordons(_ledger(story)):
        yield "node b is cordoned, although its errors were corrected"


def _refused(story: Timeline) -> Iterator[str]:
    refused = story.events("node-refused")
    if not refused or "which was cordoned, then called b" not in refused[0].data["reason"]:
        yield f"it was not refused: {[event.data['reason'] for event in refused]}"
    yield from _went(story, "ab", "a")
    yield from _absent(story, "b")


def _newcomer_evicted(story: Timeline) -> Iterator[str]:
    worlds = _worlds(story)
    if worlds[:2] != [("a", "b"), ("a", "c")]:
        yield f"the worlds were {worlds}"
    hung = failures(story)[-1]
    if "c" not in hung.data["evicted"] or "it hung" not in hung.data["nodes_reason"]:
        yield f"the newcomer was not evicted: {hung.data['nodes_reason']}"
    if any("c" in world for world in worlds[2:]):
        yield "the newcomer is in a later world"


def _fewer_replicas(story: Timeline) -> Iterator[str]:
    yield from _went(story, "abcd", "acde", "ace")


def _quarantined(story: Timeline) -> Iterator[str]:
    named = _verdicts(story, "corrupt")
    if [event.data["ranks"] for event in named] != [[1]]:
        yield f"named are ranks {[event.data['ranks'] for event in named]}"
        return
    sound = named[0].data["sound_step"]
    if sound is None or sound > 20 or began(story)[-1].step > sound:
        yield f"sound was step {sound}, and it went on from {began(story)[-1].step}"
    saved = {e.step for e in story.events("checkpoint") if e.attempt == 1}
    if later := sorted(step for step in saved if step > 20 and step not in poisoned(story)):
        yield f"checkpoints {later} of the bad stretch may be used"
    yield from _went(story, "abc", "acd")
    yield from _absent(story, "b")


def _deleted(stage: Stage, drill: MachineDrill) -> Played:
    """All of a run is deleted but its remote tier; then four machines are there, two of them bad:
    one is in the ledger of an earlier run, one does not pass its probe.

    Before, somebody decides on the very learning rate that the recipe has, which changes no bit;
    after, the recipe has another one. Where the decision is forgotten, all bits differ.
    """
    remote = f"checkpoint.remote='{stage.room / 'M11-store'}'"
    ledger = stage.room / "M11-nodes"
    world = (_nodes("ab"), f"supervise.node_ledger='{ledger}'", remote)
    folder = stage.set_up((*drill.options, *world), drill.processes, pace_s=drill.pace_s)
    with stage.train() as training:
        training.wait_for("a checkpoint elsewhere", _is_uploaded(20), LONGEST_S)
        rate = read_run_spec(folder).settings().optim.lr
        request_set(folder, f"optim.lr={rate}", _REASON, LONGEST_S)
        decided = training.wait_for("the decision", _is_decided, LONGEST_S)
        training.wait_for("a checkpoint after it", _is_uploaded(decided.step + 1), LONGEST_S)
    shutil.rmtree(folder.path)
    append(ledger, _cordon(("board:f1",), "f"))
    broken = f"{{name='g', slots=1, identity=['board:g1'], command={_FAILS_PROBES}}}"
    back = _nodes("fcd", spares="cd").replace("=[", f"=[{broken}, ", 1)
    stage.set_up((*drill.options, back, *world[1:], f"optim.lr={5 * rate}"), drill.processes)
    return (stage.end(),), drill.check


def _is_uploaded(step: int) -> Seen:
    def seen(record: Record) -> bool:
        return isinstance(record, Event) and record.kind == "uploaded" and record.step >= step

    return seen


def _is_decided(record: Record) -> bool:
    return isinstance(record, Decision) and record.reason == _REASON


def _cordon(parts: Sequence[str], host: str) -> NodeEvent:
    return NodeEvent(
        kind="cordoned", parts=tuple(parts), host=host, time=RealClock().wall(), reason="drill"
    )


def _came_back(story: Timeline) -> Iterator[str]:
    yield from _went(story, "ab", "cd")
    back = story.events("brought-back")
    if len(back) != 1 or back[0].data["lacking"]:
        yield f"its run log was brought back {len(back)} times, lacking {[e.data for e in back]}"
    if not any(map(_is_decided, story.records)) or story.steps[0].attempt != 1:
        yield "the story of before is not there"
    if began(story)[-1].attempt < 2:
        yield "it went on under a number that an attempt before had"
    if "optim.lr" not in load_ledger(story.folder)[0].overrides:
        yield "what was decided before is forgotten"
    fetched = story.events("fetched")
    if not fetched or began(story)[-1].step != fetched[0].step:
        yield f"it began at step {began(story)[-1].step}"
    absent = story.events("attempt-began")[-1].data["absent"]
    if "cordoned" not in absent.get("f", "") or "probe" not in absent.get("g", ""):
        yield f"left out were {dict(absent)}"


def _replayed(stage: Stage, drill: MachineDrill) -> Played:
    """A ledger as six runs of nine days each have left it, judged anew: no process trains."""
    ledger = stage.room / "M12-nodes"
    everybody = [node_of(f"host-{n}", [f"gpu:GPU-{n}", f"board:board-{n}"]) for n in range(63)]
    chance = random.Random(12)
    bad = chance.sample(everybody, 3)
    now = RealClock().wall()
    for run in range(6):
        began_at = now - (60 - 10 * run) * _DAY_S
        for event in _run_of(f"run-{run}", everybody, bad, began_at, chance):
            append(ledger, event)
    known = () if stage.blinded else read(ledger)
    spare = by_reliability(everybody, known, now)[60:]
    verdicts = {node: admit(node, known, now).verdict for node in everybody}

    def check(story: Timeline) -> Iterator[str]:
        causes = [event.parts for event in read(ledger) if event.kind == "failed"]
        share = sum(parts in [_parts(node) for node in bad] for parts in causes) / len(causes)
        if not 0.4 < share < 0.6:
            yield f"three nodes cause {share:.0%} of failures, which is not what happened"
        if set(spare) != set(bad):
            yield f"spares are {[node.host for node in spare]}"
        if any(verdicts[node] != "probe" for node in bad):
            yield f"not all of {[node.host for node in bad]} are probed"
        if "refuse" in verdicts.values():
            yield "nodes are refused that only failed now and then"

    return (), check


def _run_of(
    name: str, everybody: list[Node], bad: list[Node], began_at: Seconds, chance: random.Random
) -> Iterator[NodeEvent]:
    """What a run of nine days leaves in the ledger: two failures of each bad node, six others."""

    def event(node: Node, kind: Kind, days: float, cause: str = "") -> NodeEvent:
        time = began_at + days * _DAY_S
        return NodeEvent(
            kind=kind, parts=_parts(node), host=node.host, run=name, time=time, cause=cause
        )

    for node in everybody:
        yield event(node, "probed", 0.0)
        yield event(node, "joined", 0.1)
    sound = [node for node in everybody if node not in bad]
    for number, node in enumerate((*bad, *bad, *chance.sample(sound, 6))):
        yield event(node, "failed", 0.5 + number / 2, "cuda-error")
    for node in everybody:
        yield event(node, "left", 9.0)


def _parts(node: Node) -> tuple[str, ...]:
    return tuple(sorted(node.parts))
