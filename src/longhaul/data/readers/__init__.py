"""Readers: one file in, compressed or not; its documents out, and everything that is left out is
counted. What a document is used for is never known here.
"""

from longhaul.data.readers.files import read_file
from longhaul.data.readers.formats import (
    KNOWN_FORMATS,
    TOKEN_SUFFIXES,
    Format,
    format_of,
    suffix_advice,
    taken_from_folder,
)

__all__ = [
    "KNOWN_FORMATS",
    "TOKEN_SUFFIXES",
    "Format",
    "format_of",
    "read_file",
    "suffix_advice",
    "taken_from_folder",
]
