"""A `config.json` that somebody published, read setting by setting; nothing in it is run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longhaul.core.errors import DataError
from longhaul.core.strict import read_object

NAME = "config.json"
OWN = "longhaul"
"""The family whose code is our own: a folder's copy of it is not needed, and never run."""


class Published:
    """The settings of a published model; a DataError names what is missing or odd."""

    def __init__(self, values: Mapping[str, Any], file: str) -> None:
        self.values = values
        self.file = file

    def has(self, key: str) -> bool:
        """Whether there is such a setting, and it is not null."""
        return self.values.get(key) is not None

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number above 0."""
        value = self._value(key, default)
        if type(value) is not int or value <= 0:
            raise self._odd(key, value, "not a whole number above 0")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self._value(key, default)
        if type(value) not in (int, float) or value <= 0:
            raise self._odd(key, value, "not a number above 0")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._value(key, default)
        if type(value) is not bool:
            raise self._odd(key, value, "neither true nor false")
        return value

    def one_of(self, key: str, known: Mapping[str, str], default: str | None = None) -> str:
        """What a word means here."""
        value = self._value(key, default)
        if not isinstance(value, str) or value not in known:
            raise self._odd(key, value, f"longhaul has {', '.join(known)}")
        return known[value]

    def must_be(self, key: str, *values: object) -> None:
        """Refuse a setting that is there with another value than these."""
        if key in self.values and self.values[key] not in values:
            raise self._odd(key, self.values[key], "longhaul has no such switch")

    def table(self, key: str) -> "Published":
        """A table within; an empty one when absent."""
        value = self._value(key, {})
        if not isinstance(value, dict):
            raise self._odd(key, value, "not a table")
        return Published(value, f"{self.file}: {key}")

    def _value(self, key: str, default: object) -> Any:
        value = self.values.get(key)
        if value is None and default is None:
            raise DataError(f"{self.file}: {key} is missing", "give the folder as it was published")
        return default if value is None else value

    def _odd(self, key: str, value: object, why: str) -> DataError:
        return DataError(
            f"{self.file}: {key}: {str(value)[:60]!r}: {why}",
            "docs/interop.md lists the families and switches that can be imported",
        )


def read_config(folder: Path) -> tuple[str, Published]:
    """Model type and settings of a model's folder; DataError if it has none, or names code."""
    path = folder / NAME
    try:
        values = read_object(path)
    except FileNotFoundError:
        raise DataError(
            f"{folder}: no {NAME} in it",
            "give the folder of a model in Hugging Face's format, downloaded to this machine",
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error})", "download it again") from None
    model_type = str(values.get("model_type"))[:60]
    if "auto_map" in values and model_type != OWN:
        raise DataError(
            f"{path}: auto_map names code that the model needs, and longhaul runs none that it is "
            "given as data",
            "give a model of a family that longhaul knows itself",
        )
    return model_type, Published(values, str(path))
