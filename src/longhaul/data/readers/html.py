"""HTML to the text that a browser shows, line by block; nothing is guessed to be boilerplate.

Navigation and notices stay: filters and the removal of paragraphs that many documents share say
what they drop, which an extraction that guesses does not.
"""

import codecs
import re
from html.parser import HTMLParser

from longhaul.data.readers.rows import Broken

_UNSEEN = frozenset({
    "script", "style", "template", "noscript", "svg", "math", "iframe", "object", "head", "select",
})  # fmt: skip
_BLOCKS = frozenset({
    "address", "article", "aside", "blockquote", "body", "br", "caption", "center", "dd", "details",
    "dialog", "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2",
    "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol", "option", "p", "pre",
    "section", "summary", "table", "tbody", "tfoot", "thead", "title", "tr", "ul",
})  # fmt: skip
_PARAGRAPHS = frozenset({
    "article", "blockquote", "dl", "figure", "h1", "h2", "h3", "h4", "h5", "h6", "ol", "p", "pre",
    "section", "table", "ul",
})  # fmt: skip
_HEAD_BYTES = 1024
_CHARSET = re.compile(rb"""<meta[^>]+charset\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)
_SPACE = re.compile(r"[ \t\r\n\f]+")


def page_text(content: bytes, kind: str) -> str:
    """The text of a page of this content type, `text/html; charset=utf-8` for example.

    Bytes that its encoding does not have become U+FFFD, as in a browser. Broken if a page that
    names no encoding is not UTF-8.
    """
    text = _decoded(content, kind)
    if "html" not in kind.lower():
        return text
    page = _Page()
    page.feed(text)
    page.close()
    return page.text()


def _decoded(content: bytes, kind: str) -> str:
    marked = content.startswith(codecs.BOM_UTF8)
    named = re.search(r"charset\s*=\s*[\"']?([\w.:-]+)", kind, re.IGNORECASE)
    label = named.group(1) if named else ""
    if not label and (found := _CHARSET.search(content[:_HEAD_BYTES])):
        label = found.group(1).decode("ascii", "replace")
    try:
        encoding = "utf-8" if marked else codecs.lookup(label).name if label else ""
    except LookupError:
        encoding = ""
    # Pages that name Latin-1 mean Windows' form of it (WHATWG, Encoding Standard, section 4.2).
    encoding = {"iso8859-1": "cp1252", "ascii": "cp1252"}.get(encoding, encoding)
    content = content.removeprefix(codecs.BOM_UTF8)
    if encoding:
        return content.decode(encoding, "replace").replace("\0", "\ufffd")
    try:
        return content.decode().replace("\0", "\ufffd")
    except UnicodeDecodeError as error:
        byte = f"0x{content[error.start]:02x} at {error.start:,}"
        raise Broken(f"a page that names no encoding and is not UTF-8 (byte {byte})") from None


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._pieces: list[str] = []
        self._unseen: list[str] = []
        self._preformatted = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _BLOCKS and tag != "title" and self._unseen == ["head"]:
            self._unseen.clear()  # nobody has to close it
        if tag in _UNSEEN:
            self._unseen.append(tag)
        self._preformatted += tag == "pre"
        self._break(tag)
        if tag in ("td", "th"):
            self._pieces.append("\t")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._unseen:
            # What was left open within ends with it.
            del self._unseen[self._unseen.index(tag) :]
        self._preformatted = max(0, self._preformatted - (tag == "pre"))
        self._break(tag)

    def handle_data(self, data: str) -> None:
        if not self._unseen:
            self._pieces.append(data if self._preformatted else _SPACE.sub(" ", data))

    def _break(self, tag: str) -> None:
        if tag in _BLOCKS and not self._unseen:
            self._pieces.append("\n\n" if tag in _PARAGRAPHS else "\n")

    def text(self) -> str:
        lines = [line.rstrip(" \t") for line in "".join(self._pieces).split("\n")]
        text = "\n".join(line.lstrip("\t") if "\t" in line[:1] else line for line in lines)
        text = re.sub(r"(?m)^ (?! )", "", text)
        return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
