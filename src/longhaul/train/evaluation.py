"""Validation loss, in total and per source.

Enters: a model and held-out streams. Leaves: nats per token and bits per byte.
Never knows: when it is called, or what the figures lead to.

Definitions: loss is the sum of token losses over the number of target tokens, in nats, over all
sources; bits per byte is that sum in bits over the UTF-8 bytes of the text. Where only part of a
split is read, its bytes are taken as the split's bytes per token times the tokens read.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from longhaul.config.train import PrecisionSection
from longhaul.core.units import Nats, bits_per_byte
from longhaul.data.batches import evaluation_batches
from longhaul.data.dataset import Dataset, TokenStream
from longhaul.model.gpt import GPT
from longhaul.parallel.ranks import Ranks
from longhaul.train.drain import Pace
from longhaul.train.precision import autocast
from longhaul.train.step import to_device


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

    def as_data(self) -> dict[str, object]:
        """The form kept in the journal."""
        return {
            "loss": self.loss,
            "bits_per_byte": self.bits_per_byte,
            "tokens": self.tokens,
            "sources": {name: split.loss for name, split in self.sources.items()},
        }


def evaluate(
    model: GPT,
    dataset: Dataset,
    device: torch.device,
    precision: PrecisionSection,
    sequence_length: int,
    sequences: int,
    most_tokens: int | None,
    ranks: Ranks | None = None,
    alive: Callable[[], None] = lambda: None,
) -> Evaluation:
    """Evaluate every source's held-out stream.

    Args:
        model: put into evaluation mode, and back.
        dataset: its held-out streams are read.
        device: where the model lies.
        precision: as in training, so that the two losses can be compared.
        sequence_length: tokens of context at most.
        sequences: computed at once.
        most_tokens: per source; None reads the whole split.
        ranks: among which the windows are dealt out; the figures are those of all.
        alive: called before every batch.
    """
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode(), autocast(device, precision):
            return Evaluation(
                {
                    source.name: _split_loss(
                        model,
                        source.held_out,
                        device,
                        sequence_length,
                        sequences,
                        most_tokens,
                        ranks,
                        alive,
                    )
                    for source in dataset.sources
                }
            )
    finally:
        model.train(was_training)


def _split_loss(
    model: GPT,
    stream: TokenStream,
    device: torch.device,
    sequence_length: int,
    sequences: int,
    most_tokens: int | None,
    ranks: Ranks | None,
    alive: Callable[[], None],
) -> SplitLoss:
    total = torch.zeros((), dtype=torch.float64, device="cpu" if device.type == "mps" else device)
    tokens = 0
    place = (0, 1) if ranks is None else (ranks.world.data_rank, ranks.world.data_size)
    pace = Pace(device)
    for tokens_BT, targets_BT, num_targets in evaluation_batches(
        stream, sequence_length, sequences, most_tokens, *place
    ):
        alive()
        loss = model(to_device(tokens_BT, device), to_device(targets_BT, device))
        total += loss.to(total.device, total.dtype)
        tokens += num_targets
        pace.queued()
    if ranks is not None:
        own = torch.tensor([float(total), tokens], dtype=torch.float64) * ranks.counts
        nats, read = ranks.control.total(own).tolist()
        total, tokens = torch.tensor(nats, dtype=torch.float64), int(read)
    bytes_per_token = stream.num_bytes / stream.num_tokens if stream.num_tokens else 0.0
    return SplitLoss(float(total), tokens, tokens * bytes_per_token)
