"""From draws to tensors: the global batch of any step, and the windows of an evaluation.

Shapes: B sequences of a batch, T tokens of a sequence.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from longhaul.config.recipe import Recipe
from longhaul.core.errors import DataError
from longhaul.core.faults import Point, point
from longhaul.core.units import Seconds
from longhaul.data.dataset import Dataset, TokenStream
from longhaul.data.loss_mask import IGNORED as IGNORED
from longhaul.data.loss_mask import LossMask, loss_mask_of
from longhaul.data.mixture import plan_of
from longhaul.data.order import Order, take_draws
from longhaul.data.permutation import Int64s
from longhaul.logbook.mixture_changes import MixtureBefore

_WINDOWS_AHEAD = 2
"""Of a source whose text streams: the one that is read, and the next."""
_SIGN_EVERY_S: Seconds = 1.0


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """All that decides the content of a global batch; equal requests give equal batches."""

    draw: int
    sequences: int
    sequence_length: int
    skips: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """One global batch, or a rank's share of it."""

    tokens_BT: torch.Tensor
    """int64 on the host."""
    targets_BT: torch.Tensor
    """int64 on the host; the token after each. Rows that only fill a share are all `IGNORED`."""
    num_targets: int
    """Of the global batch, whatever the share."""
    draw: int
    """The first draw that was used, after skips."""
    next_draw: int
    source_B: torch.Tensor | None = None
    """int64 on the host: the number of each sequence's source; None where nobody knows."""
    num_counted: int | None = None
    """Of these targets, those that `data.loss_from` leaves; None if it is not set, and all count.
    """


