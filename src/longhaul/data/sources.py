"""Sources: from a path in the recipe to the list of files it stands for, checked at once.

Some text every machine has: Python's own source, installed packages, and made-up documents.
"""

import difflib
import os
import platform
import random
import re
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longhaul.config.data import SourceSection
from longhaul.config.recipe import source_name
from longhaul.core.addresses import without_secrets
from longhaul.core.errors import DataError
from longhaul.core.output import Say
from longhaul.core.schedules import derive_key
from longhaul.core.units import Bytes
from longhaul.data.adapters.adapt import read_source_file
from longhaul.data.documents import Breakage, Document
from longhaul.data.readers import (
    KNOWN_FORMATS,
    TOKEN_SUFFIXES,
    format_of,
    suffix_advice,
    taken_from_folder,
)
from longhaul.data.readers.stretches import Stretch
from longhaul.data.removed import Removed
from longhaul.data.token_files import TokenPath

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


_File = tuple[Path, str]
"""Where it lies, and its name within the source."""
_Found = tuple[Sequence[_File], Any]
"""Files in order, and their identity."""


@dataclass(frozen=True)
class Reader:
    """Reads a source's text, or some of its files, wherever it is sent."""

    name: str
    settings: SourceSection
    seed: int
    files: tuple[_File, ...]
    stretch: Stretch | None = None
    """Of the one file, if not all of it."""

    @property
    def num_bytes(self) -> Bytes:
        """On disk."""
        if self.stretch is not None:
            return self.stretch.end - self.stretch.begin
        return sum(path.stat().st_size for path, _ in self.files)

    @property
    def tolerates_all(self) -> bool:
        """Whether what is broken is no fault of the user's: Python's tests hold broken files on
        purpose.
        """
        return self.settings.path in BUILTIN_SOURCES

    def documents(self, breakage: Breakage, removed: Removed | None = None) -> Iterator[Document]:
        """From the beginning; broken lines and files go to `breakage`, what the source's adapter
        leaves out to `removed`.
        """
        removed = Removed() if removed is None else removed
        if self.settings.path == "synthetic":
            yield from synthetic_documents(self.seed)
        if self.tolerates_all:
            breakage = Breakage(self.name, max_fraction=1.0)
        for path, shown in self.files:
            yield from read_source_file(path, shown, self.settings, breakage, removed, self.stretch)


@dataclass(frozen=True)
class Corpus:
    """One source, found but not read."""

    name: str
    """In logs, losses and file names."""
    weight: float
    """Share of the training tokens, relative to the others."""
    identity: Any
    """What it consists of, as JSON: equal identities read as equal documents."""
    reader: Reader
    token_files: tuple[TokenPath, ...] = ()
    """What it consists of, if it is tokens already; then it has no documents here."""

    def documents(self, breakage: Breakage) -> Iterator[Document]:
        """Reads it from the beginning; broken lines and files go to `breakage`."""
        return self.reader.documents(breakage)


def locate(source: SourceSection, seed: int, downloads: Path, say: Say) -> Corpus:
    """What a source stands for, fetched into `downloads` if remote; DataError if there is none."""
    name = source_name(source.name, source.path)
    files, identity = _files_of(source, seed, downloads, say)
    token_files = _token_paths(source, files) if _is_tokens(source) else ()
    reader = Reader(name, source, seed, tuple(files))
    return Corpus(name, source.weight, identity, reader, token_files)


def _files_of(source: SourceSection, seed: int, downloads: Path, say: Say) -> _Found:
    path, tokens = source.path, _is_tokens(source)
    if path == "synthetic":
        return [], {"synthetic": 1, "seed": seed}
    if path == "python-stdlib":
        return _stdlib_files()
    if path == "python-packages":
        return _package_files()
    if "://" in path and not path.startswith("file://"):
        from longhaul.data.remote import fetch

        fetched = fetch(path, downloads, say, source.sha256, "tokens" if tokens else "text")
        files = [(item.path, item.name) for item in fetched]
        return files, [[item.name, item.sha256] for item in fetched]
    files = _local(Path(path.removeprefix("file://")).expanduser(), path, tokens)
    facts = ((name, file.stat()) for file, name in files)
    return files, [[name, status.st_size, status.st_mtime_ns] for name, status in facts]


def _python_text(folder: Path) -> list[_File]:
    """Source and documentation below a folder of Python's."""
    found = _walk(folder, lambda name: name.endswith(_STDLIB_SUFFIXES), builtin=True)
    return sorted(found, key=lambda file: file[1].split("/"))


