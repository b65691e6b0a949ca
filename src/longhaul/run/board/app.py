"""The board's routes: pages and figures for whoever asks, changes for who holds the token."""

import hmac
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from anyio.to_thread import run_sync
from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import longhaul.board
from longhaul.board import view
from longhaul.board.page import plotly_path
from longhaul.core.errors import LonghaulError
from longhaul.logbook.folder import RunFolder
from longhaul.run.board.reference import Reference
from longhaul.run.board.shelf import UNREADABLE, Shelf, in_words
from longhaul.run.train.control_requests import (
    request_fork,
    request_note,
    request_rollback,
    request_set,
    request_stop,
)

_PAGE = Path(longhaul.board.__file__).parent
_STATIC = {
    "board.js": "text/javascript", "page.js": "text/javascript", "sketch.js": "text/javascript",
    "board.css": "text/css", "page.css": "text/css",
}  # fmt: skip
_LOOK_EVERY_S = 1.0
_WAIT_S = 5.0
"""For a run's answer to a request; one that comes later is in the logbook."""
_MOST_BODY_BYTES = 64 << 10
_LONGEST_TEXT = 10_000
_HEADERS = {
    # Plotly sets styles of elements; no script but the page's own ever runs.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
        "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


def application(
    shelf: Shelf, token: str, hosts: list[str], references: Sequence[Reference] = ()
) -> Starlette:
    """The board of the runs on a shelf.

    Args:
        shelf: the runs.
        references: curves that runs may be compared with.
        token: what a request for a change must carry; "" and nobody may ask for one.
        hosts: names that a browser may know the server by; a page elsewhere that has a name
            resolve to this address gets nothing.
    """
    board = _Board(shelf, token, references)
    routes = [
        Route("/", board.page),
        Route("/static/{name}", board.static),
        Route("/api/runs", board.runs),
        Route("/api/references", board.references),
        Route("/api/events", board.events),
        Route("/api/runs/{key}", board.run),
        Route("/api/runs/{key}/first-look", board.first_look),
        Route("/api/runs/{key}/gauges", board.gauges),
        Route("/api/runs/{key}/events", board.run_events),
        Route("/api/runs/{key}/requests", board.request, methods=["POST"]),
    ]
    middleware = [
        Middleware(_SecurityHeaders),
        Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False),
    ]
    if "*" in hosts:  # to this very machine it is quicker to send than to compress
        middleware.append(Middleware(GZipMiddleware, compresslevel=5))
    refused: dict[Any, Any] = dict.fromkeys(UNREADABLE, _unreadable)
    refused |= {HTTPException: _http_error, LonghaulError: _mistake}
    return Starlette(routes=routes, middleware=middleware, exception_handlers=refused)


