from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

from longhaul.config.data import MixtureStage
from longhaul.config.recipe import Recipe
from longhaul.core.errors import DataError
from longhaul.data.batches import IGNORED, BatchReader, BatchRequest, evaluation_batches

BLOCK = 16


class Line:
    """A stream whose tokens are their own positions, so that content tells where it lay."""

    def __init__(self, num_tokens: int, offset: int = 0) -> None:
        self.num_tokens = num_tokens
        self._offset = offset

    def gather(self, begins: np.ndarray, length: int) -> np.ndarray:
        assert begins.max() + length <= self.num_tokens
        return begins[:, None] + np.arange(length) + self._offset


@dataclass
class Source:
    name: str
    weight: float
    train: Line


@dataclass
class Corpus:
    sources: tuple[Source, ...]
    streaming: None = None


CORPUS = Corpus((Source("a", 2.0, Line(500)), Source("b", 1.0, Line(3000, 10_000))))


def recipe(**data) -> Recipe:
    """One whose sources are those of a `Corpus` by their names, which keep their own weights."""
    return Recipe.model_validate({
        "name": "test", "seed": 3, "order": {"cycle": 12},
        "data": {"sources": ({"path": "elsewhere"},)} | data,
        "model": {"layers": 1, "heads": 1, "width": 8, "context": BLOCK},
        "batch": {"sequences": 1}, "optim": {"lr": 0.1}, "train": {"steps": 1},
    })  # fmt: skip


@pytest.fixture
def reader():
    made = BatchReader(CORPUS, recipe())
    yield made
    made.close()


def request(draw: int = 0, sequences: int = 4, length: int = BLOCK, skips: tuple = ()):
    return BatchRequest(draw, sequences, length, skips)


def test_targets_are_the_tokens_that_follow(reader: BatchReader) -> None:
    batch = reader.read(request())
    assert batch.tokens_BT.shape == batch.targets_BT.shape == (4, BLOCK)
    assert (batch.targets_BT == batch.tokens_BT + 1).all()
    assert batch.num_targets == 4 * BLOCK


@given(
    draw=st.integers(0, 10**6),
    sequences=st.sampled_from([4, 8, 16]),
    length=st.sampled_from([4, 8, BLOCK]),
)
@settings(max_examples=30, deadline=None)
def test_shorter_sequences_subdivide_the_very_blocks_of_longer_ones(
    draw: int, sequences: int, length: int
) -> None:
    reader = BatchReader(CORPUS, recipe())
    parts = BLOCK // length
    short = reader.read(request(draw, sequences * parts, length))
    long = reader.read(request(draw, sequences, BLOCK))
    assert short.tokens_BT.reshape(sequences, BLOCK).equal(long.tokens_BT)
    assert short.next_draw == long.next_draw == draw + sequences
    reader.close()


@pytest.mark.parametrize(
    ("num_tokens", "blocks"), [(4 * BLOCK, 3), (4 * BLOCK + 1, 4), (4 * BLOCK - 1, 3)]
)
def test_an_epoch_is_every_block_whose_last_target_exists(num_tokens: int, blocks: int) -> None:
    """A block needs one token more than it has: where tokens divide exactly, the last has none."""
    corpus = Corpus((Source("a", 1.0, Line(num_tokens)),))
    reader = BatchReader(corpus, recipe())
    epoch = reader.read(request(sequences=blocks))
    assert sorted(epoch.tokens_BT[:, 0].tolist()) == [BLOCK * block for block in range(blocks)]
    slots = reader.slots(request(draw=blocks, sequences=blocks))
    assert set(slots[:, 1].tolist()) == {1}, "the next one begins right after it"
    reader.close()


def test_a_guess_read_ahead_gives_what_reading_at_once_gives(reader: BatchReader) -> None:
    expected = [reader.read(request(draw)).tokens_BT for draw in (0, 4, 8)]
    ahead = [reader.read(request(d), following=request(d + 4)).tokens_BT for d in (0, 4, 8)]
    assert all(a.equal(b) for a, b in zip(expected, ahead, strict=True))


