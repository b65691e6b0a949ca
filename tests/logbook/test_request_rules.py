"""What a request's file may say, before anything is done about it."""

from typing import Any

import pytest

from longhaul.logbook.requests import (
    Arguments,
    Fork,
    Note,
    Refused,
    Request,
    RollBack,
    Set,
    Skip,
    Stop,
    arguments_of,
)


def request(kind: str, data: dict[str, Any]) -> Request:
    return Request(id="1", kind=kind, data=data, who="anna", reason="", time=1.0)


@pytest.mark.parametrize(
    ("kind", "data", "arguments"),
    [
        ("note", {"text": "hot"}, Note("hot")),
        ("set", {"path": "optim.lr", "value": 1e-3}, Set("optim.lr", 1e-3)),
        (
            "set",
            {"path": "a", "value": None, "from_step": 9, "force": True},
            Set("a", None, 9, True),
        ),
        ("skip", {"begin": 4, "end": 8}, Skip(4, 8)),
        ("rollback", {"to": 5}, RollBack(5)),
        ("rollback", {"to": "5", "of a later version": 1}, RollBack(5)),
        ("fork", {"at": 5, "set": {"a": 1}, "reset": ["data"]}, Fork(5, {"a": 1}, ("data",))),
        ("stop", {}, Stop()),
    ],
)
def test_what_is_asked_for_is_read(kind: str, data: dict[str, Any], arguments: Arguments) -> None:
    assert arguments_of(request(kind, data)) == arguments


@pytest.mark.parametrize(
    ("kind", "data", "said"),
    [
        ("note", {"text": 7}, "text: "),
        ("set", {"value": 1}, "path: "),
        ("set", {"path": "a", "from_step": None}, "from_step: "),
        ("skip", {"begin": 4}, "end: "),
        ("rollback", {"to": "x"}, "to: "),
        ("rollback", {"to": 1e400}, "to: "),
        ("fork", {"at": 5, "set": 7}, "set: "),
        ("fork", {"at": 5, "reset": [7]}, "reset.0: "),
        ("dance", {}, "dance: this longhaul knows no such request"),
    ],
)
def test_what_makes_no_sense_is_refused_by_field(
    kind: str, data: dict[str, Any], said: str
) -> None:
    with pytest.raises(Refused) as refused:
        arguments_of(request(kind, data))
    assert said in refused.value.message
