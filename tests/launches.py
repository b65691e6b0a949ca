"""A launch for tests."""

from longhaul.cluster.clusters import Cluster
from longhaul.cluster.launch_spec import Captured, LaunchSpec


def cluster_of(scheduler: str | None = "slurm", **more: object) -> Cluster:
    """A cluster of this scheduler."""
    return Cluster.model_validate({"scheduler": scheduler, "runs": "/runs", **more})


def spec_of(cluster: Cluster, **more: object) -> LaunchSpec:
    """A launch of the run `small` on that cluster, two nodes when not said otherwise."""
    own = {
        "name": "small-1", "run": "small", "recipe": 'name = "small"\n', "cluster_name": "east",
        "cluster": cluster, "nodes": 2, "captured": Captured(version="1"),
    }  # fmt: skip
    return LaunchSpec.model_validate(own | more)
