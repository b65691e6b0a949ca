"""Invented traces of a CPU and of a GPU, sorted out."""

import pytest

from invented_trace import Event, kernel, launch, module, op, span, stage
from longhaul.plan.timeline import STAGES, WAIT, timeline

NODE = "autograd::engine::evaluate_function: "
# One step of 100 ms: data 11, forward 30 (of which 10 between operations), backward 40, ...
ON_CPU = [
    stage("data", 0, 11), stage("forward", 11, 41),
    module("model", 11, 41), module("tokens", 12, 22),
    op("aten::embedding", 12, 22, [9, 4], [2], Sequence_number=5),
    module("blocks.0.mlp", 22, 40), op("aten::linear", 30, 40, [2, 4], [4, 4], Sequence_number=6),
    op("aten::mm", 31, 39, [2, 4], [4, 4], Sequence_number=6),
    stage("backward", 41, 81),
    op(f"{NODE}MmBackward0", 41, 51, Sequence_number=6, Fwd_thread_id=1),
    op("aten::mm", 42, 51, [4, 2], [2, 4]),
    op(f"{NODE}EmbeddingBackward0", 51, 71, Sequence_number=5, Fwd_thread_id=1),
    op("aten::embedding_dense_backward", 52, 71, [2, 4], [2]),
    op(f"{NODE}torch::autograd::AccumulateGrad", 71, 81),
    stage("optimizer", 81, 91), op("aten::_fused_adamw_", 82, 91),
    stage("monitors", 91, 100), op("aten::stack", 92, 93),
]  # fmt: skip


def ms(seconds: float) -> float:
    return round(1e3 * seconds, 6)


def test_stages_of_a_cpu_add_up_and_what_no_operation_covers_is_idle() -> None:
    found = timeline(ON_CPU)
    assert (found.steps, ms(found.seconds), found.on_device) == (1, 100, False)
    assert {name: ms(seconds) for name, seconds in found.stages.items()} == {
        "forward": 20, "backward": 40, "optimizer": 9, "data": 11, "communication": 0,
        "monitors": 9, "idle": 11,
    }  # fmt: skip
    assert sum(found.stages.values()) == pytest.approx(found.seconds)


def test_operations_have_their_own_time_and_gradients_the_module_of_their_operation() -> None:
    found = {(o.name, o.stage): o for o in timeline(ON_CPU).operations}
    assert ms(found["aten::linear", "forward"].seconds) == 2
    assert found["aten::mm", "forward"].shapes == ([2, 4], [4, 4])
    modules = {key: operation.module for key, operation in found.items()}
    assert modules["aten::embedding", "forward"] == "tokens"
    assert modules["aten::embedding_dense_backward", "backward"] == "tokens"
    assert modules["aten::mm", "backward"] == "blocks.0.mlp"
    assert modules[f"{NODE}torch::autograd::AccumulateGrad", "backward"] == "tokens"
    assert modules["aten::_fused_adamw_", "optimizer"] == ""


def test_a_call_that_was_interrupted_counts_as_much_as_its_like() -> None:
    calls = [op("aten::add", 12 + n, 12.1 + n, [4]) for n in range(9)]
    found = timeline([stage("data", 0, 1), stage("forward", 1, 90), *calls,
                      op("aten::add", 30, 80, [4])])  # fmt: skip
    assert ms(max(o.seconds for o in found.operations)) == pytest.approx(0.3)
    assert ms(found.stages["forward"]) == pytest.approx(50.9), "a stage is wall time"


def test_reads_of_the_host_have_their_line_or_their_module() -> None:
    events = [
        *ON_CPU,
        span("user_annotation", f"{WAIT}mine.py:3 (item)", 23, 25), op("aten::item", 24, 24.5),
        op("aten::nonzero", 26, 27, [4]),
        span("user_annotation", f"{WAIT}drain.py:9 (tolist)", 95, 96),  # between steps: as meant
        op("aten::item", 85, 86),  # torch's own, within the fused update
    ]  # fmt: skip
    found = {wait.where: wait for wait in timeline(events).waits}
    assert set(found) == {"mine.py:3 (item)", "aten::nonzero in blocks.0.mlp"}
    assert ms(found["mine.py:3 (item)"].seconds) == pytest.approx(0.5)
    assert found["mine.py:3 (item)"].stage == "forward"


def on_gpu() -> list[Event]:
    """The host queues 20 ms of work in 6 ms; its thread of gradients is another one."""
    return [
        stage("data", 0, 2), stage("forward", 2, 4),
        module("tokens", 2, 3), op("aten::mm", 2, 3, [64, 64], [64, 64], Sequence_number=1),
        launch(2.5, 1), stage("backward", 4, 6),
        op(f"{NODE}MmBackward0", 4, 5, thread=2, Sequence_number=1, Fwd_thread_id=1),
        op("aten::mm", 4.1, 4.9, [64, 64], [64, 64], thread=2), launch(4.5, 2, thread=2),
        op("c10d::allreduce_", 5.1, 5.4, thread=2), launch(5.2, 3, thread=2),
        stage("optimizer", 6, 8), launch(7, 4), stage("monitors", 8, 30),
        kernel("gemm<float>", 3, 8, 1), kernel("gemm<float>", 8, 14, 2),
        kernel("ncclDevKernel_AllReduce", 12, 18, 3, stream=9),
        kernel("multi_tensor_apply", 19, 23, 4),
    ]  # fmt: skip


def test_kernels_belong_to_the_stage_and_module_that_launched_them() -> None:
    found = timeline(on_gpu())
    assert found.on_device
    assert {name: ms(seconds) for name, seconds in found.stages.items()} == {
        "forward": 5, "backward": 6, "optimizer": 4, "data": 2,
        "communication": 4,  # what the product beside it does not hide
        "monitors": 8, "idle": 1,
    }  # fmt: skip
    assert set(found.stages) == set(STAGES)
    products = [o for o in found.operations if o.name == "aten::mm"]
    assert [(o.stage, o.module, ms(o.seconds)) for o in products] == [
        ("forward", "tokens", 5), ("backward", "tokens", 6),
    ]  # fmt: skip


def test_a_read_costs_a_gpu_the_time_until_it_has_work_again() -> None:
    events = [
        stage("data", 0, 1), stage("forward", 1, 40),
        op("aten::mm", 1, 2, [8, 8], [8, 8]), launch(1.5, 1), kernel("gemm", 2, 10, 1),
        span("user_annotation", f"{WAIT}step.py:40 (item)", 3, 10.5),
        span("cuda_runtime", "cudaStreamSynchronize", 4, 10.4),
        op("aten::mm", 13, 14, [8, 8], [8, 8]), launch(13.5, 2), kernel("gemm", 14, 20, 2),
        op("aten::masked_select", 15, 21, [8]),
        span("cuda_runtime", "cudaStreamSynchronize", 16, 20.5),
        launch(21.5, 3), kernel("add", 22, 40, 3),
    ]  # fmt: skip
    found = [(wait.where, ms(wait.seconds)) for wait in timeline(events).waits]
    assert found == [("step.py:40 (item)", 4), ("aten::masked_select", 2)]


def test_a_trace_of_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match="no stage"):
        timeline([op("aten::mm", 0, 1)])
