"""Secrets and addresses in a text, replaced by placeholders.

Placeholders are StarCoder's (Li et al. 2023, "StarCoder: may the source be with you!", section 4).
Only what cannot well be something else is masked: a telephone number looks like many numbers.
"""

import ipaddress
import re
from collections.abc import Iterator

KEY, EMAIL, IP_ADDRESS = "<KEY>", "<EMAIL>", "<IP_ADDRESS>"

_PREFIXED = {
    # What a text must hold for the pattern to be tried. Each pattern begins with it too, and looks
    # back after it: a search for fixed characters is many times as fast as one for word borders.
    # Lengths are bounded, so that no text costs the square of its own.
    "AKIA": r"AKIA(?<!\w....)[0-9A-Z]{16}\b",  # Amazon
    "ASIA": r"ASIA(?<!\w....)[0-9A-Z]{16}\b",
    "AIza": r"AIza(?<!\w....)[\w-]{35}",  # Google
    "ghp_": r"ghp_(?<!\w....)[0-9A-Za-z]{36,255}",  # GitHub
    "gho_": r"gho_(?<!\w....)[0-9A-Za-z]{36,255}",
    "ghs_": r"ghs_(?<!\w....)[0-9A-Za-z]{36,255}",
    "github_pat_": r"github_pat_\w{50,255}",
    "glpat-": r"glpat-[\w-]{20,255}",  # GitLab
    "xox": r"xox[abeoprs]-(?<!\w.....)[0-9A-Za-z-]{10,255}",  # Slack
    "k_live_": r"k_live_(?<![^\W_]........)[0-9A-Za-z]{16,255}",  # Stripe
    "sk-": r"sk-(?<!\w...)(?=[\w-]{0,255}\d)(?:ant-|proj-)?[\w-]{32,255}",  # OpenAI, Anthropic
    "hf_": r"hf_(?<!\w...)[A-Za-z]{34}\b",  # Hugging Face
    "npm_": r"npm_(?<!\w....)[0-9A-Za-z]{36}\b",
    "pypi-AgE": r"pypi-AgE[\w-]{50,255}",
    "eyJ": r"eyJ(?<!\w...)[\w-]{10,999}\.eyJ[\w-]{10,9999}\.[\w-]{10,999}",  # JSON web tokens
    " PRIVATE KEY-": r"-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]+-----END [A-Z ]*PRIVATE KEY-----",
}
_SECRETS = {holds: re.compile(pattern) for holds, pattern in _PREFIXED.items()}
# `password = "…"`: only in quotes, of 12 characters or more and with a digit, so that an example
# such as "your-password-here" stays.
_ASSIGNED = re.compile(
    r"(?i)(?:password|passwd|secret|token|api_?key|access_?key)['\"]?\s{0,3}(?:=>|[:=])\s{0,3}"
    r"(?P<quote>['\"])(?P<value>(?=[^'\"\s]{0,200}\d)[^'\"\s]{12,200})(?P=quote)"
)
_ASSIGNING = ("passw", "secret", "token", "apikey", "api_key", "accesskey", "access_key")
_DOMAIN = re.compile(r"@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}\b")
_LOCAL_PART = re.compile(r"[A-Za-z0-9][\w.+%-]{0,63}\Z")
_IPV4 = re.compile(r"\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}(?![\w-]|\.\d)")
_BEFORE_ADDRESS = re.compile(r"[\w.-]\Z")
_VERSION = re.compile(r"(?i)(?:version|release|[^a-z]v)[ .:=]{0,2}$")


def mask_secrets(text: str) -> tuple[str, int]:
    """The text with `<KEY>` in place of keys, tokens and quoted passwords, and how many."""
    count = 0
    for holds, pattern in _SECRETS.items():
        if holds in text:
            text, found = pattern.subn(KEY, text)
            count += found
    lowered = text.lower()
    if any(word in lowered for word in _ASSIGNING):
        text, found = _ASSIGNED.subn(_masked_value, text)
        count += found
    return text, count


def _masked_value(found: re.Match[str]) -> str:
    begin, end = found.span("value")
    whole, offset = found.group(), found.start()
    return f"{whole[: begin - offset]}{KEY}{whole[end - offset :]}"


def mask_addresses(text: str) -> tuple[str, int]:
    """The text with `<EMAIL>` and `<IP_ADDRESS>`, and how many; private and reserved IPv4 addresses
    and versions of four numbers stay.
    """
    found = [(*span, EMAIL) for span in _emails(text)] if "@" in text else []
    found += [
        (match.start(), match.end(), IP_ADDRESS)
        for match in _IPV4.finditer(text)
        if _is_address(match, text)
    ]
    pieces, end = [], 0
    for begin, stop, placeholder in sorted(found):
        if begin >= end:
            pieces += [text[end:begin], placeholder]
            end = stop
    return "".join([*pieces, text[end:]]), len(found)


def _emails(text: str) -> Iterator[tuple[int, int]]:
    """Begin and end of each; searched from its `@`, of which a text has few."""
    for match in _DOMAIN.finditer(text):
        before = text[max(0, match.start() - 64) : match.start()]
        if local := _LOCAL_PART.search(before):
            yield match.start() - len(before) + local.start(), match.end()


def _is_address(match: re.Match[str], text: str) -> bool:
    """Whether four numbers are a public IPv4 address, and no version."""
    before = text[max(0, match.start() - 12) : match.start()]
    if _BEFORE_ADDRESS.search(before) or _VERSION.search(before):
        return False
    try:
        return ipaddress.IPv4Address(match.group()).is_global
    except ValueError:
        return False
