"""From how a rank died to a cause with its remedy, by signatures; and the kernel's messages."""

import os
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError
from pydantic_core import ErrorDetails

from longhaul.config.problems import from_pydantic
from longhaul.config.section import Section
from longhaul.core.errors import RecipeError
from longhaul.core.strict import DamagedFile, read_toml
from longhaul.core.units import Bytes, Seconds

LATELY_S: Seconds = 1800.0
"""A death shows in the kernel's log so long before at most: collectives wait for a timeout."""
_RECORD: Bytes = 8192
_MOST_RECORDS = 50_000


def kernel_lines(since: Seconds, path: str = "/dev/kmsg") -> list[str]:
    """The kernel's messages since a monotonic time; none if they may not be read."""
    lines: list[str] = []
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            for _ in range(_MOST_RECORDS):
                try:
                    record = os.read(descriptor, _RECORD).decode(errors="replace")
                except BrokenPipeError:  # the oldest were just written over
                    continue
                if not record:
                    break
                # "priority,sequence,microseconds since boot,flags;message"
                head, _, message = record.partition(";")
                fields = head.split(",")
                if len(fields) > 2 and fields[2].isdecimal() and int(fields[2]) / 1e6 >= since:
                    lines.append(message.split("\n", 1)[0])
        finally:
            os.close(descriptor)
    return lines


Remedy = Literal["restart", "probe", "cordon", "stop"]
_FORMAT = 1
_LONGEST_SHAPE = 120
_LAST_LINE = re.compile(r"^(\w[\w.]*(Error|Exception|Interrupt|Exit)\b.*|longhaul: .*)$", re.M)
_REPORT = re.compile(r"^(?:(?:WARNING|evaluation|micro-batch|segment [\d.]+): |step ).*$", re.M)
"""A rank's reports as it goes on, of a full disk or of an earlier death: it has not died of that.
"""
_VARIABLE = (
    (re.compile(r"0x[0-9a-fA-F]+"), "…"),
    (re.compile(r"/[^\s:'\",)]+"), "/…"),
    (re.compile(r"\b[0-9a-f]{12,}\b"), "…"),
    (re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?"), "N"),
)


@dataclass(frozen=True, slots=True)
class Death:
    """How a rank ended, as far as can be seen from outside."""

    rank: int
    exit_code: int
    """Negative numbers are signals."""
    text: str = ""
    """End of what it wrote into its log in this attempt."""
    kernel: str = ""
    """The kernel's messages since the attempt began, where they can be read."""
    ended: Seconds = 0.0

    @property
    def signal(self) -> str:
        """Name of the signal that ended it; empty for none."""
        if self.exit_code >= 0:
            return ""
        try:
            return signal.Signals(-self.exit_code).name
        except ValueError:  # most real-time signals have no name
            return f"SIG{-self.exit_code}"

    @property
    def words(self) -> str:
        """`exit code 1` or `SIGKILL`."""
        return self.signal or f"exit code {self.exit_code}"


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"is no regular expression ({error})") from error
    return pattern


def _is_signal(name: str) -> str:
    if not re.fullmatch(r"SIG[A-Z0-9+]+", name):
        raise ValueError('is no signal; give them by their names, such as ["SIGKILL"]')
    return name


_Pattern = Annotated[str, AfterValidator(_compiles)]


