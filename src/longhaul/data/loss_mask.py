"""Which targets count in the loss where a document is a context and what is to be learned of it.

Enters: windows of tokens. Leaves: the same targets, `IGNORED` where they are context. Shapes: B
sequences, T tokens of a sequence.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from longhaul.core.errors import DataError
from longhaul.data.dataset import Dataset

IGNORED = -1
"""Target of positions that the loss skips: padding, and context."""


@dataclass(frozen=True, slots=True)
class LossMask:
    """Loss on what stands between `begin` and the end of each document."""

    begin: int
    """The token behind which targets count."""
    end_of_text: int

    def targets(self, windows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Of windows [B, T + 1] the targets [B, T], `IGNORED` where they are context.

        A target counts if the last of both tokens before it is `begin`. Where the window has none
        before it, the next one decides: if that is end-of-text, or there is none, it counts.
        A second `begin` in a document changes nothing.
        """
        sign = np.where(windows == self.begin, 1, np.where(windows == self.end_of_text, -1, 0))
        place = np.where(sign != 0, np.arange(windows.shape[1]), -1)
        last = np.maximum.accumulate(place, axis=1)[:, :-1]
        seen = np.take_along_axis(sign, np.maximum(last, 0), axis=1)
        first = np.take_along_axis(sign, (sign != 0).argmax(axis=1)[:, None], axis=1)
        counts = np.where(last >= 0, seen == 1, first != 1)
        return np.where(counts, windows[:, 1:], IGNORED)


def loss_mask_of(loss_from: str, dataset: Dataset) -> LossMask | None:
    """The mask of `data.loss_from`; None if that is empty: then no tokenizer is loaded.

    DataError if it is not one token of the dataset's, or documents have no end of text.
    """
    if not loss_from:
        return None
    tokenizer = dataset.tokenizer
    tokens = tokenizer.encode(loss_from)
    if len(tokens) != 1:
        raise DataError(
            f"data.loss_from: {loss_from!r} is {len(tokens)} tokens, not one",
            "add it to the tokenizer's file as a token that is not special (added_tokens)",
        )
    if tokenizer.end_of_text is None:
        raise DataError(
            "data.loss_from: documents have no end of text by which they are told apart",
            "set tokenizer.end_of_text = true",
        )
    return LossMask(int(tokens[0]), tokenizer.end_of_text)
