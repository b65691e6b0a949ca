"""Filters by what a text is written in and where it was found: scripts, lists of domains."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from longhaul.config.corpus import FilterSection
from longhaul.core.errors import RecipeError
from longhaul.data.documents import Document, text_digest

_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")
_NO_ASCII_LETTERS = bytes(c for c in range(256) if not (c < 128 and chr(c).isalpha()))
_WIDTHS = ("FULLWIDTH", "HALFWIDTH")


@dataclass(frozen=True, slots=True)
class Scripts:
    """Leaves out a text if too few of its letters are of some scripts."""

    allowed: frozenset[str]
    least: float

    def reason(self, text: str) -> str | None:
        """Why a text goes; None if it stays. A text without letters stays."""
        counts = count_scripts(text)
        letters = sum(counts.values())
        allowed = sum(counts[script] for script in self.allowed)
        if allowed >= self.least * letters:
            return None
        strange = max(counts.keys() - self.allowed, key=lambda script: (counts[script], script))
        return f"scripts: {strange}"


def count_scripts(text: str) -> Counter[str]:
    """Letters by script, as in `config.corpus.Script`."""
    beyond = "" if text.isascii() else "".join(_BEYOND_ASCII.findall(text))
    counts: Counter[str] = Counter(latin=len(text.encode().translate(None, _NO_ASCII_LETTERS)))
    for character, times in Counter(beyond).items():
        if script := _script_of(character):
            counts[script] += times
    return counts


@lru_cache(maxsize=1 << 16)
def _script_of(character: str) -> str:
    """Its script, if it is a letter."""
    if not unicodedata.category(character).startswith("L"):
        return ""
    first, _, rest = unicodedata.name(character, "").partition(" ")
    if first in _WIDTHS:
        first = rest.partition(" ")[0]
    return {"CJK": "han", "IDEOGRAPHIC": "han"}.get(first, first.lower())


@dataclass(frozen=True, eq=False, slots=True)
class Domains:
    """A list of domains, in eight bytes each: such lists have millions."""

    hashes: npt.NDArray[np.uint64]
    """Sorted, shape (domains,)."""
    blocks: bool
    """Whether pages of these domains go, or those of all others."""

    def reason(self, document: Document) -> str | None:
        """Why a document goes; None if it stays, as one without an address does."""
        if not (host := host_of(document)):
            return None
        if self._lists(host) != self.blocks:
            return None
        return "blocked_domains" if self.blocks else "allowed_domains: another one"

    def _lists(self, host: str) -> bool:
        labels = host.split(".")
        hashes = [_hash(".".join(labels[begin:])) for begin in range(len(labels))]
        wanted = np.array(hashes, np.uint64)
        at = np.minimum(np.searchsorted(self.hashes, wanted), len(self.hashes) - 1)
        return bool((self.hashes[at] == wanted).any())


def host_of(document: Document) -> str:
    """The host that a document's address names, in small letters; empty if there is none."""
    address = document.url or (document.name if "://" in document.name else "")
    if not address:
        return ""
    try:
        return (urlsplit(address if "://" in address else f"//{address}").hostname or "").strip(".")
    except ValueError:
        return ""


def _hash(domain: str) -> int:
    return int.from_bytes(text_digest(domain.encode(errors="replace"))[:8], "big")


def read_domains(path: Path, *, blocks: bool) -> Domains:
    """A file of domains, one a line, `#` before what is none. RecipeError if there is no domain."""
    setting = "blocked_domains" if blocks else "allowed_domains"
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise RecipeError(
            f"data.filters.{setting}: {path} cannot be read ({error})",
            "give a text file with one domain a line",
        ) from error
    names = (line.partition("#")[0].strip().lower().strip(".") for line in lines)
    hashes = np.array(sorted({_hash(name) for name in names if name}), np.uint64)
    if not len(hashes):
        raise RecipeError(
            f"data.filters.{setting}: {path} has no domain in it",
            "give a text file with one domain a line, or leave the setting out",
        )
    return Domains(hashes, blocks)


def domains_of(settings: FilterSection) -> Iterator[Domains]:
    """The lists that a recipe names."""
    if settings.blocked_domains:
        yield read_domains(Path(settings.blocked_domains).expanduser(), blocks=True)
    if settings.allowed_domains:
        yield read_domains(Path(settings.allowed_domains).expanduser(), blocks=False)
