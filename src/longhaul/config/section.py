"""What every section of a recipe is made of."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError, PydanticKnownError

Change = Literal["live", "restart", "never"]
"""When a setting of a started run may change: `live` by `longhaul set` at the next step boundary;
`restart` by editing the recipe, which opens a new segment; `never`, because the weights or the
order of data would no longer be those of this run."""


class Section(BaseModel):
    """A frozen table of settings: unknown keys fail, types are not coerced.

    The text below a setting says what it means (`switches.meanings`).
    """

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False,
        serialize_by_alias=True,  # for settings called by a word of Python's own, as `init.from`
    )  # fmt: skip


def live(default: Any = ..., **limits: Any) -> Any:
    """A setting that `longhaul set` may change on a live run."""
    return Field(default, json_schema_extra={"change": "live"}, **limits)


def fixed(default: Any = ..., **limits: Any) -> Any:
    """A setting that makes another model or another order of data: never changed in a run."""
    return Field(default, json_schema_extra={"change": "never"}, **limits)


def changed_at_start(default: Any = ..., **limits: Any) -> Any:
    """A setting that takes effect when the run is next started."""
    return Field(default, json_schema_extra={"change": "restart"}, **limits)


def switch_or_named(value: Any, names: tuple[str, ...]) -> Any:
    """By hand, as below."""
    if isinstance(value, bool) or value in names:
        return value
    raise PydanticCustomError(
        "switch_or_named", "neither true nor false nor {names}", {"names": " nor ".join(names)}
    )


def whole_or_auto(value: Any, least: int) -> Any:
    """By hand: pydantic would give a mistake once for every member of a union."""
    if value == "auto":
        return value
    if type(value) is not int:
        raise PydanticCustomError("whole_or_auto", "neither a whole number nor auto")
    if value < least:
        raise PydanticKnownError("greater_than_equal", {"ge": least})
    return value
