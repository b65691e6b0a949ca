"""Preflight without its processes: order, time, verdict, and the checks that are arithmetic."""

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from longhaul.config.load import load_recipe
from longhaul.core.errors import DataError, ExitCode, NeedsPerson, RecipeError, UsageError
from longhaul.parallel.layout import layout_for
from longhaul.run.preflight.context import (
    Check,
    Preflight,
    PreflightContext,
    failed,
    judged,
    skipped,
    small_world,
)
from longhaul.run.preflight.data import check_data
from longhaul.run.preflight.layouts import cases_of
from longhaul.run.preflight.preflight import STAGES, Stage, preflight, verdict
from longhaul.run.preflight.storage import check_disk, check_remote, checkpoints_kept

MakeGround = Callable[..., PreflightContext]


@pytest.fixture
def make_ground(tmp_path: Path) -> MakeGround:
    def make(
        name: str = "quickstart", *options: str, data: str | None = None, **more: Any
    ) -> PreflightContext:
        recipe = load_recipe(name, options, data).recipe
        room = tmp_path / "room"
        room.mkdir(exist_ok=True)
        typed = Preflight(
            name, options, runs=tmp_path / "runs", prepared=tmp_path / "prepared",
            device_bytes=more.pop("device_bytes", None), full=more.pop("full", False),
        )  # fmt: skip
        values = {"world": 1, "processes": small_world(recipe, None)}
        return PreflightContext(typed, recipe, room, **values | more)

    return make


def fine(context: PreflightContext) -> Iterator[Check]:
    yield judged("fine", "all is well")


def run(tmp_path: Path, *stages: Stage, minutes: float = 2.0) -> list[Check]:
    typed = Preflight("quickstart", minutes=minutes, runs=tmp_path, prepared=tmp_path)
    return preflight(typed, lambda _: None, stages)


# The verdict.


def test_all_is_well() -> None:
    code, sentence = verdict([judged("disk", "room"), skipped("remote", "none")])
    assert (code, sentence) == (ExitCode.FINISHED, "ready")


def test_a_fault_is_named_and_a_person_must_look() -> None:
    code, sentence = verdict([judged("memory", "too much", "cut it"), judged("disk", "room")])
    assert code == ExitCode.NEEDS_PERSON
    assert "not ready" in sentence
    assert "memory" in sentence


def test_data_alone_that_is_wrong_has_its_own_exit_code() -> None:
    wrong = failed("data", DataError("no such address", "check it"))
    assert verdict([wrong])[0] == ExitCode.DATA_WRONG
    assert verdict([wrong, judged("memory", "too much", "cut it")])[0] == ExitCode.NEEDS_PERSON


def test_what_had_no_time_is_no_fault_but_is_named() -> None:
    code, sentence = verdict([judged("disk", "room"), skipped("resume", "no time", time=True)])
    assert code == ExitCode.FINISHED
    assert "resume" in sentence
    assert sentence != "ready"


# Order and time.


def test_what_does_not_fit_the_time_is_left_out_by_name(tmp_path: Path) -> None:
    made = run(tmp_path, Stage("long", fine, 1000.0), Stage("short", fine, 1.0), minutes=1.0)
    assert [(c.name, c.verdict) for c in made] == [("long", "skipped"), ("fine", "ok")]


def test_a_loaded_machine_leaves_more_out(tmp_path: Path) -> None:
    def slow(context: PreflightContext) -> Iterator[Check]:
        time.sleep(0.3)
        yield judged("slow", "took thirty times as long as it should")

    made = run(tmp_path, Stage("slow", slow, 0.01), Stage("later", fine, 5.0), minutes=1.0)
    assert [(c.name, c.verdict) for c in made] == [("slow", "ok"), ("later", "skipped")]


def test_what_stands_on_a_broken_check_is_left_out(tmp_path: Path) -> None:
    def broken(context: PreflightContext) -> Iterator[Check]:
        yield judged("first half", "well")
        raise NeedsPerson("the small twin ended with exit code 1", "look at its log")

    stages = Stage("run", broken, 1), Stage("resume", fine, 1, after="run"), Stage("disk", fine, 1)
    made = run(tmp_path, *stages)
    assert [(c.name, c.verdict) for c in made] == [
        ("first half", "ok"), ("run", "failed"), ("resume", "skipped"), ("fine", "ok")
    ]  # fmt: skip
    assert made[1].remedy == "look at its log"


