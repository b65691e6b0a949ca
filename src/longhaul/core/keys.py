"""Random keys derived from names, so that no generator's history matters.

Enters: a seed and a path of names and numbers. Leaves: a 63-bit key.
Never knows: which generator will be seeded with it.
"""

import hashlib


def derive_key(seed: int, *path: int | str) -> int:
    """A key for one purpose, independent of every other purpose's key.

    The same (seed, path) gives the same key on any machine and Python version.
    """
    text = "\x1f".join([str(seed), *map(str, path)])
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
