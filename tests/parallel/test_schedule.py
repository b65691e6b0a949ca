"""The order of a pipeline's passes: torch's own is the reference where it has one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.pipelining import schedules

from longhaul.parallel.pipeline import Pass, layers_of, timetable


def passes_of(rank: int, ranks: int, stages_per_rank: int, micro_batches: int) -> list[Pass]:
    ticks = timetable(ranks, stages_per_rank, micro_batches)
    return [one for tick in ticks if (one := tick[rank]) is not None]


@settings(max_examples=60, deadline=None)
@given(ranks=st.integers(2, 6), each=st.integers(1, 4), micro_batches=st.integers(1, 20))
def test_every_pass_is_made_once_after_what_it_reads(
    ranks: int, each: int, micro_batches: int
) -> None:
    stages = ranks * each
    at = {
        one: (number, rank)
        for number, tick in enumerate(timetable(ranks, each, micro_batches))
        for rank, one in enumerate(tick)
        if one is not None
    }
    assert len(at) == 2 * stages * micro_batches
    for one, (number, rank) in at.items():
        assert rank == one.stage % ranks
        reader = one.follows(stages)
        if reader is not None:
            assert at[reader][0] > number
        if not one.is_forward:
            assert at[Pass(one.stage, one.number, True)][0] < number


@settings(max_examples=40, deadline=None)
@given(ranks=st.integers(2, 6), each=st.integers(1, 4), micro_batches=st.integers(1, 20))
def test_gradients_of_a_stage_are_summed_in_the_order_of_micro_batches(
    ranks: int, each: int, micro_batches: int
) -> None:
    """So that a weight's gradient has the bits of one process."""
    for rank in range(ranks):
        order: dict[int, list[int]] = {}
        for one in passes_of(rank, ranks, each, micro_batches):
            if not one.is_forward:
                order.setdefault(one.stage, []).append(one.number)
        assert all(numbers == list(range(micro_batches)) for numbers in order.values())
        assert list(order)[-1] == rank, "a rank's first stage goes backward last"


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("each", [2, 3])
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_interleaved_passes_come_in_torch_s_order(ranks: int, each: int, rounds: int) -> None:
    class Interleaved(schedules.ScheduleInterleaved1F1B):
        def __init__(self) -> None:
            self.pp_group_size, self.n_local_stages = ranks, each
            self._n_microbatches, self.microbatches_per_round = rounds * ranks, ranks

    reference = Interleaved()
    for rank in range(ranks):
        theirs = [
            Pass(
                action.stage_index,
                action.microbatch_index,
                action.computation_type == schedules.FORWARD,
            )
            for action in reference._calculate_single_rank_operations(rank)
            if action is not None
        ]
        assert passes_of(rank, ranks, each, rounds * ranks) == theirs


def test_interleaving_shortens_the_time_in_which_ranks_wait() -> None:
    """With half as much to compute in each pass, twice the ticks would be as long."""
    plain, interleaved = len(timetable(4, 1, 16)), len(timetable(4, 2, 16))
    assert interleaved < 2 * plain


def test_stages_are_dealt_out_round_and_round() -> None:
    assert layers_of(8, 0, 2, 2) == (range(2), range(4, 6))
    assert layers_of(8, 1, 2, 2) == (range(2, 4), range(6, 8))
    assert layers_of(5, 1, 2, 1) == (range(3, 5),)
