"""The order of a pipeline's passes, with threads for ranks and queues for wires."""

import threading
from collections import deque
from collections.abc import Sequence
from queue import Queue

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longhaul.config.load import load_recipe
from longhaul.config.size import shrunken
from longhaul.model.initialise import build
from longhaul.parallel.pipeline import Pass, Pipe, Wait, take_stages

DEADLINE_S = 20.0
Wire = Queue[torch.Tensor]


class ThreadPipe(Pipe):
    def __init__(
        self, rank: int, ranks: int, each: int, wires: dict[tuple[int, int], Wire]
    ) -> None:
        self.rank, self.ranks, self.stages_per_rank = rank, ranks, each
        self._device, self._dtype = torch.device("cpu"), torch.float32
        self._wires = wires

    def post(
        self, give: tuple[int, torch.Tensor] | None, takes: Sequence[tuple[int, torch.Tensor]]
    ) -> tuple[list[Wait], Wait]:
        if give is not None:
            self._wires[self.rank, give[0]].put(give[1].detach().clone())

        def wait_for(rank: int, empty: torch.Tensor) -> None:
            taken = self._wires[rank, self.rank].get(timeout=DEADLINE_S)
            assert taken.shape == empty.shape
            empty.copy_(taken)

        # As gloo does, in the order in which they were asked for, whoever is waited for first.
        waiting: dict[int, deque[Wait]] = self.__dict__.setdefault("waiting", {})
        waits = []
        for rank, empty in takes:
            queue = waiting.setdefault(rank, deque())
            done = threading.Event()

            def fill(rank: int = rank, empty: torch.Tensor = empty, done=done) -> None:
                wait_for(rank, empty)
                done.set()

            queue.append(fill)

            def wait(queue: deque[Wait] = queue, done=done) -> None:
                while not done.is_set():
                    queue.popleft()()

            waits.append(wait)
        return waits, lambda: None


def run_stages(
    ranks: int, sizes: list[int], each: int = 1
) -> tuple[list[list[str]], list[torch.Tensor]]:
    """What every rank did, and the gradient of each stage's factor."""
    wires: dict[tuple[int, int], Wire] = {
        (a, b): Queue() for a in range(ranks) for b in range(ranks)
    }
    stages = ranks * each
    factors = [torch.tensor(2.0 + stage, requires_grad=True) for stage in range(stages)]
    done: list[list[str]] = [[] for _ in range(ranks)]

    def rank_thread(rank: int) -> None:
        pipe = ThreadPipe(rank, ranks, each, wires)

        def forward(one: Pass, given: torch.Tensor | None) -> torch.Tensor:
            done[rank].append(f"F{one.number}")
            x = torch.full((sizes[one.number],), one.number + 1.0) if given is None else given
            made = x * factors[one.stage]
            return made.sum() if one.stage == stages - 1 else made

        def backward(one: Pass, made: torch.Tensor, gradient: torch.Tensor | None) -> None:
            done[rank].append(f"B{one.number}")
            made.backward(gradient)

        pipe.run([(size,) for size in sizes], forward, backward)

    threads = [threading.Thread(target=rank_thread, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "a rank waits for ever"
    assert all(queue.empty() for queue in wires.values())
    return done, [factor.grad for factor in factors]  # type: ignore[misc]


@settings(max_examples=25, deadline=None)
@given(
    ranks=st.integers(2, 4),
    each=st.integers(1, 3),
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=8),
)
def test_gradients_are_those_of_one_process_whatever_the_number_of_micro_batches(
    ranks: int, each: int, sizes: list[int]
) -> None:
    done, gradients = run_stages(ranks, sizes, each)
    total = sum(size * (number + 1.0) for number, size in enumerate(sizes))
    product = float(torch.tensor([2.0 + stage for stage in range(ranks * each)]).prod())
    for stage, gradient in enumerate(gradients):
        torch.testing.assert_close(
            float(gradient), total * product / (2.0 + stage), rtol=1e-6, atol=0
        )
    for rank, passes in enumerate(done):
        held = most = 0
        for one in passes:
            held += 1 if one.startswith("F") else -1
            most = max(most, held)
        assert held == 0
        if each == 1:
            assert most <= ranks - rank, "more activations are kept than 1F1B allows"


def test_the_last_stage_goes_forward_and_back_in_turn() -> None:
    done, _ = run_stages(2, [1, 1, 1])
    assert done[1] == ["F0", "B0", "F1", "B1", "F2", "B2"]
    assert done[0] == ["F0", "F1", "B0", "F2", "B1", "B2"]


@pytest.mark.parametrize("each", [1, 2])
def test_a_rank_keeps_the_names_of_its_weights(each: int) -> None:
    twin = [*shrunken(load_recipe("opt-125m").recipe), "model.layers=4"]
    settings = load_recipe("opt-125m", twin).recipe.model
    whole = {name for name, _ in build(settings, 131, 1).named_parameters()}
    found: list[set[str]] = []
    for rank in range(2):
        model = build(settings, 131, 1)
        take_stages(model, ThreadPipe(rank, 2, each, {}), 1)
        found.append({name for name, _ in model.named_parameters()})
    assert found[0] | found[1] == whole
    assert found[0] & found[1] == {"tokens.weight"}, "a tied head needs its table at both ends"


@pytest.mark.parametrize("each", [1, 2])
def test_without_gradients_every_rank_has_the_loss_of_the_whole_model(each: int) -> None:
    twin = [*shrunken(load_recipe("opt-125m").recipe), "model.layers=4", "model.dropout=0.0"]
    settings = load_recipe("opt-125m", twin).recipe.model
    tokens_BT = torch.arange(24).view(2, 12)
    # A limit that bites: stages must know it too.
    models = [build(settings, 131, 1).eval() for _ in range(3)]
    for model in models:
        model.residual_clamp = 0.002
    with torch.no_grad():
        expected = models[2](tokens_BT, tokens_BT)
    wires: dict[tuple[int, int], Wire] = {(a, b): Queue() for a in range(2) for b in range(2)}
    told: Wire = Queue()
    losses: list[torch.Tensor] = []

    class Told(ThreadPipe):
        def tell_loss(self, loss: torch.Tensor | None) -> torch.Tensor:
            if loss is not None:
                told.put(loss)
            return told.get(timeout=DEADLINE_S) if loss is None else loss

    @torch.no_grad()
    def run(rank: int) -> None:
        staged = take_stages(models[rank], Told(rank, 2, each, wires), 1)
        losses.append(staged(tokens_BT, tokens_BT))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert [float(loss) for loss in losses] == [float(expected)] * 2
