"""Addresses that carry a secret: a password before the host, a signature behind the question mark.

An address is *sealed* as soon as a recipe or an option names it: `https://***@host/a.txt?sig=***`.
Only that form is kept, shown, compared and hashed; the whole one stays in this process and in the
environment of those it starts. A value written as `${NAME}` is no secret: the environment has it.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus

from longhaul.core.errors import UsageError

KEPT_IN = "LONGHAUL_ADDRESSES"
"""By it started processes know the whole addresses: sealed → whole, as JSON."""
SENT = "LONGHAUL_ADDRESSES_SENT"
"""Says that whoever started a process gave it `KEPT_IN`, which a node's command may not pass on."""
_START = r"[A-Za-z][A-Za-z0-9+.-]*://"
# Of chained addresses (`zip://*.csv::https://host/a.zip`) each is one of its own.
_IN_TEXT = re.compile(rf"({_START})((?:(?!::{_START})[^\s\"'<>`|])*)")
_WHOLE = re.compile(rf"({_START})((?:(?!::{_START}).)*)", re.DOTALL)
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_HARMLESS = re.compile(r"(\$\{[A-Za-z_][A-Za-z0-9_]*\}|\*\*\*\d*)*")
_SEAL = re.compile(r"://([^/?#\s]*:)?\*\*\*\d*@|[?&;#=]\*\*\*\d*(?=[&;#\s\"']|$)")
_WEB = frozenset({"http", "https", "ws", "wss"})
_USERS = frozenset({"abfs", "abfss", "wasb", "wasbs", "ssh", "sftp", "scp", "hdfs", "smb"})
"""Where what stands before the @ without a colon is a user or a container, and no token."""
_SHORTEST_SECRET = 4
"""Shorter ones are not looked for outside of their address: `1` and `yes` stand everywhere."""


@dataclass(frozen=True, slots=True)
class _Parts:
    scheme: str
    user: str
    host: str
    path: str
    query: str
    """With its question mark; empty where a question mark is a glob's."""
    fragment: str

    @classmethod
    def of(cls, start: str, rest: str) -> "_Parts":
        scheme = start[:-3].lower()
        end = next((at for at, c in enumerate(rest) if c in "/?#"), len(rest))
        if "@" not in rest[:end] and "@" in rest[end:] and re.search(r":(?!\d*$)", rest[:end]):
            end = rest.rindex("@") + 1  # a password with a slash that nobody has escaped
            end += next((at for at, c in enumerate(rest[end:]) if c in "/?#"), len(rest) - end)
        user, at, host = rest[:end].rpartition("@")
        path, fragment, query = rest[end:], "", ""
        if scheme in _WEB:
            path, hash_sign, fragment = path.partition("#")
            fragment = hash_sign + fragment
        before, mark, after = path.partition("?")
        if mark and (scheme in _WEB or "=" in after):
            path, query = before, mark + after
        return cls(scheme, user + at, host, path, query, fragment)

    def secrets(self) -> Iterator[str]:
        user = self.user.removesuffix("@")
        if self._user_is_secret():
            yield user.partition(":")[2] or user
        for piece in re.split("[&;]", self.query[1:]):
            key, equals, value = piece.partition("=")
            yield value if equals else key
        yield self.fragment[1:]

    def sealed(self, start: str, mark: str) -> str:
        user = f"{mark}@" if self._user_is_secret() else self.user

        def without(piece: str) -> str:
            key, equals, value = piece.partition("=")
            hidden = value if equals else key
            if not hidden or _HARMLESS.fullmatch(hidden):
                return piece
            return f"{key}={mark}" if equals else mark

        query = re.sub("[^?&;]+", lambda piece: without(piece[0]), self.query)
        fragment = self.fragment[:1] + without(self.fragment[1:])
        return f"{start}{user}{self.host}{self.path}{query}{fragment}"

    def shown(self, start: str) -> str:
        hidden = self._user_is_secret() or self.scheme not in _USERS
        return f"{start}{'' if hidden else self.user}{self.host}{self.path}"

    def _user_is_secret(self) -> bool:
        user = self.user.removesuffix("@")
        name, colon, password = user.partition(":")
        if not colon:
            return not _HARMLESS.fullmatch(name) and self.scheme not in _USERS
        return not _HARMLESS.fullmatch(password)


