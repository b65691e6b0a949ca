"""The container file of a cluster's image, as `longhaul image` prints it."""

from longhaul.cluster.clusters import Cluster

_BASE = "python:3.12-slim-bookworm"
_TEMPLATE = """\
# Written by `longhaul image`; build it in the folder of the sources:
#   docker build --file Dockerfile --tag {tag} .
FROM {base}

# git: a job compares commits. A compiler: torch.compile and Triton build code at run time.
RUN apt-get update \\
 && apt-get install --yes --no-install-recommends git build-essential iproute2 openssh-client \\
 && rm -rf /var/lib/apt/lists/*

# torch first, so that a change of longhaul leaves this layer as it is. It brings CUDA's libraries;
# the node needs only the driver and NVIDIA's container toolkit.
RUN pip install --no-cache-dir "{torch}"

WORKDIR /opt/longhaul
COPY . .
RUN pip install --no-cache-dir ".{extras}"
{environment}
# Workers must be told of a notice themselves: no shell stands in between.
ENV PYTHONUNBUFFERED=1
WORKDIR /work
ENTRYPOINT []
CMD ["python3", "-m", "longhaul", "--help"]
"""


def dockerfile(
    cluster: Cluster | None, torch: str, extras: tuple[str, ...] = (), base: str = _BASE
) -> str:
    """A Dockerfile with this requirement of torch and these extras of longhaul; of a cluster it
    takes the name of the image, and the variables of its fabric.
    """
    variables = cluster.variables if cluster else {}
    environment = "".join(f"ENV {name}={_quoted(value)}\n" for name, value in variables.items())
    return _TEMPLATE.format(
        tag=(cluster.image if cluster else "") or "longhaul:latest",
        base=base,
        torch=torch,
        extras=f"[{','.join(extras)}]" if extras else "",
        environment=environment,
    )


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return f'"{escaped}"'