def test_a_wrong_guess_is_thrown_away(reader: BatchReader) -> None:
    reader.read(request(0), following=request(4))
    skipping = request(4, skips=((4, 6),))
    batch = reader.read(skipping)
    assert batch.draw == 6
    assert batch.tokens_BT.equal(reader.read(request(6)).tokens_BT)


def test_skipped_blocks_are_never_read(reader: BatchReader) -> None:
    seen = [
        tuple(row)
        for draw in range(0, 40, 4)
        for row in reader.read(request(draw)).tokens_BT[:, 0].reshape(-1, 1).tolist()
    ]
    skipping, draw, taken = ((5, 11), (20, 21)), 0, []
    while draw < 40:
        batch = reader.read(request(draw, 1, BLOCK, skipping))
        taken.append((batch.draw, tuple(batch.tokens_BT[0, :1].tolist())))
        draw = batch.next_draw
    assert [first for d, first in taken] == [
        seen[d] for d in range(40) if not (5 <= d < 11 or d == 20)
    ]


def test_slots_say_where_each_sequence_lies(reader: BatchReader) -> None:
    asked = request(7, 8, 8)
    batch = reader.read(asked)
    slots = reader.slots(asked).tolist()
    for (source, _, begin), tokens in zip(slots, batch.tokens_BT, strict=True):
        offset = 10_000 if source == 1 else 0
        assert tokens[0] == begin + offset


@given(num_tokens=st.integers(2, 200), length=st.integers(1, 40), sequences=st.integers(1, 5))
@settings(max_examples=80, deadline=None)
def test_an_evaluation_of_the_whole_split_has_every_target_once(
    num_tokens: int, length: int, sequences: int
) -> None:
    targets: list[int] = []
    counted = 0
    for tokens_BT, targets_BT, num_targets in evaluation_batches(
        Line(num_tokens), length, sequences, None
    ):
        real = targets_BT != IGNORED
        assert (targets_BT[real] == tokens_BT[real] + 1).all()
        assert (tokens_BT >= 0).all()
        targets += targets_BT[real].tolist()
        counted += num_targets
    assert sorted(targets) == list(range(1, num_tokens))
    assert counted == num_tokens - 1


@given(num_tokens=st.integers(100, 3000), most=st.integers(1, 500))
@settings(max_examples=50, deadline=None)
def test_a_part_of_a_split_is_spread_over_it_and_within_its_bound(
    num_tokens: int, most: int
) -> None:
    begins, counted = [], 0
    for tokens_BT, _, num_targets in evaluation_batches(Line(num_tokens), 10, 4, most):
        begins += tokens_BT[:, 0].tolist()
        counted += num_targets
    assert counted <= max(10, most)
    assert len(set(begins)) == len(begins)
    if len(begins) > 3 and most < num_tokens - 1:
        assert begins[-1] > num_tokens * 0.5


def test_a_stage_of_the_mixture_changes_what_is_read_from_its_draw_on() -> None:
    stages = (MixtureStage(from_draw=24, weights={"a": 0.0}),)
    plain = BatchReader(CORPUS, recipe())
    staged = BatchReader(CORPUS, recipe(stages=stages))
    before, after = request(12, 12), request(24, 12)
    assert staged.slots(before).tolist() == plain.slots(before).tolist()
    assert {source for source, _, _ in staged.slots(after).tolist()} == {1}
    # b goes on where it was: its 9th block comes after the 8 of the first stage.
    first = staged.slots(request(0, 24)).tolist()
    earlier = {begin for source, _, begin in first if source == 1}
    assert not earlier & {begin for _, _, begin in staged.slots(after).tolist()}
    plain.close()
    staged.close()


def shared_out(size: int) -> list[BatchReader]:
    return [BatchReader(CORPUS, recipe(), rank=rank, size=size) for rank in range(size)]


