"""Formats by name: which reader takes a file, and what to say where none does."""

import difflib
from pathlib import Path
from typing import Literal

Format = Literal["text", "json lines", "parquet", "arrow", "csv", "tar", "warc"]

COMPRESSED_SUFFIXES = (".gz", ".zst", ".xz", ".bz2")
TEXT_SUFFIXES = frozenset({
    ".txt", ".text", ".md", ".rst", ".tex", ".org", ".adoc", ".html", ".htm", ".xml",
    ".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".cxx", ".hpp", ".cu", ".cuh", ".rs", ".go",
    ".java", ".kt", ".scala", ".js", ".jsx", ".ts", ".tsx", ".css", ".rb", ".php", ".pl", ".pm",
    ".lua", ".r", ".jl", ".hs", ".ml", ".ex", ".erl", ".clj", ".lisp", ".el", ".scm", ".swift",
    ".cs", ".fs", ".sh", ".bash", ".zsh", ".sql", ".f90", ".f", ".asm", ".s", ".v", ".vhd",
    ".toml", ".yaml", ".yml", ".ini", ".cfg", ".cmake",
})  # fmt: skip
LINE_SUFFIXES = (".jsonl", ".ndjson", ".json")
_PACKED: dict[str, Format] = {
    **dict.fromkeys(TEXT_SUFFIXES, "text"),
    **dict.fromkeys(LINE_SUFFIXES, "json lines"),
    ".csv": "csv",
    ".tsv": "csv",
    ".warc": "warc",
    ".wet": "warc",
}
"""Formats that are read as a stream, so that the file may be compressed."""
_PLAIN: dict[str, Format] = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".tar": "tar",
}
"""Formats that are compressed within, or not at all."""
TOKEN_SUFFIXES = (".bin", ".idx")
"""Tokens made elsewhere (`token_files.py`); no reader here takes them."""

KNOWN_FORMATS = (
    "longhaul reads .txt and other text (.md, .rst, .py, .c, …), .jsonl, .csv, .tsv, .warc and "
    ".wet, each also as .gz, .zst, .xz or .bz2, .parquet, .arrow, .feather, .tar (WebDataset), and "
    "tokens in .bin (data.sources.format)"
)


def format_of(name: str) -> Format | None:
    """Which reader takes a file of this name; None if none does."""
    path = Path(name.lower())
    if path.suffix in COMPRESSED_SUFFIXES:
        return _PACKED.get(Path(path.stem).suffix)
    return _PACKED.get(path.suffix) or _PLAIN.get(path.suffix)


def delimiter_of(name: str) -> str:
    """What separates the columns of a table in text."""
    return "\t" if ".tsv" in [suffix.lower() for suffix in Path(name).suffixes[-2:]] else ","


def taken_from_folder(name: str) -> bool:
    """Whether a file found in a folder belongs to the corpus: a bare `.json` is JSON lines when it
    is named directly, and in a folder nearly always a settings file.
    """
    return format_of(name) is not None and not name.lower().endswith(".json")


def suffix_advice(name: str) -> str:
    """What to do about a file that no reader takes."""
    suffix = Path(name).suffix.lower()
    near = difflib.get_close_matches(suffix, [*_PACKED, *_PLAIN], 1, 0.7) if suffix else []
    nearest = f" (did you mean {near[0]}?)" if near else ""
    return f"{KNOWN_FORMATS}{nearest}; give plain text the name {Path(name).stem}.txt"
