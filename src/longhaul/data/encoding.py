"""Documents to tokens on all cores: while some are encoded, the next are read and the last written.

Reading and writing stay on the calling thread; encoders and hashes let other threads run.
"""

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain

import numpy as np

from longhaul.core.output import Say
from longhaul.data.documents import batched
from longhaul.data.shards import dtype_for
from longhaul.data.survey import Kept
from longhaul.data.tokenizing import TokenArray, Tokenizer

_BATCH_BYTES = 512 << 10
_SAMPLE_CHARACTERS = 256 << 10
_MOST_THREADS = 16
"""One thread reads about as fast as so many encode; some encoders hold a vocabulary for each."""
_MOST_AHEAD = 2
"""Batches for each thread: one in work and one waiting, so that memory does not grow."""


def tokenized(
    documents: Iterator[Kept], tokenizer: Tokenizer, say: Say = lambda _: None
) -> Iterator[tuple[Kept, TokenArray]]:
    """Documents in their order with their tokens, begin-of-text first and end-of-text last where
    the tokenizer uses them. It is said if they are encoded slower than others are.
    """
    batches = batched(documents, lambda kept: kept[1], _BATCH_BYTES)
    first = next(batches, [])
    if sum(size for _, size, _ in first) >= _BATCH_BYTES:  # else a faster way gains nothing
        _choose_encoder(first, tokenizer, say)
    waiting: deque[tuple[list[Kept], Future[list[TokenArray]]]] = deque()
    threads = min(_usable_cores(), _MOST_THREADS)
    pool = ThreadPoolExecutor(threads, "encode")
    try:
        for batch in chain([first] if first else [], batches):
            waiting.append((batch, pool.submit(_encoded, batch, tokenizer)))
            if len(waiting) > _MOST_AHEAD * threads:
                yield from _next_of(waiting)
        while waiting:
            yield from _next_of(waiting)
    finally:
        pool.shutdown(cancel_futures=True)


def _next_of(
    waiting: deque[tuple[list[Kept], Future[list[TokenArray]]]],
) -> Iterator[tuple[Kept, TokenArray]]:
    batch, encoded = waiting.popleft()
    yield from zip(batch, encoded.result(), strict=True)


def _encoded(batch: list[Kept], tokenizer: Tokenizer) -> list[TokenArray]:
    # Bytes come as uint8, which their end-of-text (256) would not fit into.
    dtype = dtype_for(tokenizer.vocab_size)
    begin, end = (
        np.array([] if token is None else [token], dtype)
        for token in (tokenizer.begin_of_text, tokenizer.end_of_text)
    )
    found = tokenizer.encode_batch([document.text for document, _, _ in batch])
    return [np.concatenate([begin, tokens, end]) for tokens in found]


def _choose_encoder(batch: list[Kept], tokenizer: Tokenizer, say: Say) -> None:
    sample, left = [], _SAMPLE_CHARACTERS
    for document, _, _ in batch:
        sample.append(document.text[:left])
        left -= len(sample[-1])
        if not left:
            break
    if reason := tokenizer.choose_encoder(sample):
        say(f"tokenizer: encoded by the `tokenizers` library, not by tiktoken: {reason}")


def _usable_cores() -> int:
    """Threads to encode with: one where the environment says that others use the cores, which is
    what the `tokenizers` library takes it for.
    """
    if os.environ.get("TOKENIZERS_PARALLELISM", "true").lower() in ("false", "0", "off", "no"):
        return 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