class BatchReader:
    """Reads any global batch at once, and the likely next one in the background.

    `before`: what was drawn before the mixture was last changed, as the ledger has it. `rank`: of
    the `size` ranks that read different sequences, each its share of a batch. `placed`: puts a
    tensor where the device takes it from; in the background, too. DataError if a source is too
    small for one sequence, or is not what it was.
    """

    def __init__(
        self,
        dataset: Dataset,
        recipe: Recipe,
        before: MixtureBefore | None = None,
        rank: int = 0,
        size: int = 1,
        placed: Callable[[Tensor], Tensor] = lambda tensor: tensor,
    ) -> None:
        self._dataset, self._recipe, self._placed = dataset, recipe, placed
        self._streams = [source.train for source in dataset.sources]
        self._block_length = recipe.block_length()
        self._mask = loss_mask_of(recipe.data.loss_from, dataset)
        self._rank, self._size = rank, size
        self.follow(before)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        self._ahead: tuple[BatchRequest, Future[Batch]] | None = None

    def follow(self, before: MixtureBefore | None) -> None:
        """Plan the draws anew: those before a change of the mixture are as they were."""
        recipe = self._recipe
        self.plan = plan_of(
            self._dataset, recipe.data, self._block_length, recipe.order.cycle, before
        )
        tokens, plan = recipe.order.shuffle_tokens, self.plan
        window = None if tokens is None else max(1, tokens // self._block_length)
        self.order = Order(recipe.seed, plan.names, plan.block_counts, plan.stages, window=window)
        if self._dataset.streaming is not None:
            self._refuse_too_much(tokens)

    def _refuse_too_much(self, tokens: int | None) -> None:
        """DataError unless the windows of a text that streams fit its cache."""
        assert self._dataset.streaming is not None
        if tokens is None:
            raise DataError(
                f"{self._dataset.folder}: this text comes while it is read, and the recipe "
                "shuffles all of it at once",
                "set order.shuffle_tokens, such as 1000000000, for a new run; or fetch the whole "
                "text (`longhaul data pull` without --stream)",
            )
        most = max(s.sequences * s.sequence_length for s in self._recipe.batch_stages())
        window = tokens // self._block_length * self._block_length
        if window < most:
            raise DataError(
                f"order.shuffle_tokens: {tokens:,} are fewer than a step reads, {most:,}",
                "set it to thousands of steps, for a new run",
            )
        # A source that no stage draws from needs no room.
        drawn = self.plan.drawn
        shards = [source.train.shards for source in self._dataset.sources if source.name in drawn]
        self._dataset.streaming.refuse_without_room(shards, window)

    def _come(self, draw: int) -> None:
        """Let the shards of the windows come that are read from a draw on."""
        assert self._dataset.streaming is not None
        names: list[str] = []
        for source, blocks in self.order.windows_ahead(draw, _WINDOWS_AHEAD):
            if source < len(self._streams):
                # The last target of a window is the token after it.
                begin, end = blocks.start * self._block_length, blocks.stop * self._block_length
                names += self._streams[source].files_of(begin, end + 1)
        self._dataset.streaming.want(names)

    def read(self, request: BatchRequest, following: BatchRequest | None = None) -> Batch:
        """The batch of `request`; what `following` guesses is read while the step computes. A wrong
        guess costs time and nothing else, because content depends on the request alone.
        """
        point(Point.READ_BATCH, request)
        if self._ahead is not None and self._ahead[0] == request:
            batch = self._finished(self._ahead[1])
        elif self._dataset.streaming is not None:
            batch = self._finished(self._worker.submit(self._read, request))
        else:
            batch = self._read(request)
        self._ahead = None
        if following is not None:
            self._ahead = (following, self._worker.submit(self._read, following))
        return batch

    def _finished(self, batch: Future[Batch]) -> Batch:
        """What is read in the background; a sign of life now and then while a shard comes."""
        streaming = self._dataset.streaming
        while streaming is not None and not wait((batch,), timeout=_SIGN_EVERY_S).done:
            streaming.waits()
        return batch.result()

    def share(self, request: BatchRequest, rank: int) -> Batch:
        """What another of the ranks that read different sequences reads of the batch."""
        other = copy(self)
        other._rank = rank
        if self._dataset.streaming is None:
            return other._read(request)
        return self._finished(self._worker.submit(other._read, request, False))

    def close(self) -> None:
        """End the background thread."""
        if self._dataset.streaming is not None:
            self._dataset.streaming.close()
        self._worker.shutdown(wait=True, cancel_futures=True)

    def _read(self, request: BatchRequest, goes_on: bool = True) -> Batch:
        source, _, begin, first, following = self._locate(request)
        length = request.sequence_length
        if (last := int(source.max())) >= len(self._streams):  # all ranks see it, and end alike
            gone = self.plan.names[last]
            raise DataError(
                f"the batch at draw {first:,} is in part of {gone}, which the recipe has no more",
                f"put {gone} back into data.sources to go back behind the change of the mixture",
            )
        own = share_of(request.sequences, self._rank, self._size)
        source, begin = source[own], begin[own]
        if goes_on and self._dataset.streaming is not None:
            self._come(first)
        windows = self._windows(source, begin, length)
        # All shares are as long as the first, so that ranks make the same number of micro-batches
        # and of collectives; rows of no weight make up for what is not there.
        missing = -(-request.sequences // self._size) - len(begin)
        if missing:
            windows = np.pad(windows, ((0, missing), (0, 0)), constant_values=IGNORED)
            source = np.pad(source, (0, missing))
        window_BT = torch.from_numpy(windows)
        targets_BT, counted = window_BT[:, 1:], None
        if self._mask is not None:
            targets_BT = torch.from_numpy(self._mask.targets(windows))
            counted = int((targets_BT != IGNORED).sum())
        return Batch(
            # The embedding needs a valid number where the target is ignored.
            tokens_BT=self._placed(
                window_BT[:, :-1].clamp(min=0) if missing else window_BT[:, :-1]
            ),
            targets_BT=self._placed(targets_BT),
            num_targets=request.sequences * length,
            draw=first,
            next_draw=following,
            source_B=self._placed(torch.from_numpy(source)),
            num_counted=counted,
        )

    def _windows(self, source: Int64s, begin: Int64s, length: int) -> Int64s:
        windows = np.empty((len(begin), length + 1), dtype=np.int64)
        for number, stream in enumerate(self._streams):
            here = source == number
            if len(begin) and here.all():
                windows = stream.gather(begin, length + 1)
            elif here.any():
                windows[here] = stream.gather(begin[here], length + 1)
        return windows

    def slots(self, request: BatchRequest) -> Int64s:
        """Source, epoch, and first token in the source's stream of each sequence: [B, 3]."""
        return np.stack(self._locate(request)[:3], axis=1)

    def _locate(self, request: BatchRequest) -> tuple[Int64s, Int64s, Int64s, int, int]:
        parts = self._block_length // request.sequence_length
        draws, following = take_draws(request.draw, request.sequences // parts, request.skips)
        source, epoch, block = np.repeat(self.order.blocks(draws), parts, axis=1)
        offset = np.tile(np.arange(parts, dtype=np.int64), len(draws)) * request.sequence_length
        return source, epoch, block * self._block_length + offset, int(draws[0]), following


def share_of(count: int, rank: int, size: int) -> slice:
    """The contiguous share of `rank` in `count` things; the first ranks have one more each."""
    each, rest = divmod(count, size)
    begin = rank * each + min(rank, rest)
    return slice(begin, begin + each + (rank < rest))


def own_share(batch: Batch, rank: int, size: int, even: bool = False) -> Batch:
    """One rank's sequences of a global batch; one of no weight where there are none for it. If
    `even`, with so many of no weight that all ranks have as many.
    """
    own = share_of(len(batch.tokens_BT), rank, size)
    tokens_BT, targets_BT = batch.tokens_BT[own], batch.targets_BT[own]
    source_B = None if batch.source_B is None else batch.source_B[own]
    missing = (-(-len(batch.tokens_BT) // size) if even else 1) - len(tokens_BT)
    if missing > 0:
        more_BT = batch.tokens_BT[:missing]
        tokens_BT = torch.cat((tokens_BT, more_BT))
        targets_BT = torch.cat((targets_BT, torch.full_like(more_BT, IGNORED)))
        if source_B is not None and batch.source_B is not None:
            source_B = torch.cat((source_B, batch.source_B[:missing]))
    return replace(batch, tokens_BT=tokens_BT, targets_BT=targets_BT, source_B=source_B)


def evaluation_batches(
    stream: TokenStream,
    sequence_length: int,
    sequences: int,
    most_tokens: int | None,
    rank: int = 0,
    size: int = 1,
    mask: LossMask | None = None,
) -> Iterator[tuple[torch.Tensor, torch.Tensor, int]]:
    """(tokens_BT, targets_BT, number of targets) over a held-out stream, or a rank's share of it.
    With `mask` only those count that it leaves.

    Every token but the first is a target exactly once; the ragged end is padded with `IGNORED`.
    With `most_tokens`, whole windows spread evenly over the stream instead. All ranks make the
    same number of passes; a rank with fewer windows ends with passes of no weight.
    """
    begins = _window_begins(stream.num_tokens, sequence_length, most_tokens)
    most = -(-len(begins) // size)
    begins = begins[share_of(len(begins), rank, size)]
    for group in range(0, most, sequences):
        begin = begins[group : group + sequences]
        lengths = np.minimum(sequence_length, stream.num_tokens - 1 - begin)
        windows = np.full((max(len(begin), 1), sequence_length + 1), IGNORED, dtype=np.int64)
        full = lengths == sequence_length
        if full.any():
            windows[full] = stream.gather(begin[full], sequence_length + 1)
        for row in np.flatnonzero(~full):
            span = int(lengths[row]) + 1
            windows[row, :span] = stream.gather(begin[row : row + 1], span)[0]
        window_BT = torch.from_numpy(windows)
        targets_BT, counted = window_BT[:, 1:], int(lengths.sum())
        if mask is not None:
            targets_BT = torch.from_numpy(mask.targets(windows))
            counted = int((targets_BT != IGNORED).sum())
        # The embedding needs a valid number where the target is ignored.
        yield window_BT[:, :-1].clamp(min=0), targets_BT, counted


def _window_begins(num_tokens: int, length: int, most_tokens: int | None) -> Int64s:
    targets = num_tokens - 1
    whole = targets // length
    if most_tokens is None or most_tokens >= targets or whole == 0:
        return np.arange(0, max(targets, 0), length, dtype=np.int64)
    wanted = max(1, most_tokens // length)
    return np.arange(wanted, dtype=np.int64) * whole // wanted * length


def real_tokens(tokens_BT: Tensor, targets_BT: Tensor) -> Tensor | None:
    """The tokens with a real sequence in the place of each that is only padding; None if all are.

    Padding adds nothing to the loss, but the same token over and over is no text, and would show in
    the activations. A gauge that is a mean so counts one sequence more than once.
    """
    real_B = (targets_BT != IGNORED).any(dim=1)
    numbers = real_B.nonzero()[:1]
    if not len(numbers):
        return None
    row_B = torch.where(real_B, torch.arange(len(real_B)), numbers[0])
    return tokens_BT if bool(real_B.all()) else tokens_BT[row_B]
