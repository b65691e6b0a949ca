"""What a recipe or a run's folder would have `train` execute, and whether the user has agreed.

Commands that order nodes, log in to them or call a person may come from somebody else, so they run
only once the user has said that he trusts them: by typing them, or by `--trust`. That is remembered
in his own state folder by the run's folder, the recipe's file and a hash of the commands: who
changes a command is asked again, and a restart at night never is.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from longhaul.config.load import load_recipe, parse_override, shipped_recipes, with_values
from longhaul.config.recipe import Recipe
from longhaul.core.errors import UsageError
from longhaul.core.files import write_json
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.run_spec import RunSpec


def _executed(settings: Recipe) -> dict[str, Any]:
    """Dotted path → command of everything that a supervisor would run on a recipe's word."""
    supervise = settings.supervise
    found: dict[str, Any] = {
        f"supervise.node.{number}.command": list(node.command)
        for number, node in enumerate(supervise.node)
        if node.command
    }
    if supervise.replace_command:
        found["supervise.replace_command"] = supervise.replace_command
    if settings.alert.command:
        found["alert.command"] = list(settings.alert.command)
    return found


def refuse_untrusted(
    folder: RunFolder,
    asked: RunSpec,
    named: str,
    typed: Iterable[str],
    trust: bool,
    say: Callable[[str], None],
) -> None:
    """Let only a run pass whose commands the user trusts, and remember that he does; UsageError if
    he has not said so. A command among the options typed is the user's own. What a folder says of
    its recipe's file counts nothing, only what was named at this start: it could name one that is
    trusted.
    """
    commands = _executed(asked.settings())
    if not commands:
        return
    own = _typed_commands(typed)
    if asked.recipe in shipped_recipes():
        own |= _executed(load_recipe(asked.recipe).recipe)
    foreign = {path: command for path, command in commands.items() if own.get(path) != command}
    files = [Path(named).resolve()] if named.endswith(".toml") else []
    places = [folder.path.resolve(), *files]
    hashes = (json.dumps([str(place), commands], sort_keys=True) for place in places)
    names = [hashlib.sha256(decisive.encode()).hexdigest()[:32] for decisive in hashes]
    marks = [trusted_folder() / f"{name}.json" for name in names]
    if foreign and not trust and not any(mark.exists() for mark in marks):
        shown = "".join(f"\n  {path} = {json.dumps(what)}" for path, what in foreign.items())
        raise UsageError(
            f"run {folder.name} would execute what its recipe or its folder says, and you have not "
            f"said yet that you trust it:{shown}",
            "read it; if you trust it, start once with --trust (or LONGHAUL_TRUST=1): it is "
            "remembered until a command changes",
        )
    # By its folder too: a run that is named itself needs no recipe.
    for mark, place in zip(marks, places, strict=True):
        if not mark.exists() and (trust or place == places[0]):
            _remember(mark, place, commands, say)


def trusted_folder() -> Path:
    """Where it is remembered, one file for each."""
    state = os.environ.get("XDG_STATE_HOME", "")
    home = Path(state) if Path(state).is_absolute() else Path.home() / ".local" / "state"
    return home / "longhaul" / "trusted"


def _typed_commands(typed: Iterable[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for option in typed:
        values = with_values({}, dict([parse_override(option)]))
        supervise, alert = values.get("supervise"), values.get("alert")
        if isinstance(alert, dict) and "command" in alert:
            found["alert.command"] = alert["command"]
        if not isinstance(supervise, dict):
            continue
        if "replace_command" in supervise:
            found["supervise.replace_command"] = supervise["replace_command"]
        nodes = supervise.get("node", [])
        numbered = nodes.items() if isinstance(nodes, dict) else enumerate(nodes)
        for number, node in numbered:
            if isinstance(node, dict) and "command" in node:
                found[f"supervise.node.{number}.command"] = node["command"]
    return found


def _remember(
    mark: Path, place: Path, commands: Mapping[str, Any], say: Callable[[str], None]
) -> None:
    try:
        mark.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_json(mark, {"trusted": str(place), "commands": commands})
    except OSError as error:
        say(
            f"WARNING: that {place} is trusted cannot be remembered in {mark.parent} "
            f"({error.strerror}): give --trust at every start"
        )
