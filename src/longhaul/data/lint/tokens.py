"""Tokens of prepared data: which are hardly ever used, and how many a byte of each source takes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from longhaul.data.dataset import Dataset, SourceTokens
from longhaul.data.lint.findings import Finding

_MOST_TOKENS = 1 << 28
"""Counted of one source; what is rare among so many is rare."""
_CHUNK = 1 << 22
HARDLY = 10
"""Times; an embedding that is updated so rarely stays what it was at the start."""
UNUSED = 0.2
"""Share of a vocabulary that is hardly ever used; GPT-2's has 15 % on English alone."""
_FEWEST_PER_TOKEN = 1000
"""Tokens for each of the vocabulary, below which rarity says nothing yet."""
_SMALLEST_VOCABULARY = 1024
"""One of bytes or characters has what it has."""
TIMES_TOKENS = 2.0
"""Times the tokens a byte of the other sources; another language than the tokenizer's has two to
four times as many."""
_EXAMPLES = 6


@dataclass(frozen=True, slots=True)
class TokenUse:
    """How one source uses the vocabulary."""

    source: str
    counts: npt.NDArray[np.int64]
    """[vocabulary]: of each token, in training text."""
    tokens_per_byte: float | None
    """None where the size of the text is unknown."""


def token_use(dataset: Dataset) -> list[TokenUse]:
    """Of each source of a prepared data set."""
    return [_use(source, dataset.vocab_size) for source in dataset.sources]


def _use(source: SourceTokens, vocab_size: int) -> TokenUse:
    counts = np.zeros(vocab_size, np.int64)
    left = _MOST_TOKENS
    for shard in source.train.shards:
        tokens = shard.tokens[:left]
        for begin in range(0, len(tokens), _CHUNK):
            counts += np.bincount(tokens[begin : begin + _CHUNK], minlength=vocab_size)
        left -= len(tokens)
        if left <= 0:
            break
    train = source.train
    known = train.num_bytes > 0
    return TokenUse(source.name, counts, train.num_tokens / train.num_bytes if known else None)


def token_findings(uses: Sequence[TokenUse], dataset: Dataset) -> Iterator[Finding]:
    """Whether the tokenizer fits the text."""
    counts = sum((use.counts for use in uses), np.zeros(dataset.vocab_size, np.int64))
    rare = np.flatnonzero(counts < HARDLY)
    share = len(rare) / max(1, len(counts))
    enough = counts.sum() >= _FEWEST_PER_TOKEN * len(counts)
    if enough and len(counts) >= _SMALLEST_VOCABULARY and share >= UNUSED:
        never = int(np.count_nonzero(counts == 0))
        shown = (repr(dataset.tokenizer.decode([int(token)])) for token in rare[-_EXAMPLES:])
        yield Finding(
            "tokens hardly ever used", "all sources", share,
            f"{len(rare):,} of {len(counts):,} tokens ({share:.1%}) occur fewer than {HARDLY} "
            f"times, {never:,} of them never",
            "train the tokenizer on this text, or with a smaller vocabulary", (", ".join(shown),),
        )  # fmt: skip
    for use in uses:
        others = [u.tokens_per_byte for u in uses if u is not use and u.tokens_per_byte]
        if use.tokens_per_byte is None or not others:
            continue
        usual = float(np.median(others))
        if use.tokens_per_byte >= TIMES_TOKENS * usual:
            yield Finding(
                "many tokens a byte", use.source, use.tokens_per_byte,
                f"{use.tokens_per_byte:.2f} tokens a byte; the other sources take {usual:.2f}",
                "train the tokenizer on this source too, or look whether it is text at all",
            )  # fmt: skip
