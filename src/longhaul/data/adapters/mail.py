"""Mail: what somebody wrote, without headers, quoted replies, signatures and lists' footers.

A record is one message with its headers, a text or field with the body alone, or an mbox file, as
archives of mailing lists are. Kept are the subject and the writer's own lines.
"""

import binascii
import email
import email.errors
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from email.header import decode_header, make_header
from email.message import Message
from itertools import pairwise

from longhaul.data.adapters.records import Adapted, Record, plain_text
from longhaul.data.documents import Document
from longhaul.data.removed import CHANGED, Removed

# "From ", after an empty line or at the beginning, with a year at the line's end (RFC 4155).
_ENVELOPE = re.compile(
    r"(?:\A|(?<=\n\n))From \S[^\n]*\b(?:19|20)\d\d(?: [+-]\d{4})?[ \t]*$", re.MULTILINE
)
_HEADERS = re.compile(r"(?:[A-Za-z][A-Za-z0-9-]{0,60}:[^\n]*\n(?:[ \t][^\n]*\n)*)+\n")
_QUOTED = re.compile(r" ?(?:[A-Za-z]{0,3}>|\| )")
_ATTRIBUTION = re.compile(
    r"(?:[^\n]{0,200}\n)?[^\n]{0,200}\b(?:wrote|writes|said|schrieb|écrit|escribió|ha scritto|"
    r"skrev|schreef)\b[^\n:]{0,40}:\s*\Z"
)
_ATTRIBUTED = re.compile(r"(?:On|In|At|Am|Le|El|Il|Den|Op)\b|.*(?:@|<)")
_FORWARDED = re.compile(r"-{2,}\s*(?:Original|Forwarded) (?:Message|message)")
_OUTLOOK = re.compile(r"From: .+\n(?:.+\n)?(?:Sent|Date): .+\n(?:.+\n){0,3}Subject: ")
_SIGNATURE = re.compile(r"-- ?\Z")
_RULE = re.compile(r"[_-]{20,}\Z")
_FOOTER = re.compile(r"(?i)mailing list|unsubscribe|listinfo")

HEADERS = f"{CHANGED}mail: headers"
QUOTES = f"{CHANGED}mail: quoted"
SIGNATURES = f"{CHANGED}mail: signature"
NOTHING_OWN = "mail: nothing of the writer's own"
NO_TEXT = "mail: no plain text"


def adapt_mail(records: Iterator[Record], removed: Removed) -> Iterator[Adapted]:
    """One document for each message in which something is left."""
    for name, message in _messages(records):
        head, subject, body = _parts(message)
        if head:
            removed.drop(HEADERS, name, head)
        if not body.strip():
            removed.drop(NO_TEXT, name, message)
            continue
        own, cut = _own_lines(body)
        for reason, lines in cut.items():
            removed.drop(reason, name, "\n".join(lines))
        if not own:
            removed.drop(NOTHING_OWN, name, body)
            continue
        text = "\n\n".join(part for part in (subject, own) if part)
        yield Adapted(message, Document(f"{text}\n", name))


def _messages(records: Iterable[Record]) -> Iterator[tuple[str, str]]:
    """Name and text of each; an archive is cut at its envelopes, across pieces of its file too."""
    carried, archive, number = "", "", 0
    for record in records:
        value = record.first(record.text_field, "message", "raw", "body", "content")
        text = value if isinstance(value, str) else ""
        file = record.name.partition("#")[0]
        if file != archive:
            if carried:
                yield f"{archive}/{number + 1}", carried
            carried, archive, number = "", file, 0
        text = carried + text
        begins = [match.start() for match in _ENVELOPE.finditer(text)]
        if not begins or begins[0] > 0:
            yield record.name, text
            continue
        for begin, end in pairwise(begins):
            number += 1
            yield f"{archive}/{number}", text[begin:end]
        carried = text[begins[-1] :]
    if carried:
        yield f"{archive}/{number + 1}", carried


def _parts(message: str) -> tuple[str, str, str]:
    """Headers as they stand, the subject, and the body as it is read."""
    message = message.replace("\r\n", "\n")
    envelope = _ENVELOPE.match(message)
    begin = envelope.end() + 1 if envelope else 0
    headers = _HEADERS.match(message, begin)
    if headers is None:
        return message[:begin], "", plain_text(message[begin:])
    parsed = email.message_from_string(message[begin:])
    subject = str(parsed.get("Subject", ""))
    with suppress(LookupError, ValueError, email.errors.MessageError):
        subject = str(make_header(decode_header(subject)))
    texts: dict[str, str] = {}
    for part in parsed.walk():
        if part.get_content_maintype() == "text" and part.get_filename() is None:
            texts.setdefault(part.get_content_subtype(), _content(part))
    body = texts.get("plain") or plain_text(texts.get("html", ""))
    return message[: headers.end()], " ".join(subject.split()), body


def _content(part: Message) -> str:
    """Text that is not encoded as it stands: the file was decoded when it was read, and the
    library would make escapes of letters beyond ASCII.
    """
    encoding = str(part.get("Content-Transfer-Encoding", "")).strip().lower()
    if encoding not in ("quoted-printable", "base64"):
        payload = part.get_payload()
        return payload if isinstance(payload, str) else ""
    try:
        content = part.get_payload(decode=True)
    except (binascii.Error, ValueError):
        return ""
    if not isinstance(content, bytes):
        return ""
    for charset in (part.get_content_charset(), "utf-8"):
        try:
            return content.decode(charset or "utf-8").replace("\r\n", "\n")
        except (LookupError, UnicodeDecodeError):
            continue
    return ""


def _own_lines(body: str) -> tuple[str, dict[str, list[str]]]:
    """What the writer wrote, and the lines that are cut by reason."""
    cut: dict[str, list[str]] = {}
    if forwarded := _OUTLOOK.search(body):
        cut[QUOTES] = body[forwarded.start() :].split("\n")
        body = body[: forwarded.start()]
    lines = body.split("\n")
    kept: list[str] = []
    for number, line in enumerate(lines):
        is_footer = _RULE.match(line) and _FOOTER.search("\n".join(lines[number + 1 : number + 5]))
        if _SIGNATURE.match(line) or is_footer:
            cut[SIGNATURES] = lines[number:]
            break
        if _FORWARDED.match(line):
            cut[QUOTES] = [*cut.get(QUOTES, []), *lines[number:]]
            break
        if _QUOTED.match(line):
            attribution = _attribution(kept)
            del kept[len(kept) - len(attribution) :]
            cut.setdefault(QUOTES, []).extend([*attribution, line])
        else:
            kept.append(line)
    return "\n".join(kept).strip(), cut


def _attribution(kept: list[str]) -> list[str]:
    """The last lines, if they say who wrote what is quoted next ("On Monday, Ada wrote:")."""
    end = len(kept)
    while end and not kept[end - 1].strip():
        end -= 1
    if not end or not _ATTRIBUTION.match(kept[end - 1]):
        return []
    begins_above = end > 1 and not _ATTRIBUTED.match(kept[end - 1])
    begin = end - 2 if begins_above and _ATTRIBUTED.match(kept[end - 2]) else end - 1
    return kept[begin:]