def test_what_nobody_foresaw_is_a_fault_and_the_rest_goes_on(tmp_path: Path) -> None:
    def crash(context: PreflightContext) -> Iterator[Check]:
        raise RuntimeError("no kernel for this\nand a long story")
        yield judged("never", "")

    made = run(tmp_path, Stage("kernel", crash, 1), Stage("later", fine, 1, after="kernel"))
    assert [(c.name, c.verdict) for c in made] == [("kernel", "failed"), ("later", "skipped")]
    assert made[0].figure == "RuntimeError: no kernel for this"


def test_every_line_has_its_own_seconds(tmp_path: Path) -> None:
    def twice(context: PreflightContext) -> Iterator[Check]:
        time.sleep(0.05)
        yield judged("one", "")
        time.sleep(0.05)
        yield judged("two", "")

    began = time.monotonic()
    one, two = run(tmp_path, Stage("both", twice, 1))
    assert min(one.seconds, two.seconds) >= 0.05
    assert one.seconds + two.seconds <= time.monotonic() - began


def test_the_room_is_gone_afterwards_unless_it_is_kept(tmp_path: Path) -> None:
    rooms = []

    def look(context: PreflightContext) -> Iterator[Check]:
        rooms.append(context.folder)
        (context.folder / "something").write_text("left")
        yield judged("look", "")

    run(tmp_path, Stage("look", look, 1))
    assert not rooms[0].exists()
    kept = tmp_path / "kept"
    preflight(Preflight("quickstart", keep=kept), lambda _: None, [Stage("look", look, 1)])
    assert (kept / "something").exists()
    with pytest.raises(UsageError, match="not an empty folder"):
        preflight(Preflight("quickstart", keep=kept), lambda _: None, [])


def test_mistakes_are_told_before_anything_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecipeError, match="not among those shipped"):
        preflight(Preflight("quickstrat"), lambda _: None)
    with pytest.raises(RecipeError, match="do not divide 3 processes"):
        preflight(Preflight("quickstart", ("parallel.tensor=2",), world=3), lambda _: None)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(UsageError, match="one of several processes"):
        preflight(Preflight("quickstart"), lambda _: None)


def test_stages_stand_only_on_earlier_ones() -> None:
    seen = {""}
    for stage in STAGES:
        assert stage.after in seen
        seen.add(stage.name)


# The twin.


@pytest.mark.parametrize(
    ("asked", "ways"),
    [
        ((), (1, 1, 1, 1)),
        (("parallel.tensor=8", "parallel.shard=124"), (1, 2, 2, 1)),
        (("parallel.replicate=4", "parallel.shard=8"), (2, 2, 1, 1)),
        (("parallel.pipeline=4", "batch.micro_sequences=4"), (1, 1, 1, 2)),
        (("parallel.tensor=8", "parallel.pipeline=4", "parallel.shard=16",
          "batch.micro_sequences=1"), (1, 1, 2, 2)),
        (("machine.processes=2",), (1, 2, 1, 1)),
        (("parallel.replicate=8",), (2, 1, 1, 1)),
    ],
)  # fmt: skip
def test_a_layout_of_a_thousand_is_tried_two_wide(
    make_ground: MakeGround, asked: tuple[str, ...], ways: tuple[int, ...]
) -> None:
    name = "opt-175b" if asked else "quickstart"
    if any("pipeline" in option for option in asked):
        asked = (*asked, "machine.compile=false")
    context = make_ground(name, *asked)
    parallel = context.twin().parallel
    layout = layout_for(parallel, context.processes)
    assert (layout.replicate, layout.shard, layout.tensor, layout.pipeline) == ways
    assert context.twin().machine.processes == layout.size


