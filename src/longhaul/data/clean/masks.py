"""Secrets and addresses in a text, replaced by placeholders.

Placeholders are StarCoder's (Li et al. 2023, "StarCoder: may the source be with you!", section 4).
Only what cannot well be something else is masked: a telephone number looks like many numbers.
"""

import ipaddress
import re

KEY, EMAIL, IP_ADDRESS = "<KEY>", "<EMAIL>", "<IP_ADDRESS>"

_PREFIXED = {
    # What a text must hold for the pattern to be tried: searching for words costs far less.
    "AKIA": r"\bAKIA[0-9A-Z]{16}\b",  # Amazon
    "ASIA": r"\bASIA[0-9A-Z]{16}\b",
    "AIza": r"\bAIza[\w-]{35}",  # Google
    "gh": r"\bgh[opsur]_[0-9A-Za-z]{36,}",  # GitHub
    "github_pat_": r"\bgithub_pat_\w{50,}",
    "glpat-": r"\bglpat-[\w-]{20,}",  # GitLab
    "xox": r"\bxox[abeoprs]-[0-9A-Za-z-]{10,}",  # Slack
    "k_live_": r"\b[prs]k_live_[0-9A-Za-z]{16,}",  # Stripe
    "sk-": r"\bsk-(?:ant-|proj-)?[\w-]{32,}",  # OpenAI, Anthropic
    "hf_": r"\bhf_[A-Za-z]{34}\b",  # Hugging Face
    "npm_": r"\bnpm_[0-9A-Za-z]{36}\b",
    "pypi-": r"\bpypi-AgE[\w-]{50,}",
    "eyJ": r"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}",  # JSON web tokens
    "PRIVATE KEY": r"-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]+-----END [A-Z ]*PRIVATE KEY-----",
}
_SECRETS = {holds: re.compile(pattern) for holds, pattern in _PREFIXED.items()}
# `password = "…"`: only in quotes, of 12 characters or more and with a digit, so that an example
# such as "your-password-here" stays.
_ASSIGNED = re.compile(
    r"(?i)(?:password|passwd|secret|token|api_?key|access_?key)['\"]?\s{0,3}(?:=>|[:=])\s{0,3}"
    r"(?P<quote>['\"])(?P<value>(?=[^'\"\s]*\d)[^'\"\s]{12,200})(?P=quote)"
)
_ASSIGNING = ("passw", "secret", "token", "apikey", "api_key", "accesskey", "access_key")
_EMAIL = re.compile(
    r"(?<![\w.+%-])[A-Za-z0-9][\w.+%-]{0,63}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}\b"
)
_IPV4 = re.compile(r"(?<![\w.-])(?:\d{1,3}\.){3}\d{1,3}(?![\w-]|\.\d)")
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
    count = 0
    if "@" in text:
        text, count = _EMAIL.subn(EMAIL, text)
    masked = 0

    def masked_address(found: re.Match[str]) -> str:
        nonlocal masked
        before = text[max(0, found.start() - 12) : found.start()]
        if not _is_public(found.group()) or _VERSION.search(before):
            return found.group()
        masked += 1
        return IP_ADDRESS

    masked_text = _IPV4.sub(masked_address, text)
    return masked_text, count + masked


def _is_public(address: str) -> bool:
    try:
        return ipaddress.IPv4Address(address).is_global
    except ValueError:
        return False
