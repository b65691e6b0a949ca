"""Which parts of an invented step cost more than their work, and what is said of it."""

from dataclasses import replace

import pytest

from longhaul.plan.roofline import Ceilings
from longhaul.plan.surprises import Seen, Surprise, parts, surprises, undisturbed_s
from longhaul.plan.timeline import STAGES, HostWait, Operation, Timeline

DEVICE = Ceilings("invented", {"float": 1e12}, ((1_000, 1e-6), (1_000_000_000, 0.01)))
SHAPES = ([1000, 1000], [1000, 1000])
"""Of a product that takes 2 ms at best."""


def product(module: str, milliseconds: float, stage: str = "forward") -> Operation:
    return Operation("aten::mm", stage, module, milliseconds / 1e3, SHAPES, ("float", "float"))


def step(*operations: Operation, on_device: bool = False, **stages: float) -> Timeline:
    """One step of 100 ms."""
    own = dict.fromkeys(STAGES, 0.0) | {name: ms / 1e3 for name, ms in stages.items()}
    return Timeline(1, 0.1, own, operations, [], on_device)


def found(timeline: Timeline, seen: Seen | None = None) -> list[Surprise]:
    seen = seen or Seen()
    step_s = undisturbed_s(timeline, seen)
    return surprises(timeline, parts(timeline, DEVICE, seen), step_s, DEVICE, seen)


HEALTHY = [product("blocks.0.mlp", 10), product("blocks.1.mlp", 10), product("head", 11)]


def test_parts_that_keep_one_pace_surprise_nobody() -> None:
    assert found(step(*HEALTHY)) == []


def test_the_embedding_that_eats_half_of_the_step_is_named() -> None:
    table = [product("tokens", 24), product("tokens", 24, "backward")]
    (one,) = found(step(*HEALTHY, *table), Seen(table_bytes={"tokens": 40_000}))
    assert (one.kind, one.subject) == ("module", "tokens")
    assert "look-up table `tokens` takes 48% of the step (48 ms)" in one.sentence
    assert "its work, 40 kB of rows, explains 0.1%" in one.sentence
    assert "one-hot" in one.remedy
    assert 0.04 < one.seconds < 0.048


def test_a_dense_gradient_of_a_table_has_another_remedy() -> None:
    dense = Operation("aten::embedding_dense_backward", "backward", "tokens", 0.04,
                      ([100_000, 64], [100_000]), ("float", "long int"))  # fmt: skip
    (one,) = found(step(*HEALTHY, dense), Seen(table_bytes={"tokens": 40_000}))
    assert "as large as the whole table" in one.remedy


def test_layers_are_taken_together() -> None:
    slow = [product(f"blocks.{layer}.attention", 8) for layer in range(6)]
    quick = [replace(one, module=f"blocks.{n}.mlp", seconds=0.003) for n, one in enumerate(slow)]
    (one,) = found(step(*slow, *quick))
    assert one.subject == "blocks.*.attention"
    assert one.seconds == pytest.approx(0.048 - 0.018)


def test_a_read_by_the_host_is_named_with_its_line_and_its_price() -> None:
    waits = [HostWait("step.py:7 (item)", "forward", 0.010)] * 2
    on_gpu = replace(step(*HEALTHY, on_device=True), waits=waits)
    (one,) = found(on_gpu)
    assert one.kind == "host wait"
    assert one.seconds == pytest.approx(0.020)
    assert "2 times a step at step.py:7 (item), in the forward stage" in one.sentence
    assert "idles 20 ms" in one.sentence
    (here,) = found(replace(on_gpu, on_device=False))
    assert "a GPU would run dry each time" in here.sentence


def test_a_loader_that_the_step_waits_for_is_named() -> None:
    (one,) = found(step(*HEALTHY, data=30))
    assert (one.kind, one.seconds) == ("data", 0.03)
    assert "waits for its batch: 30% of the step (30 ms)" in one.sentence
    assert found(step(*HEALTHY, data=1)) == []


def test_what_watching_adds_is_no_surprise() -> None:
    timeline = step(*HEALTHY, idle=40)
    (one,) = found(timeline)
    assert (one.kind, one.seconds) == ("idle", 0.04)
    assert "machine.compile=true" in one.remedy
    assert "compile" not in found(timeline, Seen(compiled=True))[0].remedy
    (less,) = found(timeline, Seen(overhead_s=0.025))
    assert less.seconds == pytest.approx(0.015)
    assert found(timeline, Seen(overhead_s=0.035)) == []
    (device,) = found(replace(timeline, on_device=True), Seen(overhead_s=0.035))
    assert device.seconds == 0.04, "a device's gaps are measured on the device"
    assert "the device waits for the host" in device.sentence


def test_small_operations_are_one_surprise_and_none_of_their_modules() -> None:
    small = [Operation("aten::add", "forward", "norm", 1e-4, ([4],), ("float",))] * 300
    (one,) = found(step(*HEALTHY, *small))
    assert one.kind == "small operations"
    assert "300 operations a step are too small" in one.sentence
    assert "100 µs each" in one.sentence


def test_copies_are_named_with_the_part_that_makes_most_of_them() -> None:
    copy = Operation("aten::copy_", "forward", "blocks.3.attention", 0.008,
                     ([4_000_000], [4_000_000]), ("float", "float"))  # fmt: skip
    kinds = {one.kind: one for one in found(step(*HEALTHY, copy, copy))}
    assert "100% in `blocks.*.attention`" in kinds["copies"].sentence


def test_the_most_expensive_comes_first() -> None:
    stages = {"data": 10, "idle": 30, "communication": 20, "monitors": 5}
    assert [one.kind for one in found(step(*HEALTHY, **stages))] == [
        "idle", "communication", "data", "monitors",
    ]  # fmt: skip


def test_on_a_busy_machine_parts_are_held_against_the_threads_own_time() -> None:
    table = product("tokens", 3)
    quick = [replace(one, seconds=one.seconds / 3) for one in HEALTHY]
    timeline, needs = step(*quick, table, idle=80), {"tokens": 40_000}
    assert "tokens" not in [one.subject for one in found(timeline, Seen(table_bytes=needs))]
    (one,) = found(timeline, Seen(own_s=0.014, table_bytes=needs))
    assert "takes 21% of the step (3 ms)" in one.sentence
    (one,) = found(timeline, Seen(own_s=0.001, table_bytes=needs))
    assert "takes 23% of the step (3 ms)" in one.sentence, "no part is more than all together"
