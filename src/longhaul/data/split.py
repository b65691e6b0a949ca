"""The split by tail: the last tokens of a source are held out, to the token.

Enters: shards with all of a source's tokens. Leaves: the same documents in two writers, the
one that is cut in both. Never knows: text, or splits by document (`dedup.is_held_out`).
"""

from collections.abc import Sequence
from pathlib import Path

from longhaul.data.shards import Shard, ShardWriter
from longhaul.data.tokenizing import TokenArray, Tokenizer

_DECODED_AT_ONCE = 1 << 16


def split_tail(
    whole: Sequence[Path],
    fraction: float,
    tokenizer: Tokenizer,
    train: ShardWriter,
    held_out: ShardWriter,
) -> None:
    """Move the first int(n · (1 - fraction)) of n tokens to `train`, the rest to `held_out`.

    Shards are removed as soon as they are copied, so that neither disk nor memory holds it all.
    This is nanoGPT's split: 1,003,854 and 111,540 characters of tiny Shakespeare at 0.1.
    """
    cut = int(sum(Shard(path).num_tokens for path in whole) * (1 - fraction))
    begin = 0
    for path in whole:
        for name, tokens, num_bytes in Shard(path).documents():
            before = min(max(cut - begin, 0), len(tokens))
            tail_bytes = num_bytes
            if 0 < before < len(tokens):
                tail_bytes = min(num_bytes, text_bytes(tokenizer, tokens[before:]))
            elif before:
                tail_bytes = 0
            train.add(name, tokens[:before], num_bytes - tail_bytes)
            held_out.add(name, tokens[before:], tail_bytes)
            begin += len(tokens)
        path.unlink()


def text_bytes(tokenizer: Tokenizer, tokens: TokenArray) -> int:
    """UTF-8 bytes of the text that tokens stand for.

    A character whose bytes are torn apart, at the cut or between two chunks, counts as the three
    bytes of U+FFFD instead of its share: a few bytes in 65,536 tokens.
    """
    if tokenizer.end_of_text is not None:
        tokens = tokens[tokens != tokenizer.end_of_text]
    return sum(
        len(tokenizer.decode(tokens[begin : begin + _DECODED_AT_ONCE].tolist()).encode())
        for begin in range(0, len(tokens), _DECODED_AT_ONCE)
    )
