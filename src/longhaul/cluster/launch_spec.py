"""One launch as it is handed to a cluster: what to train, on what, and what was captured before."""

import json
from typing import Any

from pydantic import Field

from longhaul.cluster.clusters import Cluster
from longhaul.config.load import tupled
from longhaul.config.section import Section
from longhaul.core.errors import UsageError

FILE_NAME = "launch.json"
RECIPE_NAME = "recipe.toml"
EXCLUDED_NAME = "excluded"
"""In a launch's folder: nodes that no later start may get, by name, separated by commas."""
IN_ENVIRONMENT = "LONGHAUL_LAUNCH"
"""The launch itself, where the job sees no folder of it."""


class Captured(Section):
    """The code and environment that were launched."""

    version: str
    """Of longhaul."""
    commit: str = ""
    """Of git, in the folder of the launch; empty if there is none."""
    diff_sha256: str = ""
    """Of the changes that no commit has; empty without any."""
    packages: int = 0
    """Lines of `packages.txt`, which is `pip freeze`."""


class LaunchSpec(Section):
    """All that the job needs; its JSON is `launch.json`."""

    format: int = 1
    name: str
    """Of the launch, and of the job."""
    run: str
    """The run's name."""
    recipe: str
    """The merged recipe with its overrides, as TOML."""
    cluster_name: str
    cluster: Cluster
    nodes: int = Field(gt=0)
    spares: int = Field(0, ge=0)
    excluded: tuple[str, ...] = ()
    """Nodes that must not be used, as the node ledger had them at the launch."""
    dataset: str = ""
    """A prepared text that is pulled from the cluster's store, and verified, before training."""
    preflight: bool = True
    qualify: bool = True
    trust: bool = False
    """The commands that the recipe names may be run."""
    captured: Captured

    @property
    def wanted(self) -> int:
        """Nodes with spares."""
        return self.nodes + self.spares

    def to_json(self) -> str:
        """For `launch.json`, or the environment."""
        return json.dumps(self.model_dump(mode="json", exclude_defaults=True), ensure_ascii=False)


def spec_of_json(text: str, where: str) -> LaunchSpec:
    """The launch of its JSON; UsageError if that is damaged, or of a newer longhaul."""
    try:
        body: Any = json.loads(text)
        if body.get("format", 1) != 1:
            raise ValueError(f"format {body['format']} is unknown")
        return LaunchSpec.model_validate(tupled(body))
    except (ValueError, AttributeError) as error:
        raise UsageError(
            f"{where}: no launch ({str(error).splitlines()[0]})", "launch the recipe again"
        ) from error


def joined(names: tuple[str, ...] | list[str]) -> str:
    """Names of nodes as `excluded` holds them, and Slurm takes them."""
    return ",".join(dict.fromkeys(names))


def split(text: str) -> tuple[str, ...]:
    """The names of such a text."""
    return tuple(name for name in text.strip().split(",") if name)