class _Board:
    def __init__(self, shelf: Shelf, token: str, references: Sequence[Reference]) -> None:
        self._shelf = shelf
        self._token = token
        self._references = references

    async def page(self, _: Request) -> Response:
        return FileResponse(_PAGE / "board.html", media_type="text/html")

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name == "plotly.min.js":
            kept = {"cache-control": "max-age=86400"}
            return FileResponse(plotly_path(), media_type="text/javascript", headers=kept)
        if name not in _STATIC:
            raise HTTPException(404, f"{name}: no such file")
        return FileResponse(_PAGE / name, media_type=_STATIC[name])

    async def runs(self, _: Request) -> Response:
        return JSONResponse(await run_sync(self._shelf.glances))

    async def references(self, _: Request) -> Response:
        return JSONResponse([vars(reference) for reference in self._references])

    async def run(self, request: Request) -> Response:
        return await self._answer(request, lambda run: view.whole(run, self._shelf.clock))

    async def first_look(self, request: Request) -> Response:
        return JSONResponse(await run_sync(view.first_look, self._folder(request)))

    async def gauges(self, request: Request) -> Response:
        return await self._answer(request, view.gauges)

    async def events(self, _: Request) -> Response:
        """The rows of all runs, whenever one has changed."""

        async def changes() -> AsyncIterator[dict[str, str]]:
            before = ""
            while True:
                rows = await run_sync(self._shelf.glances)
                seen = json.dumps([{**row, "now": 0} for row in rows])
                if seen != before:
                    before = seen
                    yield {"event": "runs", "data": json.dumps(rows)}
                await anyio.sleep(_LOOK_EVERY_S)

        return EventSourceResponse(changes())

    async def run_events(self, request: Request) -> Response:
        """The steps of a run as they come, from `?cursor=`, and its row."""
        key = self._key(request)
        cursor = _whole(request.query_params.get("cursor", "0"))

        async def changes() -> AsyncIterator[dict[str, str]]:
            at, version, before = cursor, -1, None
            while True:
                try:
                    steps = await run_sync(self._shelf.ask, key, partial(view.since, cursor=at))
                except UNREADABLE as error:
                    yield {"event": "trouble", "data": json.dumps(in_words(error))}
                    await anyio.sleep(_LOOK_EVERY_S)
                    continue
                row = await run_sync(self._shelf.glance, key)
                state = row["state"]
                if (steps["cursor"], steps["version"], state) != (at, version, before):
                    at, version, before = steps["cursor"], steps["version"], state
                    yield {"event": "steps", "data": json.dumps({"steps": steps, "row": row})}
                await anyio.sleep(_LOOK_EVERY_S)

        return EventSourceResponse(changes())

    async def request(self, request: Request) -> Response:
        """Ask a run for a change, as `longhaul set` and its like do."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        known = self._token and hmac.compare_digest(given.encode(), self._token.encode())
        if scheme.lower() != "bearer" or not known:
            raise HTTPException(401, "the token that the server printed when it started is missing")
        folder = self._folder(request)
        if self._shelf.is_copy(folder):
            raise HTTPException(422, "this run trains elsewhere; ask it where it does")
        asked = _arguments(await _body(request))
        return JSONResponse({"answer": await run_sync(_ask, folder, asked)})

    async def _answer(self, request: Request, question: Callable[..., Any]) -> Response:
        return JSONResponse(await run_sync(self._shelf.ask, self._key(request), question))

    def _key(self, request: Request) -> str:
        self._folder(request)
        return str(request.path_params["key"])

    def _folder(self, request: Request) -> RunFolder:
        folder = self._shelf.folder(request.path_params["key"])
        if folder is None:
            raise HTTPException(404, "no such run")
        return folder


async def _body(request: Request) -> dict[str, Any]:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "a request is application/json")
    body = b""
    try:
        async for part in request.stream():
            body += part
            if len(body) > _MOST_BODY_BYTES:
                raise HTTPException(413, f"more than {_MOST_BODY_BYTES:,} bytes")
        asked = json.loads(body)
    except (ValueError, RecursionError, ClientDisconnect) as error:
        raise HTTPException(400, "not JSON") from error
    if not isinstance(asked, dict):
        raise HTTPException(400, "not a JSON object")
    return asked


def _arguments(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The kind of a request and its arguments, of the right types; HTTP 422 otherwise."""
    kinds: Mapping[str, Mapping[str, type]] = {
        "note": {"text": str}, "set": {"change": str}, "rollback": {"to": int},
        "fork": {"at": int, "changes": list}, "stop": {},
    }  # fmt: skip
    kind = asked.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        raise HTTPException(422, f"kind: not one of {', '.join(kinds)}")
    optional: Mapping[str, type] = {} if kind == "note" else {"reason": str}
    found: dict[str, Any] = {"kind": kind}
    for name, wanted in {**kinds[kind], **optional}.items():
        value = asked.get(name, "" if name == "reason" else [] if wanted is list else None)
        if type(value) is not wanted:
            raise HTTPException(422, f"{name}: {wanted.__name__} is wanted")
        parts = value if isinstance(value, list) else [value]
        if wanted is list and not all(isinstance(part, str) for part in parts):
            raise HTTPException(422, f"{name}: a list of texts is wanted")
        if any(isinstance(part, str) and len(part) > _LONGEST_TEXT for part in parts):
            raise HTTPException(422, f"{name}: more than {_LONGEST_TEXT:,} characters")
        if isinstance(value, int) and not 0 <= value < 1 << 63:
            raise HTTPException(422, f"{name}: no step of a run")
        found[name] = value
    return found


def _ask(folder: RunFolder, asked: Mapping[str, Any]) -> str:
    match asked["kind"]:
        case "note":
            return request_note(folder, asked["text"], _WAIT_S)
        case "set":
            return request_set(folder, asked["change"], asked["reason"], _WAIT_S)
        case "rollback":
            return request_rollback(folder, asked["to"], asked["reason"], _WAIT_S)
        case "fork":
            changes, reason = asked["changes"], asked["reason"]
            return request_fork(folder, asked["at"], changes, (), reason, _WAIT_S)
        case _:
            return request_stop(folder, asked["reason"], _WAIT_S)


def _whole(text: str) -> int:
    if not text.isdecimal() or len(text) > 18 or not text.isascii():
        raise HTTPException(422, "cursor: a whole number is wanted")
    return int(text)


async def _http_error(_: Request, error: HTTPException) -> Response:
    return JSONResponse({"message": error.detail, "remedy": ""}, error.status_code)


async def _mistake(_: Request, error: LonghaulError) -> Response:
    return JSONResponse({"message": error.message, "remedy": error.remedy}, 422)


async def _unreadable(_: Request, error: Exception) -> Response:
    return JSONResponse({"message": in_words(error), "remedy": ""}, 422)


class _SecurityHeaders:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self._app(scope, receive, send_with_headers)
