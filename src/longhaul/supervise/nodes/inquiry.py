"""Asking something of a node: a short process there that answers with one line of JSON."""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from longhaul.core.addresses import unsealed
from longhaul.core.units import Seconds, short_seconds

_LOOK_EVERY_S: Seconds = 0.02
_LONGEST_WORDS = 300


@dataclass(frozen=True, slots=True)
class Answer:
    """What a node said."""

    came: bool
    """The process ended well, and in time."""
    reason: str = ""
    """Why it did not."""
    body: dict[str, Any] = field(default_factory=dict)
    """Its last line of output, if that was JSON."""
    text: str = ""
    """All of its output."""


class Inquiry:
    """A process that is to answer.

    Args:
        words: the command to run, that of the node in front.
        most_s: after so long it is killed.
        environment: variables to add.
    """

    def __init__(
        self, words: Sequence[str], most_s: Seconds, environment: Mapping[str, str] | None = None
    ) -> None:
        self._most_s = most_s
        self._deadline = time.monotonic() + most_s
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (a pipe could fill up)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._answer: Answer | None = None
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(
                [unsealed(word, references=False) for word in words],
                stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._errors,
                start_new_session=True, env=os.environ | dict(environment or {}),
            )  # fmt: skip
        except OSError as error:
            self._answer = Answer(False, f"{words[0]} cannot be run ({error.strerror})")

    @property
    def answer(self) -> Answer | None:
        """What it said; None as long as it has time."""
        if self._answer is None and self._process is not None:
            code = self._process.poll()
            if code is not None:
                self._answer = self._read(code)
            elif time.monotonic() > self._deadline:
                said = f"no answer within {short_seconds(self._most_s)}"
                self._answer = Answer(False, said)
                self.close()
        return self._answer

    def close(self) -> None:
        """End it."""
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._output.close()
        self._errors.close()

    def _read(self, code: int) -> Answer:
        text, errors = (_text(file) for file in (self._output, self._errors))
        lines = [line for line in text.splitlines() if line.strip()]
        body: Any = {}
        with suppress(ValueError, IndexError):
            body = json.loads(lines[-1])
        if code == 0:
            return Answer(True, "", body if isinstance(body, dict) else {}, text)
        said = next((line for line in reversed(errors.splitlines()) if line.strip()), "")
        return Answer(False, f"exit code {code}: {said[:_LONGEST_WORDS]}".rstrip(": "), {}, text)


def wait_for_all(
    inquiries: Sequence[Inquiry], wait: Callable[[Seconds], bool]
) -> list[Answer] | None:
    """All answers, in order; None if somebody wants an end meanwhile. They are closed then.

    Args:
        inquiries: each has a deadline of its own.
        wait: lets time pass; False if somebody wants an end.
    """
    try:
        while not all(inquiry.answer for inquiry in inquiries):
            if not wait(_LOOK_EVERY_S):
                return None
        return [answer for inquiry in inquiries if (answer := inquiry.answer)]
    finally:
        for inquiry in inquiries:
            inquiry.close()


def _text(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode(errors="replace"))
