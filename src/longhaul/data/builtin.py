"""Text that every machine has: Python's own source, installed packages, and made-up documents.

Enters: nothing but the interpreter (and a seed). Leaves: lists of files, or documents.
Never knows: recipes, breakage: what is not clean UTF-8 here is simply no document.
"""

import os
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from longhaul.core.schedules import derive_key
from longhaul.data.documents import Document

BUILTIN_SOURCES = ("python-stdlib", "python-packages", "synthetic")

_STDLIB_SUFFIXES = (".py", ".rst", ".txt", ".md")
_NOT_STDLIB = frozenset({"site-packages", "dist-packages", "__pycache__"})
_SYNTHETIC_DOCUMENTS = 2_000
_SYNTHETIC_LINES = 40


def stdlib_folder() -> Path:
    """Where the running Python keeps its standard library, virtual environment or not."""
    return Path(sysconfig.get_path("stdlib"))


def package_folders() -> list[Path]:
    """Where installed packages live."""
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return [Path(path) for path in sorted(paths)]


def files_below(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Source and documentation below a folder, sorted, packages installed into it left out."""
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if entry.name not in _NOT_STDLIB and not entry.name.startswith("."):
                yield from files_below(Path(entry.path))
        elif entry.name.endswith(_STDLIB_SUFFIXES) and entry.is_file():
            yield entry


def synthetic_documents(seed: int) -> Iterator[Document]:
    """2,000 documents, about 4 MB, that are a pure function of the seed.

    They have something to learn at every scale: spelling, a small grammar, a topic that stays
    the same within a document, and sums.
    """
    for number in range(_SYNTHETIC_DOCUMENTS):
        yield Document(_synthetic_text(seed, number), f"synthetic:{number + 1}")


_NAMES = (
    "Ada", "Bruno", "Chioma", "Dana", "Emil", "Farida", "Goran", "Hana",
    "Ivo", "Jun", "Kofi", "Lena", "Mira", "Nils", "Olga",
)  # fmt: skip
_THINGS = (
    "bridge", "engine", "garden", "harbour", "kettle", "ladder",
    "letter", "orchard", "river", "signal", "tower", "wagon",
)  # fmt: skip
_VERBS = ("builds", "carries", "finds", "keeps", "measures", "mends", "moves", "paints", "watches")
_KINDS = (
    "broken", "copper", "distant", "heavy", "narrow", "old", "quiet", "red", "round", "wooden",
)  # fmt: skip


def _synthetic_text(seed: int, number: int) -> str:
    # Only Random.random() is promised to give the same numbers in every Python version.
    uniform = random.Random(derive_key(seed, "synthetic", number)).random

    def pick(words: tuple[str, ...]) -> str:
        return words[int(uniform() * len(words))]

    hero, friend, topic = pick(_NAMES), pick(_NAMES), pick(_THINGS)
    lines = [f"{hero} and the {topic}, part {number}"]
    for _ in range(_SYNTHETIC_LINES):
        kind = int(uniform() * 4)
        if kind == 0:
            a, b = int(uniform() * 100), int(uniform() * 100)
            lines.append(f"{hero} counts: {a} and {b} make {a + b}.")
        elif kind == 1:
            lines.append(f"The {topic} is {pick(_KINDS)}, and {friend} {pick(_VERBS)} it.")
        else:
            who = hero if kind == 2 else friend
            lines.append(f"{who} {pick(_VERBS)} the {pick(_KINDS)} {pick(_THINGS)}.")
    return "\n".join(lines) + "\n"
