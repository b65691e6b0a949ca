"""Sentences as both translators see them: placeholders out, words and signs apart, and back.

A placeholder (`%s`, `{name}`, `<b>`, an address) becomes a mark `⟦1⟧` numbered by its place in the
source; its equal in the target becomes the same mark. A sign that touches its neighbour carries
`￭` on that side (OpenNMT's joiner), so that `joined` is the exact inverse of `words`.
"""

import itertools
import re
import unicodedata
from collections import Counter

JOINER = "￭"
MOST_MARKS = 9
MOST_CHARACTERS = 600
"""Of one sentence to be translated: what is longer is cut into pieces."""

_PLACEHOLDER = re.compile(
    r"https?://[^\s<>\"']+"
    r"|</?[A-Za-z][^<>]{0,200}>"
    r"|&(?:#\d+|[a-z]+);"
    r"|%\(\w+\)[-+# 0]*\d*(?:\.\d+)?[a-zA-Z]"
    r"|%(?:\d+\$)?[-+#0]*\d*(?:\.\d+)?(?:hh|h|ll|l|z|j|q)?[a-zA-Z](?![a-z])"
    r"|%%|%\d+"
    r"|\$\{[^{}]{1,80}\}|\$\(\w+\)|\{\{[^{}]{1,80}\}\}|\{[^{}\s]{0,80}\}"
)
_MARK = re.compile(r"⟦(\d+)⟧")
_TOKEN = re.compile(r"⟦\d+⟧|\w+(?:[-'’]\w+)*|[^\w\s]")
_WORD = re.compile(r"⟦\d+⟧$|\w")
_MNEMONIC = re.compile(r"(?<!\w)(?:[_~]|&(?![a-z]+;))(?=[^\W_])|(?<=\w)(?:~|&(?![a-z]+;))(?=\w)")


def plain(text: str) -> str:
    """A message without the signs of keyboard access (`_File`, `~Datei`), spaces made one."""
    text = unicodedata.normalize("NFC", text)
    if text.count("_") == 1:  # `Co_pier`; of several, they are in names of things
        text = text.replace("_", "")
    return " ".join(_MNEMONIC.sub("", text).split())


def placeholders(text: str) -> list[str]:
    """The placeholders of a text in their order."""
    return _PLACEHOLDER.findall(text)


def masked(source: str) -> tuple[str, list[str]]:
    """The text with marks in place of placeholders, and what each mark stands for."""
    held: list[str] = []

    def mark(found: re.Match[str]) -> str:
        if len(held) == MOST_MARKS:
            return found.group()
        held.append(found.group())
        return f"⟦{len(held)}⟧"

    return _PLACEHOLDER.sub(mark, source.replace("⟦", "[").replace("⟧", "]")), held


def masked_pair(source: str, target: str) -> tuple[str, str] | None:
    """Both texts with the same marks; None if their placeholders are not the same."""
    if Counter(placeholders(source)) != Counter(placeholders(target)):
        return None
    marked, held = masked(source)
    if len(placeholders(source)) > MOST_MARKS:
        return None
    free: dict[str, list[int]] = {}
    for number, text in enumerate(held, 1):
        free.setdefault(text, []).append(number)
    target = target.replace("⟦", "[").replace("⟧", "]")
    return marked, _PLACEHOLDER.sub(lambda found: f"⟦{free[found.group()].pop(0)}⟧", target)


def unmasked(text: str, held: list[str]) -> str:
    """The placeholders back in place of their marks; a mark that stands for nothing is dropped."""

    def given(found: re.Match[str]) -> str:
        number = int(found.group(1))
        return held[number - 1] if 1 <= number <= len(held) else ""

    return _MARK.sub(given, text)


def marks(text: str) -> Counter[str]:
    """How often each mark stands in a text."""
    return Counter(found.group() for found in _MARK.finditer(text))


def words(text: str) -> list[str]:
    """Words, signs and marks of a masked text; signs carry joiners where they touch."""
    found = list(_TOKEN.finditer(text))
    tokens = [match.group() for match in found]
    for here, (one, other) in enumerate(itertools.pairwise(found)):
        if one.end() != other.start():
            continue
        if _MARK.match(other.group()) or not _WORD.match(other.group()):
            tokens[here + 1] = JOINER + tokens[here + 1]
        elif _MARK.match(one.group()) or not _WORD.match(one.group()):
            tokens[here] += JOINER  # never on a word, which would be another word then
        else:
            tokens[here + 1] = JOINER + tokens[here + 1]
    return tokens


def joined(tokens: list[str]) -> str:
    """The text of tokens: a space between two that carry no joiner."""
    text = ""
    glued = True
    for token in tokens:
        core = token.strip(JOINER)
        text += core if glued or token.startswith(JOINER) else " " + core
        glued = token.endswith(JOINER)
    return text


def key(text: str) -> str:
    """What two texts have in common that are the same but for case, signs, numbers and marks."""
    return " ".join(re.findall(r"[^\W\d_]+", _MARK.sub(" ", text).lower()))
