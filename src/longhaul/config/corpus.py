"""What is changed in a text and which documents are left out; off, unless a recipe says so."""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import PlainSerializer, PlainValidator
from pydantic_core import PydanticCustomError

from longhaul.config.section import Section, fixed

Adapter = Literal["", "discussion", "mail", "proceedings", "questions"]

Script = Literal[
    "arabic", "armenian", "bengali", "cyrillic", "devanagari", "ethiopic", "georgian", "greek",
    "gujarati", "gurmukhi", "han", "hangul", "hebrew", "hiragana", "kannada", "katakana", "khmer",
    "lao", "latin", "malayalam", "mongolian", "myanmar", "oriya", "sinhala", "tamil", "telugu",
    "thai", "tibetan",
]  # fmt: skip
"""A script as Unicode names it, in the first word of its letters' names; `han` is CJK."""


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and value == value and value >= 0


def _limit_or_switch(value: Any) -> Any:
    """By hand: pydantic would give a mistake once for every member of a union."""
    if value is None or type(value) is bool or _is_number(value):
        return value
    raise PydanticCustomError("limit", "neither true, false nor a number from 0 on")


def _pair(value: Any) -> tuple[float, float] | None:
    if isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_number, value)):
        low, high = value
        return (low, high) if low <= high else None
    return None


def _range_or_switch(value: Any) -> Any:
    if value is None or type(value) is bool:
        return value
    if (pair := _pair(value)) is None:
        raise PydanticCustomError("range", "neither true, false nor [least, most]")
    return pair


def _range(value: Any) -> Any:
    if value is None or value is False:
        return None
    if (pair := _pair(value)) is None:
        raise PydanticCustomError("range", "neither false nor [least, most]")
    return pair


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


# What pydantic makes of a checked pair by itself comes with warnings.
_AS_LIST = PlainSerializer(_listed, when_used="json")
_Limit: TypeAlias = Annotated[
    float | bool | None, PlainValidator(_limit_or_switch, json_schema_input_type=float | bool)
]
_Range: TypeAlias = Annotated[
    tuple[float, float] | bool | None,
    PlainValidator(_range_or_switch, json_schema_input_type=tuple[float, float] | bool),
    _AS_LIST,
]
_OwnRange: TypeAlias = Annotated[
    tuple[float, float] | None,
    PlainValidator(_range, json_schema_input_type=tuple[float, float] | Literal[False]),
    _AS_LIST,
]


class CleanSection(Section):
    """What is changed in every text. No switch adds a character, other than the replacements that
    docs/clean.md states.
    """

    whitespace: bool = fixed(False)
    """Line ends become `\\n`, spaces at line ends go, and so do empty lines at the beginning and
    beyond two in a row; kinds of space become the plain one."""
    characters: bool = fixed(False)
    """Control characters, terminal sequences, soft hyphens, byte order marks and other characters
    without a width go; joiners that spell Persian, Hindi and emoji stay."""
    unicode: Literal["", "NFC"] = fixed("")
    """`NFC` composes letters and accents, so that equal text has equal bytes."""
    mask_secrets: bool = fixed(False)
    """Keys and tokens of known services, private keys and quoted passwords become `<KEY>`."""
    mask_addresses: bool = fixed(False)
    """E-mail addresses become `<EMAIL>`, public IPv4 addresses `<IP_ADDRESS>`."""


class FilterSection(Section):
    """Which documents are left out. `true` takes the published threshold, a number or
    `[least, most]` another one, `false` takes a filter out of a preset.
    """

    gopher: bool = fixed(False)
    """Preset: `words` to `repeated_words`, the rules of Gopher (Rae et al. 2021, A.1.1)."""
    c4: bool = fixed(False)
    """Preset: `end_marks` to `sentences`, the rules of C4 (Raffel et al. 2020, section 2.2)."""
    length: _OwnRange = fixed(None)
    """Characters, `[least, most]`."""
    words: _Range = fixed(None)
    """Words between white space; Gopher: 50 to 100,000."""
    word_length: _Range = fixed(None)
    """Mean characters in a word; Gopher: 3 to 10."""
    symbols: _Limit = fixed(None)
    """Most `#` in a word, and most ellipses; Gopher: 0.1 of each."""
    bullets: _Limit = fixed(None)
    """Most lines that begin with a bullet; Gopher: 0.9 of them."""
    ellipses: _Limit = fixed(None)
    """Most lines that end in an ellipsis; Gopher: 0.3 of them."""
    letters: _Limit = fixed(None)
    """Fewest words with a letter in them; Gopher: 0.8 of them."""
    stop_words: _Limit = fixed(None)
    """Fewest of the, be, to, of, and, that, have, with that occur; Gopher: 2. English only."""
    repeated_lines: bool | None = fixed(None)
    """Lines and paragraphs that occur again; Gopher, table A1: 0.3 of them, 0.2 of characters."""
    repeated_words: bool | None = fixed(None)
    """Runs of 2 to 10 words that occur again; Gopher, table A1: 0.2 to 0.1 of characters."""
    end_marks: bool | None = fixed(None)
    """Cut lines that do not end in `.`, `!`, `?` or `"`, or end in an ellipsis; C4."""
    line_words: _Limit = fixed(None)
    """Cut lines of fewer words; C4: 5."""
    boilerplate: bool | None = fixed(None)
    """Cut lines about JavaScript, cookies and terms of use, and citation marks such as [1]; leave
    out pages with `lorem ipsum`; C4."""
    braces: bool | None = fixed(None)
    """Leave out documents with a `{`, which is code; C4."""
    sentences: _Limit = fixed(None)
    """Fewest sentences; C4: 3."""
    entropy: _Range = fixed(None)
    """Bits in a byte once the byte before is known, by the document's own counts. YaLM left out
    too low and too high without giving figures; ours: 1.5 to 4.2."""
    scripts: tuple[Script, ...] = fixed(())
    """Scripts that letters may be of; none given, all are."""
    script_share: float = fixed(0.8, ge=0, le=1)
    """Least share of a document's letters in `scripts`."""
    blocked_domains: str = fixed("")
    """A file of domains, one a line: their pages go, and those of domains below them. A page's
    address is in `data.sources.url_field`, or is its document's name."""
    allowed_domains: str = fixed("")
    """A file of domains: pages of all others go. Documents without an address stay."""
    classifier: str = fixed("")
    """A quality classifier made by `longhaul data classifier GOOD BAD -o FILE`."""
    classifier_threshold: float = fixed(0.5, ge=0, le=1)
    """Least probability of being good."""
