"""The container file."""

import re

from launches import cluster_of
from longhaul.cluster.image import dockerfile


def test_a_file_has_torch_first_then_longhaul_then_the_fabrics_variables() -> None:
    cluster = cluster_of("k8s", image="reg/x:1", environment={"NCCL_IB_HCA": 'a "$b"'})
    text = dockerfile(cluster, "torch==2.13.0", ("s3", "hf"))
    assert text.index("torch==2.13.0") < text.index("COPY . .") < text.index('".[s3,hf]"')
    assert "--tag reg/x:1 ." in text
    assert 'ENV NCCL_IB_HCA="a \\"\\$b\\""' in text
    words = {line.split()[0] for line in text.splitlines() if re.match("[A-Z]", line)}
    assert words <= {"FROM", "RUN", "COPY", "WORKDIR", "ENV", "ENTRYPOINT", "CMD"}


def test_without_a_cluster_there_are_no_variables() -> None:
    text = dockerfile(None, "torch>=2.11", base="debian:12")
    assert "FROM debian:12" in text
    assert 'install --no-cache-dir "."' in text
    assert [line for line in text.splitlines() if line.startswith("ENV")] == [
        "ENV PYTHONUNBUFFERED=1"
    ]
