from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from longhaul.config.recipe import Recipe


@pytest.fixture
def recipe_for() -> Callable[..., Recipe]:
    """A recipe that reads these paths with this tokenizer; further settings by section."""

    def make(
        paths: Path | str | list[Any],
        kind: str = "bytes",
        tokenizer: dict[str, Any] | None = None,
        source: dict[str, Any] | None = None,
        **data: Any,
    ) -> Recipe:
        many = paths if isinstance(paths, list) else [paths]
        sources = tuple({"path": str(path)} | (source or {}) for path in many)
        return Recipe.model_validate(
            {
                "name": "test",
                "data": {"sources": sources} | data,
                "tokenizer": {"kind": kind} | (tokenizer or {}),
                "model": {"layers": 1, "heads": 1, "width": 8, "context": 8},
                "batch": {"sequences": 1},
                "optim": {"lr": 0.1},
                "train": {"steps": 1},
            }
        )

    return make
