"""The order of a pipeline's passes, with threads for ranks and queues for wires."""

import threading
from collections.abc import Sequence
from queue import Queue

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longhaul.config.load import load_recipe
from longhaul.config.shrink import shrunken
from longhaul.model.initialise import build
from longhaul.parallel.pipeline import Pipe

DEADLINE_S = 20.0
Wire = Queue[torch.Tensor]


class ThreadPipe(Pipe):
    def __init__(self, stage: int, stages: int, on: list[Wire], back: list[Wire]) -> None:
        self.stage, self.stages = stage, stages
        self._on, self._back = on, back

    def exchange(
        self,
        give: torch.Tensor | None = None,
        give_back: torch.Tensor | None = None,
        take: Sequence[int] | None = None,
        take_back: Sequence[int] | None = None,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        taken, taken_back = None, None
        if not self.is_last and give is not None:
            self._on[self.stage].put(give.detach())
        if not self.is_first and give_back is not None:
            self._back[self.stage - 1].put(give_back)
        if not self.is_first and take is not None:
            taken = self._on[self.stage - 1].get(timeout=DEADLINE_S).requires_grad_()
            assert taken.shape == tuple(take)
        if not self.is_last and take_back is not None:
            taken_back = self._back[self.stage].get(timeout=DEADLINE_S)
            assert taken_back.shape == tuple(take_back)
        return taken, taken_back


def run_stages(stages: int, sizes: list[int]) -> tuple[list[list[str]], list[torch.Tensor]]:
    """What every stage did, and the gradient of each stage's factor."""
    on: list[Wire] = [Queue() for _ in range(stages)]
    back: list[Wire] = [Queue() for _ in range(stages)]
    factors = [torch.tensor(2.0 + stage, requires_grad=True) for stage in range(stages)]
    done: list[list[str]] = [[] for _ in range(stages)]

    def stage_thread(stage: int) -> None:
        pipe = ThreadPipe(stage, stages, on, back)

        def forward(number: int, given: torch.Tensor | None) -> torch.Tensor:
            done[stage].append(f"F{number}")
            x = torch.full((sizes[number],), number + 1.0) if given is None else given
            made = x * factors[stage]
            return made.sum() if pipe.is_last else made

        def backward(number: int, made: torch.Tensor, gradient: torch.Tensor | None) -> None:
            done[stage].append(f"B{number}")
            made.backward(gradient)

        pipe.run([(size,) for size in sizes], forward, backward)

    threads = [threading.Thread(target=stage_thread, args=(stage,)) for stage in range(stages)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "a stage waits for ever"
    assert all(queue.empty() for queue in (*on, *back))
    return done, [factor.grad for factor in factors]  # type: ignore[misc]


@settings(max_examples=25, deadline=None)
@given(stages=st.integers(2, 5), sizes=st.lists(st.integers(1, 3), min_size=1, max_size=8))
def test_gradients_are_those_of_one_process_whatever_the_number_of_micro_batches(
    stages: int, sizes: list[int]
) -> None:
    done, gradients = run_stages(stages, sizes)
    total = sum(size * (number + 1.0) for number, size in enumerate(sizes))
    product = float(torch.tensor([2.0 + stage for stage in range(stages)]).prod())
    for stage, gradient in enumerate(gradients):
        torch.testing.assert_close(float(gradient), total * product / (2.0 + stage))
    for stage, passes in enumerate(done):
        held = most = 0
        for one in passes:
            held += 1 if one.startswith("F") else -1
            most = max(most, held)
        assert held == 0
        assert most <= stages - stage, "more activations are kept than 1F1B allows"


def test_the_last_stage_goes_forward_and_back_in_turn() -> None:
    done, _ = run_stages(2, [1, 1, 1])
    assert done[1] == ["F0", "B0", "F1", "B1", "F2", "B2"]
    assert done[0] == ["F0", "F1", "B0", "F2", "B1", "B2"]


def test_a_stage_keeps_the_names_of_its_weights() -> None:
    from unittest import mock

    from longhaul.parallel import pipeline

    twin = shrunken(load_recipe("opt-125m").recipe)
    settings = load_recipe("opt-125m", twin).recipe.model
    whole = {name for name, _ in build(settings, 131, 1).named_parameters()}
    found: list[set[str]] = []
    for stage in range(2):
        model = build(settings, 131, 1)
        pipe = ThreadPipe(stage, 2, [], [])
        with mock.patch.object(pipeline, "Pipe", lambda *_, pipe=pipe: pipe):
            pipeline.take_stage(model, None, 1, torch.device("cpu"))  # type: ignore[arg-type]
        found.append({name for name, _ in model.named_parameters()})
    assert found[0] | found[1] == whole
    assert found[0] & found[1] == {"tokens.weight"}, "a tied head needs its table at both ends"
