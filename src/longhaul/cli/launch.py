"""`longhaul launch`, `longhaul image`; and `launched`, the job's own part."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from longhaul.cli.common import DataPath, Overrides, RecipeName
from longhaul.core.output import print_out


class On(StrEnum):
    """The scheduler of a launch."""

    SLURM = "slurm"
    K8S = "k8s"
    SKY = "sky"
    SSH = "ssh"
    ANY = "any"


class KubernetesKind(StrEnum):
    """What a launch is on Kubernetes."""

    JOBSET = "jobset"
    PYTORCHJOB = "pytorchjob"


ClustersFile = Annotated[
    Path | None,
    typer.Option("--clusters", metavar="FILE", help="clusters.toml", show_default="searched"),
]


def launch(
    recipe: RecipeName,
    on: Annotated[On, typer.Option("--on", help="the scheduler; any: the best of all clusters")],
    cluster: Annotated[
        str | None, typer.Option(metavar="NAME", help="this one of clusters.toml")
    ] = None,
    data: DataPath = None,
    overrides: Overrides = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="nodes that train", show_default="the cluster's")
    ] = None,
    spares: Annotated[
        int | None, typer.Option(min=0, help="nodes beside them", show_default="the cluster's")
    ] = None,
    hours: Annotated[float | None, typer.Option(min=0.01, help="the job's time limit")] = None,
    dataset: Annotated[
        str, typer.Option(metavar="NAME", help="prepared text that the job pulls and verifies")
    ] = "",
    kind: Annotated[KubernetesKind, typer.Option(help="of Kubernetes")] = KubernetesKind.JOBSET,
    clusters: ClustersFile = None,
    launches: Annotated[
        Path, typer.Option("--launches-dir", help="folder of launches, which the nodes see")
    ] = Path("launches"),
    preflight: Annotated[
        bool, typer.Option("--preflight/--no-preflight", help="before the job trains")
    ] = True,
    qualify: Annotated[
        bool, typer.Option("--qualify/--no-qualify", help="each node, before the job trains")
    ] = True,
    trust: Annotated[
        bool, typer.Option("--trust", help="the job may run the commands that the recipe names")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print what would be submitted, write nothing")
    ] = False,
) -> None:
    """Submit RECIPE to a cluster of clusters.toml.

    The job qualifies its nodes, checks the recipe, trains, and goes back into the queue when it
    ends with 16. With --dry-run the script or manifest goes to standard output alone.
    """
    from longhaul.run.launch.launch import Typed
    from longhaul.run.launch.launch import launch as submit

    typed = Typed(
        recipe=recipe, on=on.value, options=tuple(overrides or ()), data=data, cluster=cluster,
        nodes=nodes, spares=spares, hours=hours, dataset=dataset, kind=kind.value,
        clusters=clusters, launches=launches, preflight=preflight, qualify=qualify, trust=trust,
        dry_run=dry_run,
    )  # fmt: skip
    say = _to_error if dry_run else print_out
    submit(typed, say, lambda text: print(text, end=""))


def _to_error(line: str) -> None:
    print(line, file=sys.stderr)


def launched(
    folder: Annotated[
        Path | None, typer.Argument(metavar="LAUNCH", help="its folder; else LONGHAUL_LAUNCH")
    ] = None,
) -> None:
    """Do the job's part of a launch; job scripts call it."""
    from longhaul.run.launch.launched import launched as work

    raise typer.Exit(work(folder, print_out))


def image(
    cluster: Annotated[
        str | None, typer.Option(metavar="NAME", help="take its image's name and its variables")
    ] = None,
    torch: Annotated[str, typer.Option(help="the requirement of torch")] = "torch>=2.11,<2.16",
    extras: Annotated[
        list[str] | None, typer.Option("--extra", help="of longhaul, such as s3; may be repeated")
    ] = None,
    base: Annotated[str, typer.Option(help="the image it begins with")] = (
        "python:3.12-slim-bookworm"
    ),
    clusters: ClustersFile = None,
) -> None:
    """Print the container file of an image that has this longhaul."""
    from longhaul.cluster.clusters import load_clusters
    from longhaul.cluster.image import dockerfile

    of = load_clusters(clusters).named(cluster) if cluster else None
    print(dockerfile(of, torch, tuple(extras or ()), base), end="")