class Signature(Section):
    """One known way to die."""

    cause: str = Field(min_length=1)
    remedy: Remedy
    meaning: str = ""
    """That of the cause's name when absent."""
    consequence: bool = False
    exit: tuple[int, ...] = ()
    signal: tuple[Annotated[str, AfterValidator(_is_signal)], ...] = ()
    text: _Pattern = ""
    kernel: _Pattern = ""
    device: _Pattern = ""

    def fits(self, death: Death) -> bool:
        """Every condition that it gives holds, but for the device (`of_device`)."""
        if self.exit and death.exit_code not in self.exit:
            return False
        if self.signal and death.signal not in self.signal:
            return False
        return bool(re.search(self.text, death.text) and re.search(self.kernel, death.kernel))


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a rank died."""

    name: str
    meaning: str
    remedy: Remedy
    rank: int | None
    """None: no single rank is to blame."""
    consequence: bool = False
    """It died because another one did."""
    message: str = ""
    """The last thing it said, for people."""
    words: str = ""
    """How it ended: `exit code 1`, `SIGKILL`; empty for a hang."""


def of_device(signatures: Iterable[Signature], device: str) -> list[Signature]:
    """Those that are for a device of this name, or for any."""
    return [known for known in signatures if re.search(known.device, device)]


def classify(death: Death, signatures: Iterable[Signature]) -> Cause:
    """The cause of one death; the first signature that fits decides."""
    message = last_message(death.text)
    evidence = replace(death, text=_REPORT.sub("", death.text))
    for known in signatures:
        if known.fits(evidence):
            return Cause(known.cause, known.meaning or known.cause, known.remedy, death.rank,
                         known.consequence, message, death.words)  # fmt: skip
    shape = shape_of(message) or death.words
    return Cause(f"unknown: {shape}", "no signature fits", "restart", death.rank, False, message,
                 death.words)  # fmt: skip


def first_cause(deaths: Sequence[Death], signatures: Sequence[Signature]) -> Cause:
    """The cause of a group's end: the earliest death that was no consequence of another one."""
    in_order = sorted(deaths, key=lambda death: (death.ended, death.rank))
    causes = [classify(death, signatures) for death in in_order]
    return next((cause for cause in causes if not cause.consequence), causes[0])


def last_message(text: str) -> str:
    """The last line that names an exception or is ours; else the last line with anything in it."""
    named = list(_LAST_LINE.finditer(text))
    if named:
        return named[-1].group(0).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def shape_of(message: str) -> str:
    """A message without what differs from one time to the next: numbers, addresses, paths."""
    for pattern, word in _VARIABLE:
        message = pattern.sub(word, message)
    return message[:_LONGEST_SHAPE]


def load_signatures(own: str | None = None) -> tuple[Signature, ...]:
    """The signatures of the user's TOML file `own`, if there is one, and then the built-in ones.
    RecipeError if the file cannot be read, or a signature in it makes no sense.
    """
    built_in = _read(Path(__file__).with_name("signatures.toml"))
    return built_in if own is None else (*_read(Path(own)), *built_in)


def _read(where: Path) -> tuple[Signature, ...]:
    try:
        _, tables = read_toml(where)
    except (OSError, DamagedFile) as error:
        why = error.message if isinstance(error, DamagedFile) else f"{where}: {error.strerror}"
        raise RecipeError(
            f"supervise.signatures: {why}", "give the path of a TOML file of [[signature]] tables"
        ) from error
    if tables.get("format") != _FORMAT:
        raise RecipeError(
            f"{where}: format {tables.get('format')!r} is not {_FORMAT}",
            f"write `format = {_FORMAT}` at its top",
        )
    found = tables.get("signature", ())
    if not isinstance(found, Sequence) or not all(isinstance(one, Mapping) for one in found):
        raise RecipeError(
            f"{where}: signature is no list of tables",
            "begin each of them with [[signature]] (docs/supervise.md shows one)",
        )
    return tuple(_signature(table, f"{where}, signature {n}") for n, table in enumerate(found, 1))


def _signature(table: Mapping[str, Any], where: str) -> Signature:
    wrong = "it fits everything; give exit, signal, text or kernel"
    values = {name: tuple(v) if isinstance(v, list) else v for name, v in table.items()}
    try:
        known = Signature.model_validate(values)
        if known.exit or known.signal or known.text or known.kernel:
            return known
    except ValidationError as error:
        wrong = _problem(error.errors()[0])
    raise RecipeError(f"{where}: {wrong}", "docs/supervise.md shows a signature")


def _problem(error: ErrorDetails) -> str:
    if error["type"] == "extra_forbidden":
        known = ", ".join(sorted(Signature.model_fields))
        return f"{error['loc'][0]}: unknown; known are {known}"
    if error["type"] == "value_error":
        return f"{error['loc'][0]}: {error['input']!r} {error['ctx']['error']}"
    return str(from_pydantic(error, {}))
