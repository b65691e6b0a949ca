"""The hook for incidents: calls a command or a webhook, one at a time, and waits for none long."""

import json
import os
import signal
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from pydantic import TypeAdapter

from longhaul.config.train import AlertSection
from longhaul.core.addresses import unsealed
from longhaul.core.clocks import Clock
from longhaul.core.errors import ExitCode, LonghaulError
from longhaul.core.events import EventKind
from longhaul.core.records import Event, Record
from longhaul.core.units import Seconds
from longhaul.interop.trackers.incidents import (
    Incident,
    RateLimit,
    body_of,
    incident_of,
    incident_of_end,
)
from longhaul.interop.trackers.mirror import Target
from longhaul.logbook.description import event_in_words

_WITHIN_S: Seconds = 30.0
"""What a call may take; training never waits for one."""
_LAST_WORDS = 300


class CallFailed(Exception):
    """A command or a webhook has not taken an incident."""


class Alerts(Target):
    """Calls for incidents since a Unix time, and for the end of training."""

    def __init__(
        self,
        settings: AlertSection,
        run: str,
        since: Seconds,
        clock: Clock,
        say: Callable[[str], None],
        within_s: Seconds = _WITHIN_S,
    ) -> None:
        self._settings, self._run, self._since = settings, run, since
        self._clock, self._say, self._within_s = clock, say, within_s
        self._limit = RateLimit(settings.per_hour)
        self._failing: set[str] = set()
        self._called: set[Incident] = set()
        """Called for by this process: where that could not be kept, nobody is called again."""
        self._last: Event | None = None
        """What the last attempt wrote of its end."""

    def take(self, record: Record) -> None:
        """See `Target`."""
        if isinstance(record, Event):
            if record.kind == EventKind.ATTEMPT_STARTED:
                self._last = None
            told = event_in_words(record) is not None
            if record.kind in (EventKind.FINISHED, EventKind.ATTEMPT_ENDED) and told:
                self._last = record
        incident = incident_of(record) if record.time >= self._since else None
        if incident is not None and incident not in self._called:
            self._limit.add(incident)

    def look_ends(self) -> None:
        """See `Target`."""
        due = self._limit.due(self._clock.wall())
        if due is not None:
            self._called.add(due[0])
            self._call(*due)

    def state(self) -> Mapping[str, Any]:
        """See `Target`."""
        return asdict(self._limit)

    def restore(self, state: Mapping[str, Any]) -> None:
        """See `Target`."""
        known = {**state, "per_hour": self._settings.per_hour}
        called = self._limit.called
        self._limit = TypeAdapter(RateLimit).validate_python(known)
        self._limit.called = sorted({*self._limit.called, *called})

    def training_ended(self, exit_code: int | None) -> None:
        """See `Target`."""
        if exit_code != ExitCode.INTERRUPTED:  # by a person, who knows
            self._limit.add(incident_of_end(exit_code, self._clock.wall(), self._last))

    def _call(self, incident: Incident, suppressed: int) -> None:
        content = json.dumps(body_of(incident, self._run, os.uname().nodename, suppressed))
        calls: dict[str, Callable[[], None]] = {}
        if self._settings.command:
            calls["alert.command"] = lambda: run_command(
                self._settings.command, content.encode(), self._within_s
            )
        if (address := self._settings.webhook) is not None:
            calls["alert.webhook"] = lambda: post(address, content.encode(), self._within_s)
        for name, call in calls.items():
            try:
                call()
            except CallFailed as error:
                if name not in self._failing:
                    self._say(f"{name}: {error}; an incident was not told: {incident.text}")
                self._failing.add(name)
            else:
                if name in self._failing:
                    self._say(f"{name} works again")
                self._failing.discard(name)


def run_command(command: Sequence[str], content: bytes, within_s: Seconds) -> None:
    """Run a command with `content` as its standard input; CallFailed if it cannot be started, ends
    with another code than 0, or takes longer: then it is killed with all that it has started.
    """
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said:
        given.write(content)
        given.seek(0)
        try:
            process = subprocess.Popen(
                list(command), stdin=given, stdout=said, stderr=said, start_new_session=True
            )
        except OSError as error:
            raise CallFailed(f"{command[0]} cannot be started ({error.strerror})") from None
        try:
            code = process.wait(within_s)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise CallFailed(f"{command[0]} took longer than {within_s:g} s") from None
        if code != 0:
            said.seek(0)
            words = " ".join(said.read()[-_LAST_WORDS:].decode(errors="replace").split())
            raise CallFailed(f"{command[0]} ended with {code}" + (f" ({words})" if words else ""))


def post(address: str, content: bytes, within_s: Seconds) -> None:
    """Send `content` as JSON to a webhook; CallFailed, which does not show the address, as its path
    may be a secret, if it does not answer with success.
    """
    host = urlsplit(address).hostname or "?"
    try:
        request = urllib.request.Request(
            unsealed(address), content, {"Content-Type": "application/json"}
        )
        opener = urllib.request.build_opener(_NoRedirect)
        with opener.open(request, timeout=within_s) as answer:
            answer.read(1024)
    except urllib.error.HTTPError as error:
        error.close()
        raise CallFailed(f"{host} answered {error.code}") from None
    except LonghaulError as error:
        raise CallFailed(f"{host}: {error.message.rpartition(': ')[2]}") from None
    except (OSError, ValueError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise CallFailed(f"{host} cannot be reached ({type(reason).__name__})") from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST would become a GET, and what it tells would be lost in silence."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none."""
        return
