"""Serving the board until somebody ends it."""

import ipaddress
import logging
import secrets
import socket
import threading
from asyncio import CancelledError
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import uvicorn

from longhaul.core.clocks import RealClock
from longhaul.core.errors import UsageError
from longhaul.run.board.app import application
from longhaul.run.board.reference import read_reference
from longhaul.run.board.shelf import Shelf
from longhaul.run.board.stores import Stores
from longhaul.store.remote_run import COPIES

_LOCAL = ["127.0.0.1", "localhost", "[::1]"]


def serve_board(
    places: Sequence[str],
    host: str,
    port: int,
    *,
    references: Sequence[Path],
    read_only: bool,
    say: Callable[[str], None],
) -> None:
    """Serve the runs in or below `places`, folders and addresses of stores, until interrupted.

    `port` 0 is any that is free. UsageError where a folder does not exist, a reference is none, or
    the port cannot be had.
    """
    folders = [Path(place) for place in places if "://" not in place]
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"{folder}: not a folder", "name folders that hold runs")
    curves = [read_reference(path) for path in references]
    listening = _listening(host, port)
    address = f"http://{_named(host)}:{listening.getsockname()[1]}"
    token = "" if read_only else secrets.token_urlsafe(24)
    say(f"board: {address}" if read_only else f"board: {address}/#token={token}")
    if not read_only:
        say("  who has this address may set, roll back, fork and stop; without the token it reads")
    is_local = _is_local(host)
    if not is_local:
        say(f"  {host}: whoever reaches this machine reads the runs, unencrypted")
    with TemporaryDirectory(prefix="longhaul-board-") as name:
        stores = Stores([place for place in places if "://" in place], Path(name), say)
        stores.keep_looking()
        copies = Path(name) / COPIES
        shelf = Shelf([*folders, copies], RealClock(), copies)
        app = application(shelf, token, [*_LOCAL, _named(host)] if is_local else ["*"], curves)
        # So that who looks first need not wait for what lies on the disk.
        threading.Thread(target=shelf.glances, daemon=True).start()
        settings = uvicorn.Config(
            app, log_level="error", access_log=False, server_header=False,
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        logging.getLogger("uvicorn.error").addFilter(_is_worth_telling)
        uvicorn.Server(settings).run(sockets=[listening])


def _is_worth_telling(record: logging.LogRecord) -> bool:
    """Not that somebody who ends the server leaves a question unanswered."""
    cut_off = record.exc_info is not None and isinstance(record.exc_info[1], CancelledError)
    return not (cut_off or "timeout graceful shutdown exceeded" in record.getMessage())


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)  # whoever is told the address may connect at once
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"{host}:{port}: cannot be listened at: {why}",
            "give another --port (0: any that is free) or --host",
        ) from error
    return listening


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _named(host: str) -> str:
    """As it stands in an address."""
    return f"[{host}]" if ":" in host else host
