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
from longhaul.data.documents import Breakage, Document
from longhaul.data.readers import (
    KNOWN_FORMATS,
    TOKEN_SUFFIXES,
    format_of,
    read_file,
    suffix_advice,
    taken_from_folder,
)
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


@dataclass(frozen=True)
class Corpus:
    """One source, found but not read.

    Attributes:
        name: its name in logs, losses and file names.
        weight: share of the training tokens, relative to the others.
        identity: what it consists of, as JSON: equal identities read as equal documents.
        documents: reads it from the beginning; broken lines and files go to the `Breakage`.
        token_files: what it consists of, if it is tokens already; then it has no documents here.
    """

    name: str
    weight: float
    identity: Any
    documents: Callable[[Breakage], Iterator[Document]]
    token_files: tuple[TokenPath, ...] = ()


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    name: str


def locate(source: SourceSection, seed: int, downloads: Path, say: Say) -> Corpus:
    """Find what a source stands for; remote files are fetched into `downloads`.

    Raises:
        DataError: it does not exist, holds nothing that can be read, or cannot be fetched.
    """
    name = source_name(source.name, source.path)
    files, identity = _files_of(source, seed, downloads, say)

    def documents(breakage: Breakage) -> Iterator[Document]:
        for file in files:
            yield from read_file(file.path, file.name, source.text_field, breakage)

    def builtin_documents(_: Breakage) -> Iterator[Document]:
        if source.path == "synthetic":
            return synthetic_documents(seed)
        # Python's tests hold files that are broken on purpose; they are no fault of the user's.
        return documents(Breakage(name, max_fraction=1.0))

    builtin = source.path in BUILTIN_SOURCES
    if _is_tokens(source):
        return Corpus(name, source.weight, identity, documents, _token_paths(source, files))
    return Corpus(name, source.weight, identity, builtin_documents if builtin else documents)


def _files_of(
    source: SourceSection, seed: int, downloads: Path, say: Say
) -> tuple[Sequence[_File], Any]:
    path = source.path
    if path == "synthetic":
        return [], {"synthetic": 1, "seed": seed}
    if path == "python-stdlib":
        return _stdlib_files()
    if path == "python-packages":
        return _package_files()
    if "://" in path and not path.startswith("file://"):
        from longhaul.data.remote import Wanted, fetch

        wanted: Wanted = "tokens" if _is_tokens(source) else "text"
        fetched = fetch(path, downloads, say, source.sha256, wanted)
        files = [_File(item.path, item.name) for item in fetched]
        return files, [[item.name, item.sha256] for item in fetched]
    local = Path(path.removeprefix("file://")).expanduser()
    return (_local_tokens if _is_tokens(source) else _local_files)(local, path)


def _stdlib_files() -> tuple[Sequence[_File], Any]:
    folder = stdlib_folder()
    files, sizes = [], []
    for entry in files_below(folder):
        relative = os.path.relpath(entry.path, folder)
        files.append(_File(Path(entry.path), relative))
        sizes.append([relative, entry.stat().st_size])
    if not files:
        raise DataError(
            f"python-stdlib: no source files below {folder}",
            "this Python was installed without them; give data.sources another path",
        )
    # Sizes, not times: the same Python installed twice is the same text.
    return files, {"python": platform.python_version(), "files": sizes}


def _package_files() -> tuple[Sequence[_File], Any]:
    files, installed = [], []
    for folder in package_folders():
        if not folder.is_dir():
            continue
        installed += sorted(p.name for p in folder.glob("*.dist-info"))
        files += [
            _File(Path(entry.path), os.path.relpath(entry.path, folder))
            for entry in files_below(folder)
        ]
    if not files:
        raise DataError("python-packages: no packages are installed", "give another data source")
    # The names of the .dist-info folders carry every package's version.
    return files, {"python": platform.python_version(), "packages": installed}


def _local_files(path: Path, given: str) -> tuple[Sequence[_File], Any]:
    if path.is_dir():
        found = sorted(_walk(path, "", taken_from_folder), key=lambda item: item[0].name)
        if not found:
            raise DataError(f"{given}: {_why_nothing(path)}", KNOWN_FORMATS)
        return [file for file, _ in found], [identity for _, identity in found]
    if not path.exists():
        raise DataError(f"{given}: no such file or folder", _nearest(path))
    if not path.is_file():
        raise DataError(f"{given}: neither a regular file nor a folder", KNOWN_FORMATS)
    if format_of(path.name) is None:
        raise DataError(f"{given}: no reader for this kind of file", suffix_advice(path.name))
    return [_File(path, path.name)], [_stamp(path.name, path.stat())]


def _is_tokens(source: SourceSection) -> bool:
    """Whether a source is tokens already: by its format, or by the name of a single file."""
    plain = without_secrets(source.path)
    named = plain.lower().endswith(TOKEN_SUFFIXES) and not Path(source.path).is_dir()
    return source.format != "auto" or named


def _local_tokens(path: Path, given: str) -> tuple[Sequence[_File], Any]:
    if path.is_dir():
        walked = _walk(path, "", lambda name: name.lower().endswith(TOKEN_SUFFIXES))
        found = sorted(walked, key=lambda item: item[0].name)
        if not found:
            raise DataError(f"{given}: no .bin in this folder", "give the folder that holds them")
        return [file for file, _ in found], [identity for _, identity in found]
    # Megatron-LM is given the two files' common prefix; either of them means both here.
    if path.suffix == ".idx" or (not path.exists() and Path(f"{path}.bin").is_file()):
        path = Path(f"{str(path).removesuffix('.idx')}.bin")
    if not path.is_file():
        raise DataError(f"{path}: no such file", _nearest(path))
    both = [each for each in (path, path.with_suffix(".idx")) if each.is_file()]
    return [_File(p, p.name) for p in both], [_stamp(p.name, p.stat()) for p in both]


def _token_paths(source: SourceSection, files: Sequence[_File]) -> tuple[TokenPath, ...]:
    indices = {file.name: file.path for file in files if file.name.lower().endswith(".idx")}
    return tuple(
        TokenPath(file.path, file.name, source.format, indices.get(f"{file.name[:-4]}.idx"))
        for file in files
        if file.name not in indices
    )


def _walk(folder: Path, prefix: str, taken: Callable[[str], bool]) -> Iterator[tuple[_File, Any]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            name = f"{prefix}{entry.name}"
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(Path(entry.path), f"{name}/", taken)
            elif taken(entry.name) and entry.is_file():
                yield _File(Path(entry.path), name), _stamp(name, entry.stat())


def _stamp(name: str, status: os.stat_result) -> list[str | int]:
    return [name, status.st_size, status.st_mtime_ns]


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
