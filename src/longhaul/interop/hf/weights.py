"""A folder of published weights, opened to read: safetensors only, as a pickle is a program."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longhaul.core.errors import DataError
from longhaul.core.strict import open_regular, read_object
from longhaul.core.units import Bytes

if TYPE_CHECKING:
    from torch import Tensor

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
_MOST_INDEX: Bytes = 64 << 20
_PICKLED = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
_PLAIN_NAME = re.compile(r"[\w.-]+\.safetensors", re.ASCII)
_AGAIN = "download the folder again"


class PublishedWeights:
    """The tensors in a folder, by name. DataError if there are none, or files are damaged.

    A name may lack what names `begin` with: files of a model without its head have none of it.
    """

    def __init__(self, folder: Path, begin: str = "") -> None:
        self._begin = begin
        self.files = _files(folder)
        self._opened: dict[str, Any] = {}
        for path in self.files:
            reader = _open(path)
            for name in reader.keys():  # noqa: SIM118 - it has no other way
                if name in self._opened:
                    raise DataError(f"{path}: {name} is in another file too", _AGAIN)
                self._opened[name] = reader
        self._folder = folder
        self.size_bytes: Bytes = sum(path.stat().st_size for path in self.files)

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a tensor, which is not read; DataError if it is not there or holds no fractions."""
        found = self._slice(name)
        if found.get_dtype() not in ("F64", "F32", "F16", "BF16"):
            raise DataError(
                f"{self._folder}: {name} holds {found.get_dtype()}, which is not a float's format",
                "give weights that were not quantized",
            )
        return tuple(found.get_shape())

    def read(self, name: str) -> Tensor:
        """A tensor, on the CPU in its own format; errors as `shape`."""
        tensor: Tensor = self._slice(name)[:]
        return tensor

    def _slice(self, name: str) -> Any:
        known = name if name in self._opened else name.removeprefix(self._begin)
        if known not in self._opened:
            raise DataError(f"{self._folder}: {name} is not among its weights", _AGAIN)
        return self._opened[known].get_slice(known)


def _files(folder: Path) -> tuple[Path, ...]:
    """The files of weights, as the index names them, or the only one."""
    if (folder / INDEX).is_file():
        try:
            table = read_object(folder / INDEX, _MOST_INDEX)["weight_map"]
            names = sorted(set(table.values()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{folder / INDEX}: cannot be read ({error})", _AGAIN) from None
        for name in names:
            if not isinstance(name, str) or not _PLAIN_NAME.fullmatch(name):
                shown = str(name)[:60]
                raise DataError(f"{folder / INDEX}: {shown!r} is not a file beside it", _AGAIN)
        return tuple(folder / name for name in names)
    if (folder / SINGLE).is_file():
        return (folder / SINGLE,)
    pickled = sorted(p.name for p in folder.iterdir() if p.suffix.lower() in _PICKLED)
    if pickled:
        raise DataError(
            f"{folder / pickled[0]}: a pickle is a program, and longhaul runs no program it is "
            "given as data",
            f"give the same model as {SINGLE}; many are published in both forms",
        )
    raise DataError(f"{folder}: neither {SINGLE} nor {INDEX} in it", _AGAIN)


def _open(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        open_regular(path).close()  # a pipe would be waited for
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error})", _AGAIN) from None


def compare_shapes(
    found: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]], folder: Path
) -> None:
    """DataError that names the first weights that do not fit."""
    differ = [
        f"{name} {list(found[name])} instead of {list(shape)}"
        for name, shape in wanted.items()
        if found[name] != shape
    ]
    if differ:
        more = f"; and {len(differ) - 3} more" if len(differ) > 3 else ""
        raise DataError(
            f"{folder}: its weights do not fit the recipe: {'; '.join(differ[:3])}{more}",
            "take model and tokenizer as `longhaul import` writes them into a recipe",
        )
