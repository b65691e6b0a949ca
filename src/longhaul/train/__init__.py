"""The step, the trainer, evaluation and sampling. Never judges: it reports and obeys.

`longhaul.train(…)` calls this package, as the function of that name: see `run/started.py`.
"""

import importlib
import inspect
import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """A package that is called like a function."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        return importlib.import_module("longhaul.run.started").train(*given, **named)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(importlib.import_module("longhaul.run.started").train)


sys.modules[__name__].__class__ = _Callable