_whole: dict[str, str] = {}


def without_secrets(address: str) -> str:
    """An address as it may stand anywhere: without user, password, query and fragment."""
    return _WHOLE.sub(lambda found: _Parts.of(*found.groups()).shown(found[1]), address)


def scrubbed(text: str) -> str:
    """A message without the secrets of addresses, wherever they stand in it."""
    text = _IN_TEXT.sub(lambda found: _Parts.of(*found.groups()).shown(found[1]), text)
    for secret in _known_secrets():
        if secret in text:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "***", text)
    return text


def sealed(text: str) -> str:
    """A text with the addresses in it sealed; this process remembers the whole ones."""
    pattern = _WHOLE if re.match(_START, text) else _IN_TEXT
    return pattern.sub(_seal, text) if "://" in text else text


def sealed_values(value: Any) -> Any:
    """Nested tables and lists with every text in them sealed."""
    if isinstance(value, str):
        return sealed(value)
    if isinstance(value, Mapping):
        return {key: sealed_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(sealed_values(item) for item in value)
    return value


def holds_a_secret(text: str) -> bool:
    """Whether a secret of an address can still be read in a text."""
    return sealed(text) != text or any(secret in text for secret in _known_secrets())


def unsealed(text: str, *, references: bool = True) -> str:
    """The whole address, or a text with some, for who fetches or runs it; a `UsageError` if a
    secret is not known here. With `references`, the environment's values stand for `${NAME}`.
    """
    for form in sorted(_known(), key=len, reverse=True):
        if form in text:
            whole = _known()[form].replace("\\", r"\\")
            text = re.sub(rf"{re.escape(form)}(?![\w.?&=-])", whole, text)
    if references and "://" in text:
        if unset := [name for name in _REFERENCE.findall(text) if name not in os.environ]:
            raise UsageError(
                f"{scrubbed(text)}: the environment has no variable {unset[0]}",
                f"set {unset[0]} where the run is started",
            )
        text = _REFERENCE.sub(lambda found: os.environ[found[1]], text)
    if _SEAL.search(text):
        if is_cut_off():
            raise UsageError(
                f"{scrubbed(text)}: its password or signature is needed on this node, whose "
                "command does not pass the environment on",
                f"write the secret as ${{NAME}} in the recipe and set NAME on the nodes, or let "
                f"the command pass {KEPT_IN} on (ssh: SendEnv, and AcceptEnv on the node)",
            )
        raise UsageError(
            f"{scrubbed(text)}: its password or signature is needed and is not kept with the run",
            "start it with the recipe that has the whole address, give it again with --data or "
            "--set, or write the secret as ${NAME} and set that variable",
        )
    return text


def is_cut_off() -> bool:
    """Whether secrets that were sent to this process have not reached it."""
    return SENT in os.environ and KEPT_IN not in os.environ


def forget_addresses() -> None:
    """Forget every whole address, as a new process would."""
    _whole.clear()
    os.environ.pop(KEPT_IN, None)


def _seal(found: "re.Match[str]") -> str:
    parts, whole, count = _Parts.of(*found.groups()), found[0], 1
    form = parts.sealed(found[1], "***")
    if form == whole:
        return whole
    known = _known()
    # Two addresses may differ in nothing but what is hidden, and must stay two.
    while known.get(form, whole) != whole:
        count += 1
        form = parts.sealed(found[1], f"***{count}")
    if form not in known:
        known[form] = whole
        os.environ[KEPT_IN] = json.dumps(known)
    return form


def _known() -> dict[str, str]:
    if not _whole and KEPT_IN in os.environ:
        try:
            _whole.update(json.loads(os.environ[KEPT_IN]))
        except (ValueError, TypeError):
            os.environ.pop(KEPT_IN)
    return _whole


def _known_secrets() -> set[str]:
    found = set()
    for address in _known().values():
        for start, rest in _WHOLE.findall(address):
            found |= {
                form for s in _Parts.of(start, rest).secrets() for form in (s, unquote_plus(s))
            }
    return {s for s in found if len(s) >= _SHORTEST_SECRET and not _HARMLESS.fullmatch(s)}
