"""longhaul pretrains language models that finish.

`train`, `open`, `Run` and the errors are imported when they are first used: the command imports
this module at every start. Their types stand in `__init__.pyi`.
"""

__version__ = "0.1.0"

_NAMES = {
    "open": "longhaul.run.opened",
    "Run": "longhaul.run.opened",
    "RunStopped": "longhaul.run.started",
    **dict.fromkeys(
        ("DataError", "LonghaulError", "NeedsPerson", "RecipeError", "UsageError"),
        "longhaul.core.errors",
    ),
}
__all__ = ["__version__", "train", *_NAMES]


def __dir__():
    return [*globals(), *__all__]


def __getattr__(name):
    import importlib

    # A text, so that no layer that reads the version seems to import all the others.
    if name == "train":  # also the package of the trainer, which is called like a function
        return importlib.import_module("longhaul.train")
    if name in _NAMES:
        found = globals()[name] = getattr(importlib.import_module(_NAMES[name]), name)
        return found
    raise AttributeError(f"module 'longhaul' has no attribute {name!r}")