def test_the_twin_touches_nothing_beyond_the_room(make_ground: MakeGround) -> None:
    context = make_ground(
        "quickstart", "checkpoint.remote='s3://bucket/runs'", "checkpoint.keep_last=3",
        "supervise.replace_command='order-a-node'", "supervise.node_ledger='/shared/nodes'",
        "supervise.node=[{name='a', command=['ssh','a']}, {name='b', command=['ssh','b']}]",
        "supervise.deadline_s=40.0", "machine.processes=2",
    )  # fmt: skip
    twin = context.twin()
    assert twin.checkpoint.remote == ()
    assert twin.supervise.node == ()
    assert twin.supervise.node_ledger is None
    assert twin.supervise.replace_command is None
    assert (twin.checkpoint.keep_last, twin.supervise.deadline_s) == (3, 40.0)
    assert all(Path(source.path).is_relative_to(context.folder) for source in twin.data.sources)


def test_the_twin_keeps_the_switches_that_are_asked_for(make_ground: MakeGround) -> None:
    twin = make_ground("opt-125m", "optim.name=lamb", "model.layers=48", "model.z_loss=1e-4").twin()
    assert (twin.optim.name, twin.model.z_loss, twin.model.layers) == ("lamb", 1e-4, 4)


def test_layouts_that_a_recipe_cannot_have_are_named(make_ground: MakeGround) -> None:
    cases, refused = cases_of(make_ground("speedrun-124m"))
    assert {str(case.layout) for case in cases} == {"replicate 2", "shard 2", "tensor 2"}
    assert [layout for layout, _ in refused] == ["pipeline 2"]
    assert "unet_skips" in refused[0][1]


@pytest.mark.parametrize("name", ["llama-1b", "yalm-stable"])
def test_what_the_recipe_can_share_its_twin_can_share_too(
    make_ground: MakeGround, name: str
) -> None:
    """The twin of grouped queries has one head of keys, and yalm-stable's an odd inner width."""
    cases, refused = cases_of(make_ground(name))
    assert "tensor 2" in {str(case.layout) for case in cases}
    assert not refused


def test_a_layout_of_its_own_is_compared_in_its_own_numbers_too(make_ground: MakeGround) -> None:
    context = make_ground("llama-1b", "parallel.tensor=2", "parallel.shard=2")
    own = [(case.numbers, case.layout.size) for case in cases_of(context)[0] if case.is_own]
    assert own == [("float32", 4), ("half", 4)]


# Data.


def test_a_text_is_looked_at_and_its_beginning_kept(
    make_ground: MakeGround, tmp_path: Path
) -> None:
    text = tmp_path / "corpus.jsonl"
    escaped = "\\\\n".join(f"line {number} of it" for number in range(40))
    text.write_text("".join(f'{{"text": "{escaped} {number}"}}\n' for number in range(1000)))
    context = make_ground(data=str(text))
    (check,) = check_data(context)
    assert check.verdict == "ok"
    assert "escaped line ends" in check.data["signs"]
    assert context.sample_of(0).stat().st_size > 100_000


def test_a_file_that_is_not_there_ends_it_at_once(make_ground: MakeGround) -> None:
    with pytest.raises(DataError, match="no such file"):
        list(check_data(make_ground(data="nowhere.txt")))


def test_an_address_that_does_not_answer_is_a_fault_and_the_rest_goes_on(
    make_ground: MakeGround,
) -> None:
    context = make_ground(data="http://127.0.0.1:9/corpus.txt")
    (check,) = check_data(context)
    assert (check.verdict, check.code) == ("failed", ExitCode.DATA_WRONG)
    assert check.remedy
    assert context.sample_of(0).stat().st_size > 100_000


def test_too_much_that_is_broken_is_told_as_the_run_would(
    make_ground: MakeGround, tmp_path: Path
) -> None:
    text = tmp_path / "corpus.jsonl"
    text.write_text('{"text": "a line"}\nnot JSON\n' * 100)
    with pytest.raises(DataError, match="are broken"):
        list(check_data(make_ground(data=str(text))))


def test_stand_ins_of_several_sources_are_different_texts(make_ground: MakeGround) -> None:
    sources = (
        "[{name='a', path='http://127.0.0.1:9/a.txt'}, {name='b', path='http://127.0.0.1:9/b.txt'}]"
    )
    context = make_ground("quickstart", f"data.sources={sources}")
    list(check_data(context))
    first, second = (set(context.sample_of(number).read_text().splitlines()) for number in (0, 1))
    assert first
    assert second
    # But for a few documents that the library has twice.
    assert len(first & second) < len(first) / 10


# Storage.


