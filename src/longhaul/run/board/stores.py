"""Runs in remote stores: copies of their logs, kept up to date beside the board."""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from longhaul.core.addresses import without_secrets
from longhaul.core.errors import LonghaulError
from longhaul.core.units import Seconds
from longhaul.store.fetching import find_run_log
from longhaul.store.remote_run import RemoteRun, look_at
from longhaul.store.store_files import StoreFiles

LOOK_EVERY_S: Seconds = 30.0
"""A run sends its log with its checkpoints, so that a shorter one would show nothing more."""

Result = TypeVar("Result")


class Stores:
    """The runs at, or right below, some addresses; each look brings what is new of them."""

    def __init__(self, addresses: Sequence[str], copies: Path, say: Callable[[str], None]) -> None:
        self.copies = copies
        """Folder of the copies."""
        self._addresses = addresses
        self._say = say
        self._runs: dict[str, RemoteRun] = {}
        self._told: set[str] = set()

    def look(self) -> None:
        """Find runs and bring their logs up to date; what fails is said once, and tried again."""
        for address in self._addresses:
            for own in self._tried(address, partial(self._below, address)) or ():
                known = self._runs.get(own)
                bring = known.refresh if known else partial(self._begin, own)
                self._tried(own, bring)

    def keep_looking(self) -> None:
        """Look again and again, in a thread that ends with the process."""

        def look() -> None:
            while True:
                self.look()
                time.sleep(LOOK_EVERY_S)

        if self._addresses:
            threading.Thread(target=look, daemon=True).start()

    def _below(self, address: str) -> list[str]:
        files = StoreFiles(address)
        if find_run_log(files) is not None:
            return [address]
        below = [f"{address.rstrip('/')}/{name}" for name in files.names()]
        return [own for own in below if find_run_log(StoreFiles(own)) is not None]

    def _begin(self, address: str) -> None:
        self._runs[address] = look_at(address, self.copies, _nobody)

    def _tried(self, address: str, attempt: Callable[[], Result]) -> Result | None:
        try:
            return attempt()
        except (LonghaulError, OSError) as error:
            line = f"{without_secrets(address)}: {getattr(error, 'message', error)}"
            if line not in self._told:
                self._told.add(line)
                self._say(f"WARNING: {line}")
            return None


def _nobody(_: str) -> None:
    """Who hears what a copy says: the board looks again anyway."""