def _stdlib_files() -> _Found:
    files = _python_text(stdlib_folder())
    if not files:
        raise DataError(
            f"python-stdlib: no source files below {stdlib_folder()}",
            "this Python was installed without them; give data.sources another path",
        )
    # Sizes, not times: the same Python installed twice is the same text.
    sizes = [[name, path.stat().st_size] for path, name in files]
    return files, {"python": platform.python_version(), "files": sizes}


def _package_files() -> _Found:
    folders = package_folders()
    files = [file for folder in folders for file in _python_text(folder)]
    if not files:
        raise DataError("python-packages: no packages are installed", "give another data source")
    # The names of the .dist-info folders carry every package's version.
    installed = [name for f in folders for name in sorted(p.name for p in f.glob("*.dist-info"))]
    return files, {"python": platform.python_version(), "packages": installed}


def _local(path: Path, given: str, tokens: bool) -> list[_File]:
    if path.is_dir():
        taken = _is_token_file if tokens else taken_from_folder
        walked = _walk(path, lambda name: not name.startswith(".") and taken(name))
        found = sorted(walked, key=lambda file: file[1])
        if not found and tokens:
            raise DataError(f"{given}: no .bin in this folder", "give the folder that holds them")
        if not found:
            raise DataError(f"{given}: {_why_nothing(path)}", KNOWN_FORMATS)
        return found
    # Megatron-LM is given the two files' common prefix; either of them means both here.
    if tokens and (path.suffix == ".idx" or (not path.exists() and Path(f"{path}.bin").is_file())):
        path = Path(f"{str(path).removesuffix('.idx')}.bin")
    if not path.exists():
        raise DataError(f"{given}: no such file or folder", _nearest(path))
    if not path.is_file():
        raise DataError(f"{given}: neither a regular file nor a folder", KNOWN_FORMATS)
    if not tokens and format_of(path.name) is None:
        raise DataError(f"{given}: no reader for this kind of file", suffix_advice(path.name))
    index = path.with_suffix(".idx")
    both = [path, index] if tokens and index.is_file() else [path]
    return [(each, each.name) for each in both]


def _is_token_file(name: str) -> bool:
    return name.lower().endswith(TOKEN_SUFFIXES)


def _is_tokens(source: SourceSection) -> bool:
    """Whether a source is tokens already: by its format, or by the name of a single file."""
    named = _is_token_file(without_secrets(source.path)) and not Path(source.path).is_dir()
    return source.format != "auto" or named


def _token_paths(source: SourceSection, files: Sequence[_File]) -> tuple[TokenPath, ...]:
    indices = {name: path for path, name in files if name.lower().endswith(".idx")}
    return tuple(
        TokenPath(path, name, source.format, indices.get(f"{name[:-4]}.idx"))
        for path, name in files
        if name not in indices
    )


def _walk(folder: Path, taken: Callable[[str], bool], *, builtin: bool = False) -> Iterator[_File]:
    """Files below a folder, not in hidden ones; `builtin`: nor in packages or unreadable ones."""

    def refuse(error: OSError) -> None:
        if not builtin:
            raise error

    for base, folders, names in os.walk(folder, onerror=refuse):
        skipped = _NOT_STDLIB if builtin else ()
        folders[:] = [name for name in folders if name[0] != "." and name not in skipped]
        within = Path(base).relative_to(folder)
        for name in filter(taken, names):
            if (path := Path(base, name)).is_file():
                yield path, (within / name).as_posix()


def _why_nothing(folder: Path) -> str:
    names = sorted(p.name for p in folder.rglob("*") if p.is_file())
    if not names:
        return "an empty folder"
    if all(name.lower().endswith(".json") for name in names):
        return (
            f"a folder of .json files ({names[0]}, …); rename them to .jsonl if each of their "
            "lines is one JSON object"
        )
    if any(name.lower().endswith(".bin") for name in names):
        return (
            "a folder of .bin files and no text; if they are tokens, say whose in "
            'data.sources.format ("nanogpt", "llm.c", "megatron")'
        )
    return f"a folder without a file that can be read (it has {', '.join(names[:3])}, …)"


def _nearest(path: Path) -> str:
    """What to do about a path that does not exist."""
    builtin = difflib.get_close_matches(str(path), BUILTIN_SOURCES, 1, 0.7)
    try:
        siblings = [p.name for p in path.parent.iterdir()]
    except OSError:
        siblings = []
    near = difflib.get_close_matches(path.name, siblings, 1, 0.6)
    if builtin:
        return f"did you mean the built-in source {builtin[0]}?"
    if near:
        return f"did you mean {path.parent / near[0]}?"
    return f"relative paths start at {Path.cwd()}; built-in sources: {', '.join(BUILTIN_SOURCES)}"


def file_stem(name: str) -> str:
    """A source's name, made safe as a part of file names."""
    return re.sub(r"[^\w.-]+", "-", name).strip(".-")[:60] or "source"
