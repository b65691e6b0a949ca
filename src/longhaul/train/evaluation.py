"""Validation loss, in total and per source.

The loss is the sum of token losses over the number of target tokens, in nats, over all sources;
bits per byte is that sum in bits over the UTF-8 bytes of the text. Where only part of a split is
read, its bytes are the split's bytes per token times the tokens read.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from longhaul.config.recipe import Recipe
from longhaul.config.train import PrecisionSection
from longhaul.core.units import Nats, bits_per_byte
from longhaul.data.batches import evaluation_batches
from longhaul.data.dataset import Dataset, TokenStream
from longhaul.data.loss_mask import LossMask, loss_mask_of
from longhaul.model.device import to_device
from longhaul.model.gpt import GPT
from longhaul.model.head import IGNORED_TARGET
from longhaul.model.masks import flex_attends
from longhaul.parallel.world import World
from longhaul.train.allocation_errors import TooMuchEvaluated, refused_memory
from longhaul.train.drain import Pace
from longhaul.train.parts import Parts
from longhaul.train.precision import autocast


@dataclass(frozen=True, slots=True)
class SplitLoss:
    """Loss over one held-out stream."""

    total_nats: Nats
    tokens: int
    num_bytes: float

    @property
    def loss(self) -> Nats:
        """Nats per target token."""
        return self.total_nats / self.tokens if self.tokens else float("nan")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Losses of every source, and over all of them."""

    sources: dict[str, SplitLoss]
    at_once: int
    """Sequences that this rank computed at once in the end."""

    @property
    def tokens(self) -> int:
        """Target tokens read."""
        return sum(split.tokens for split in self.sources.values())

    @property
    def loss(self) -> Nats:
        """Nats per target token over all sources."""
        total = sum(split.total_nats for split in self.sources.values())
        return total / self.tokens if self.tokens else float("nan")

    @property
    def bits_per_byte(self) -> float:
        """Bits per UTF-8 byte over all sources; NaN if the bytes of one are not known."""
        splits = self.sources.values()
        if any(split.tokens and not split.num_bytes for split in splits):
            return float("nan")
        return bits_per_byte(sum(s.total_nats for s in splits), sum(s.num_bytes for s in splits))


def evaluate(
    model: GPT,
    dataset: Dataset,
    device: torch.device,
    precision: PrecisionSection,
    sequence_length: int,
    sequences: int,
    most_tokens: int | None,
    ranks: World | None = None,
    alive: Callable[[], None] = lambda: None,
    loss_from: str = "",
) -> Evaluation:
    """Evaluate every source's held-out stream.

    Where memory runs out, the same windows are read again half as many at once, and so are all that
    follow; the sums are over the same tokens. `sequences` of `sequence_length` tokens at most are
    computed at once, in the precision of training, so that the two losses can be compared, and
    `most_tokens` per source; None reads the whole split. The windows are dealt out among `ranks`,
    and the figures are those of all. `alive` is called before every batch. `loss_from`: the
    recipe's `data.loss_from`; context counts in evaluations as little as in training.

    Raises:
        TooMuchEvaluated: memory ran out with a single sequence, or in a pass that other ranks stand
            in the middle of.
    """
    was_training = model.training
    model.eval()
    mask = loss_mask_of(loss_from, dataset)
    passes = _Passes(model, device, sequence_length, sequences, ranks, alive, mask)
    try:
        with torch.inference_mode(), autocast(device, precision):
            return Evaluation(
                {
                    source.name: passes.split_loss(source.held_out, most_tokens)
                    for source in dataset.sources
                },
                passes.sequences,
            )
    finally:
        model.train(was_training)