def test_a_disk_that_is_too_small_is_told(
    make_ground: MakeGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = make_ground("llama-1b")
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100 * 10**9))
    disk, speed = check_disk(context)
    assert disk.verdict == "failed"
    assert "keep_every" in disk.remedy
    assert speed.data["save_s"] > 0
    enough = make_ground("llama-1b", "checkpoint.keep_every=0")
    assert next(iter(check_disk(enough))).verdict == "ok"


def test_nothing_stays_where_writing_was_tried_out(make_ground: MakeGround, tmp_path: Path) -> None:
    context = make_ground()
    before = set(tmp_path.rglob("*"))
    list(check_disk(context))
    assert set(tmp_path.rglob("*")) == before


def test_what_retention_keeps_is_counted() -> None:
    settings = load_recipe("quickstart", ("checkpoint.keep_every=100",)).recipe.checkpoint
    assert checkpoints_kept(settings, 1000) - checkpoints_kept(settings, 0) == 10


def test_a_remote_place_is_tried_out_and_left_as_it_was(
    make_ground: MakeGround, tmp_path: Path
) -> None:
    remote = tmp_path / "remote"
    remote.mkdir()
    (check,) = check_remote(make_ground("quickstart", f"checkpoint.remote='{remote}'"))
    assert check.verdict == "ok"
    assert list(remote.iterdir()) == []


def test_a_remote_place_that_refuses_is_a_fault(make_ground: MakeGround, tmp_path: Path) -> None:
    (tmp_path / "a-file").write_text("no folder")
    options = f"checkpoint.remote='{tmp_path / 'a-file'}'"
    (check,) = check_remote(make_ground("quickstart", options))
    assert check.verdict == "failed"


def test_no_remote_place_is_said_and_no_fault(make_ground: MakeGround) -> None:
    (check,) = check_remote(make_ground())
    assert check.verdict == "skipped"


# What torch computes.


def test_memory_is_held_against_the_device_that_is_meant(make_ground: MakeGround) -> None:
    from longhaul.run.preflight.memory import check_memory

    context = make_ground("llama-1b", world=8, device_bytes=80 * 10**9)
    fits, evaluation, validated = check_memory(context)
    assert {fits.verdict, evaluation.verdict, validated.verdict} == {"ok"}
    too_small = replace(context, typed=replace(context.typed, device_bytes=16 * 10**9))
    small, _, _ = check_memory(too_small)
    assert small.verdict == "failed"
    assert "activations" in small.remedy


def test_what_the_first_evaluation_takes_is_told(make_ground: MakeGround) -> None:
    from longhaul.run.preflight.memory import check_memory

    context = make_ground("overnight-3090", device_bytes=24 * 10**9)
    _, evaluation, _ = check_memory(context)
    assert (evaluation.name, evaluation.verdict) == ("first evaluation", "ok")
    assert evaluation.figure.startswith("at step 125: 8 sequences of 2,048 at once, ")
    # Its logits alone would have taken 33 GB with 32 at once.
    assert evaluation.data["total"] < 6e9
    _, evaluation, _ = check_memory(
        replace(context, typed=replace(context.typed, device_bytes=10**9))
    )
    assert evaluation.verdict == "failed"


def test_a_model_that_cannot_learn_is_told(make_ground: MakeGround) -> None:
    from longhaul.run.preflight.memory import check_learning

    (fine,) = check_learning(make_ground())
    assert fine.verdict == "ok"
    frozen = make_ground("quickstart", "optim.lr_factors={matrix=0.0, embedding=0.0, head=0.0}")
    (check,) = check_learning(frozen)
    assert check.verdict == "failed"
    assert "lr_factors" in check.remedy


def test_a_recipe_that_cannot_be_compiled_here_is_told(
    make_ground: MakeGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    from longhaul.run.preflight.memory import check_compiler

    monkeypatch.setattr(shutil, "which", lambda name: None)
    (fine,) = check_compiler(make_ground())
    assert fine.verdict == "ok"
    compiled = make_ground("quickstart", "machine.compile=true", 'machine.device="cpu"')
    with pytest.raises(RecipeError, match=r"lacks a C\+\+ compiler"):
        list(check_compiler(compiled))
    (elsewhere,) = check_compiler(
        replace(compiled, typed=replace(compiled.typed, device_bytes=10**9))
    )
    assert elsewhere.verdict == "skipped"
