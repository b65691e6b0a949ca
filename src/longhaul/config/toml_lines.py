"""Where in a TOML file each setting stands.

`tomllib` gives values without positions; a message without a line makes people search.

Enters: TOML text that `tomllib` already accepted. Leaves: dotted path → line number.
Never knows: what the settings mean. Inside inline tables and arrays the line of the
outermost key is given.
"""

import re

from longhaul.core.strict import bare_toml

_TABLE = re.compile(r"^\s*(\[\[?)([^\]]++)\]\]?\s*(#.*)?$")
_NAME = r"""(?:[\w-]+|"[^"]*"|'[^']*')"""
_KEY = re.compile(rf"^\s*({_NAME}(?:\s*\.\s*{_NAME})*)\s*=")


def lines_of_settings(text: str) -> dict[str, int]:
    """Line (from 1) of every key and table header in `text`."""
    lines: dict[str, int] = {}
    table = ""
    counts: dict[str, int] = {}
    closing = ""
    depth = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if closing:
            closing = "" if closing in line else closing
            continue
        if depth > 0:
            depth += _open_brackets(line)
            continue
        if header := _TABLE.match(line):
            path = _joined(header.group(2))
            if header.group(1) == "[[":
                index = counts.get(path, 0)
                counts[path] = index + 1
                path = f"{path}.{index}"
            table = path
            lines.setdefault(path, number)
        elif key := _KEY.match(line):
            path = _joined(key.group(1))
            lines[f"{table}.{path}" if table else path] = number
            value = line[key.end() :]
            closing = _unclosed_string(value)
            depth = 0 if closing else max(0, _open_brackets(value))
    return lines


def _joined(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.split("."))


def _unclosed_string(value: str) -> str:
    for quotes in ('"""', "'''"):
        if value.count(quotes) == 1:
            return quotes
    return ""


def _open_brackets(text: str) -> int:
    bare = bare_toml(text)
    return sum(bare.count(c) for c in "[{") - sum(bare.count(c) for c in "]}")