class Evaluator:
    """Evaluates the model in training, with as many sequences at once as fit."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._fit: int | None = None
        """Sequences that memory was enough for, once it was not for more."""

    def figures(self, settings: Recipe, most_tokens: int | None) -> dict[str, object]:
        """An evaluation as the journal keeps it; a collective of all ranks. See `evaluate`."""
        parts, position = self._parts, self._parts.progress.position
        step, ranks = parts.step, parts.ranks
        share = 1 if ranks is None else ranks.data_size
        wanted = settings.evaluated_at_once(position.step, share)
        at_once = wanted if self._fit is None else min(wanted, self._fit)
        compiles = step.passes.forms.see_evaluation(settings.model.context)
        evaluation = evaluate(
            step.model,
            parts.dataset,
            step.device,
            settings.precision,
            settings.model.context,
            at_once,
            most_tokens,
            ranks,
            parts.time_buckets.alive_after("compile") if compiles else parts.time_buckets.alive,
            settings.data.loss_from,
        )
        if evaluation.at_once < at_once:  # more would not fit the next time either
            self._fit = evaluation.at_once
        if step.parallel is not None:
            step.parallel.rest()
        return {
            "loss": evaluation.loss,
            "bits_per_byte": evaluation.bits_per_byte,
            "tokens": evaluation.tokens,
            "sources": {name: split.loss for name, split in evaluation.sources.items()},
            "at_once": evaluation.at_once,
            "did_not_fit": wanted if evaluation.at_once < wanted else None,
            "whole_split": most_tokens is None,
            "epoch": round(parts.batches.order.epoch(position.draw), 4),
        }


@dataclass
class _Passes:
    model: GPT
    device: torch.device
    length: int
    sequences: int
    """Computed at once by now."""
    ranks: World | None
    alive: Callable[[], None]
    mask: LossMask | None = None

    def __post_init__(self) -> None:
        # FlexAttention is compiled for every shape, so that a last batch has nothing for its rest.
        self._whole = flex_attends(self.model.settings, self.length, self.device)
        self._pace = Pace(self.device)
        self._sums_on = torch.device("cpu") if self.device.type == "mps" else self.device

    def split_loss(self, stream: TokenStream, most_tokens: int | None) -> SplitLoss:
        ranks, total, tokens = self.ranks, self._nothing(), 0
        place = (0, 1) if ranks is None else (ranks.data_rank, ranks.data_size)
        for tokens_BT, targets_BT, num_targets in evaluation_batches(
            stream, self.length, self.sequences, most_tokens, *place, self.mask
        ):
            total += self._summed(tokens_BT, targets_BT)
            tokens += num_targets
        if ranks is not None:
            own = torch.tensor([float(total), tokens], dtype=torch.float64) * ranks.counts
            nats, read = ranks.control.total(own).tolist()
            total, tokens = torch.tensor(nats, dtype=torch.float64), int(read)
        bytes_per_token = stream.num_bytes / stream.num_tokens if stream.num_tokens else 0.0
        return SplitLoss(float(total), tokens, tokens * bytes_per_token)

    def _summed(self, tokens_BT: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
        """Nats over all targets of a batch, in as many passes as memory asks for."""
        total, done = self._nothing(), 0
        while done < len(tokens_BT):
            some = slice(done, done + self.sequences)
            loss = self._pass(tokens_BT[some], targets_BT[some])
            if loss is None:
                # Only here has the traceback let go of what the pass had computed.
                computed = self.sequences if self._whole else len(tokens_BT[some])
                self.sequences = max(1, computed // 2)
                if self.device.type == "cuda":
                    torch.cuda.empty_cache()
                continue
            total += loss.to(total.device, total.dtype)
            done += self.sequences
            self._pace.queued()
        return total

    def _pass(self, tokens_BT: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor | None:
        """The loss of one pass; None if it must be made again with fewer sequences."""
        self.alive()
        if self._whole:
            nothing = (0, 0, 0, self.sequences - len(tokens_BT))
            tokens_BT = functional.pad(tokens_BT, nothing)
            targets_BT = functional.pad(targets_BT, nothing, value=IGNORED_TARGET)
        try:
            loss: torch.Tensor = self.model(
                to_device(tokens_BT, self.device), to_device(targets_BT, self.device)
            )
        except (RuntimeError, MemoryError) as error:
            if refused_memory(error) is None:
                raise
            shared = self.ranks is not None and self.ranks.share_passes
            if shared or len(tokens_BT) == 1:
                said = str(error).partition("\n")[0]
                raise TooMuchEvaluated(len(tokens_BT), said) from error
            return None
        return loss

    def _nothing(self) -> torch.Tensor:
        return torch.zeros((), dtype=torch.float64, device=self._sums_on)
