"""Ask a project's own client what it makes of a document: `launch_schemas.py KIND < YAML`.

It runs in the environment that `make launch-schemas` builds. A client leaves out what it does not
know, so what it has read is written again and must be the document. Ends with 1 and the difference.
"""

import json
import sys
import tempfile
from typing import Any

import yaml


def jobset(document: dict[str, Any]) -> Any:
    """The document, read and written by the models that Kubeflow Trainer has of JobSet's API."""
    from kubeflow_trainer_api.models import JobsetV1alpha2JobSet

    return json.loads(JobsetV1alpha2JobSet.from_dict(document).to_json())


def pytorchjob(document: dict[str, Any]) -> Any:
    """The same by Kubeflow's training client."""
    from kubeflow.training import KubeflowOrgV1PyTorchJob, TrainingClient  # noqa: F401
    from kubeflow.training.api_client import ApiClient

    class Answer:
        data = json.dumps(document)

    client = ApiClient()
    read = client.deserialize(Answer, "KubeflowOrgV1PyTorchJob")
    return client.sanitize_for_serialization(read)


def sky(document: dict[str, Any]) -> Any:
    """The same by SkyPilot: its schema first, then a task."""
    import sky as skypilot
    from sky.utils import common_utils, schemas

    common_utils.validate_schema(document, schemas.get_task_schema(), "no task: ")
    resources = schemas.get_resources_schema()
    common_utils.validate_schema(document["resources"], resources, "no resources: ")
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(document, file)
        file.flush()
        task = skypilot.Task.from_yaml(file.name)
    task.validate_name()
    made = task.to_yaml_config()
    (asked,) = task.resources
    if asked.job_recovery["recover_on_exit_codes"] != [1, 16]:
        raise SystemExit(f"job_recovery is read as {asked.job_recovery}")
    return {key: made[key] for key in ("name", "num_nodes")} | {
        key: document[key] for key in document if key not in ("name", "num_nodes")
    }


def main() -> None:
    """Read, write, compare."""
    document = yaml.safe_load(sys.stdin)
    made = {"jobset": jobset, "pytorchjob": pytorchjob, "sky": sky}[sys.argv[1]](document)
    lost = list(_lost(document, made, ""))
    if lost:
        raise SystemExit("not known to it: " + ", ".join(lost))


def _lost(given: Any, made: Any, path: str) -> Any:
    if isinstance(given, dict) and isinstance(made, dict):
        for key, value in given.items():
            if key in made:
                yield from _lost(value, made[key], f"{path}.{key}")
            elif value not in ({}, [], None):
                yield f"{path}.{key}"
    elif isinstance(given, list) and isinstance(made, list) and len(given) == len(made):
        for number, (one, other) in enumerate(zip(given, made, strict=True)):
            yield from _lost(one, other, f"{path}.{number}")
    elif given != made:
        yield f"{path} ({given!r} is read as {made!r})"


if __name__ == "__main__":
    main()