@settings(max_examples=25, deadline=None)
@given(
    size=st.integers(1, 7),
    sequences=st.integers(1, 12),
    draw=st.integers(0, 300),
    skips=st.sampled_from(((), ((3, 9),))),
)
def test_the_ranks_shares_joined_are_the_batch_of_one_process(
    size: int, sequences: int, draw: int, skips: tuple
) -> None:
    (whole,) = shared_out(1)
    wanted = whole.read(request(draw, sequences, skips=skips))
    shares = []
    for reader in shared_out(size):
        shares.append(reader.read(request(draw, sequences, skips=skips)))
        reader.close()
    whole.close()
    # The same number of rows each, so that all make the same micro-batches.
    assert {share.tokens_BT.shape for share in shares} == {(-(-sequences // size), BLOCK)}
    rows = [
        (tokens, targets, int(source))
        for share in shares
        for tokens, targets, source in zip(
            share.tokens_BT, share.targets_BT, share.source_B, strict=True
        )
        if (targets != IGNORED).any()
    ]
    assert torch.equal(torch.stack([row[0] for row in rows]), wanted.tokens_BT)
    assert torch.equal(torch.stack([row[1] for row in rows]), wanted.targets_BT)
    assert [row[2] for row in rows] == wanted.source_B.tolist()
    for share in shares:
        assert (share.num_targets, share.draw, share.next_draw) == (
            wanted.num_targets,
            wanted.draw,
            wanted.next_draw,
        )
        assert (
            share.tokens_BT.min() >= 0
        )  # what is ignored is looked up in the embedding all the same


def test_a_rank_reads_its_own_share_alone() -> None:
    class Counted(Line):
        rows = 0

        def gather(self, begins: np.ndarray, length: int) -> np.ndarray:
            Counted.rows += len(begins)
            return super().gather(begins, length)

    corpus = Corpus((Source("a", 1.0, Counted(3000)),))
    reader = BatchReader(corpus, recipe(), rank=1, size=4)
    reader.read(request(sequences=12))
    reader.close()
    assert Counted.rows == 3


@settings(max_examples=30, deadline=None)
@given(
    size=st.integers(1, 5),
    num_tokens=st.integers(2, 200),
    sequences=st.integers(1, 4),
    most=st.sampled_from((None, 40, 100)),
)
def test_ranks_share_out_an_evaluation_and_make_as_many_passes(
    size: int, num_tokens: int, sequences: int, most: int | None
) -> None:
    def targets_of(rank: int, ranks: int) -> tuple[list[int], int, int]:
        passes = list(evaluation_batches(Line(num_tokens), BLOCK, sequences, most, rank, ranks))
        seen = [int(t) for _, targets_BT, _ in passes for t in targets_BT.flatten() if t != IGNORED]
        assert all(tokens_BT.min() >= 0 for tokens_BT, _, _ in passes)
        return seen, sum(number for _, _, number in passes), len(passes)

    whole, number, _ = targets_of(0, 1)
    shares = [targets_of(rank, size) for rank in range(size)]
    assert [target for seen, _, _ in shares for target in seen] == whole
    assert sum(own for _, own, _ in shares) == number
    assert len({passes for _, _, passes in shares}) == 1


def test_draws_of_a_source_that_was_taken_away_are_refused_with_the_way_back() -> None:
    first = BatchReader(CORPUS, recipe())
    left = Corpus(CORPUS.sources[1:])
    reader = BatchReader(left, recipe(), first.plan.before(24))
    assert {source for source, _, _ in reader.slots(request(24, 12)).tolist()} == {0}
    ahead = reader.read(request(24))
    assert ahead.tokens_BT.min() >= 10_000
    with pytest.raises(DataError, match="is in part of a, which the recipe has no more") as caught:
        reader.read(request(0, 12))
    assert "put a back into data.sources" in caught.value.remedy
    first.close()
    reader.close()
