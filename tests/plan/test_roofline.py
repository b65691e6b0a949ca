"""What operations ask of a device, and what it gives at best."""

import pytest

from longhaul.plan.roofline import Ceilings, rows, work_of
from longhaul.plan.timeline import Operation, Timeline

DEVICE = Ceilings("invented", {"float": 1e12, "c10::BFloat16": 4e12},
                  ((1_000, 1e-6), (1_000_000, 1e-5), (100_000_000, 1e-2)))  # fmt: skip


def call(name: str, *shapes: object, kind: str = "float", seconds: float = 1e-3) -> Operation:
    return Operation(name, "forward", "", seconds, shapes, (kind,) * len(shapes))


@pytest.mark.parametrize(
    ("operation", "flops", "moved"),
    [
        (call("aten::mm", [8, 16], [16, 4]), 2 * 8 * 16 * 4, 4 * (128 + 64 + 32)),
        (call("aten::addmm", [4], [8, 16], [16, 4]), 1024, 4 * (128 + 64 + 32)),
        (call("aten::bmm", [3, 8, 16], [3, 16, 4], kind="c10::BFloat16"), 3072, 2 * 672),
        (call("mkldnn::_linear_pointwise", [2, 8, 16], [4, 16]), 2048, 4 * (256 + 64 + 64)),
        (call("aten::add", [10, 10], [10, 10]), 0, 1200),
        (call("aten::sum", [100]), 0, 400),
        (call("aten::zero_", [100]), 0, 400),
        (call("aten::view", [100]), 0, 0),
        (call("aten::cat", [[100], [50]], kind="TensorList"), 0, 1200),
    ],
)
def test_work_follows_from_shapes(operation: Operation, flops: float, moved: float) -> None:
    work = work_of(operation)
    assert (work.flops, work.bytes) == (flops, moved)


def test_a_look_up_moves_rows_however_large_the_table_is() -> None:
    small, large = (
        work_of(Operation("aten::index_select", "forward", "", 1.0, ([rows, 64], [], [32]),
                          ("float", "Scalar", "long int")))
        for rows in (100, 100_000)
    )  # fmt: skip
    assert small.bytes == large.bytes == 2 * 32 * 64 * 4


def test_adamw_reads_four_lists_and_writes_three() -> None:
    lists = ([[100], [20, 10]],) * 4
    assert work_of(call("aten::_fused_adamw_", *lists, kind="TensorList")).bytes == 7 * 4 * 300


def test_attention_computes_half_of_its_square_and_more_for_its_gradient() -> None:
    q = [2, 3, 64, 16]
    forward = work_of(call("aten::_scaled_dot_product_flash_attention_for_cpu", q, q, q))
    assert forward.flops == 4 * 2 * 3 * 64 * 64 * 16 / 2
    back = work_of(call("aten::_scaled_dot_product_flash_attention_for_cpu_backward", q, q, q, q))
    assert back.flops == 2.5 * forward.flops


def test_the_roofline_is_the_longer_of_products_and_bytes() -> None:
    bound_by_products = work_of(call("aten::mm", [1000, 1000], [1000, 1000]))
    assert DEVICE.attainable(bound_by_products) == (2e9 / 1e12, "compute")
    faster = work_of(call("aten::mm", [1000, 1000], [1000, 1000], kind="c10::BFloat16"))
    assert DEVICE.attainable(faster)[0] == pytest.approx(2e9 / 4e12)
    seconds, bound = DEVICE.attainable(work_of(call("aten::add", [50_000], [50_000])))
    assert bound == "memory"
    assert 5e-6 < seconds < 1e-5, "600 kB, by a power law between two measured copies"
    assert DEVICE.attainable(work_of(call("aten::add", [2], [2]))) == (1e-6, "launch")
    assert DEVICE.copy_s(200_000_000) == pytest.approx(2e-2)
    assert DEVICE.copy_s(1_000_000) == pytest.approx(1e-5)


def test_operations_are_gathered_by_shape_and_held_against_it() -> None:
    calls = [call("aten::mm", [1000, 1000], [1000, 1000], seconds=s) for s in (4e-3, 4e-3)]
    other = call("aten::mm", [10, 10], [10, 10], seconds=1e-3)
    first, second = rows(Timeline(2, 20e-3, {}, [other, *calls], [], False), DEVICE)
    assert (first.shapes, first.calls, first.share) == ("1000×1000 1000×1000", 1.0, 0.4)
    assert first.achieved == pytest.approx(0.5)
    assert second.calls == 0.5
