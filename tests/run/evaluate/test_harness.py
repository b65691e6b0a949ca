"""lm-evaluation-harness asks a model of ours tasks that lie in a folder; nothing is fetched."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from longhaul.core.errors import UsageError
from run_evaluate import CONTEXT, nats_of

# Its dependencies are as large as all others together: `make test-slow` installs it.
pytest.importorskip("lm_eval", reason="lm-eval is not installed (pip install '.[eval]')")
pytestmark = pytest.mark.slow

ROWS = [
    {"question": "ab", "choices": ["c", "d", "ef"], "answer": 0},
    {"question": "the sun is", "choices": ["hot", "cold"], "answer": 1},
    {"question": "x", "choices": ["y", "z"], "answer": 1},
]
TASKS = {
    "choosing": """
        output_type: multiple_choice
        doc_to_text: "{{question}}"
        doc_to_choice: "{{choices}}"
        doc_to_target: "{{answer}}"
        metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
        """,
    "reading": """
        output_type: loglikelihood_rolling
        doc_to_text: ""
        doc_to_target: "{{question}}"
        metric_list: [{metric: byte_perplexity}, {metric: bits_per_byte}]
        """,
    "writing": """
        output_type: generate_until
        doc_to_text: "{{question}}"
        doc_to_target: "{{choices[0]}}"
        generation_kwargs: {until: ["\\n"], max_gen_toks: 3, do_sample: false}
        metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
        """,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tasks")
    rows = place / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    for name, body in TASKS.items():
        lines = [line.strip() for line in body.strip().splitlines()]
        source = [f"task: {name}", "dataset_path: json", "test_split: test", "dataset_kwargs:",
                  f"  data_files: {{test: {rows}}}"]  # fmt: skip
        (place / f"{name}.yaml").write_text("\n".join([*source, *lines]) + "\n")
    return place


@pytest.fixture
def scores(trained, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")

    def scores(*tasks: str, **options):
        from longhaul.run.evaluate.harness import task_scores

        return {(s.task, s.metric): s for s in task_scores(trained, tasks, folder, **options)}

    return scores


def _nats(trained, context: list[int], continuation: bytes) -> float:
    tokens = [*context, *continuation]
    ends = range(len(context) + 1, len(tokens) + 1)
    return sum(nats_of(trained, tokens[max(0, len(tokens) - 1 - CONTEXT) : e])[0] for e in ends)


def test_tasks_of_each_kind_are_scored_as_each_token_alone(trained, scores) -> None:
    found = scores("choosing", "reading", "writing")
    right = 0
    for row in ROWS:
        each = [_nats(trained, list(row["question"].encode()), f" {choice}".encode())
                for choice in row["choices"]]  # fmt: skip
        right += each.index(min(each)) == row["answer"]
    assert found["choosing", "acc"].value == pytest.approx(right / len(ROWS))
    assert found["choosing", "acc"].error is not None
    nats, num_bytes = 0.0, 0
    for row in ROWS:
        tokens = [256, *row["question"].encode()]
        for end in range(2, len(tokens) + 1):
            last = end - 2 >= CONTEXT * ((len(tokens) - 2) // CONTEXT)
            begin = max(0, len(tokens) - 1 - CONTEXT) if last else 0
            nats += nats_of(trained, tokens[begin:end])[0]
        num_bytes += len(tokens) - 1
    assert found["reading", "bits_per_byte"].value == pytest.approx(nats / num_bytes / math.log(2))
    assert found["writing", "exact_match"].value == 0.0


def test_a_limit_asks_fewer_and_an_unknown_task_is_a_mistake(scores, folder, monkeypatch) -> None:
    # The harness's own tasks are thousands of files to look through.
    monkeypatch.setattr(
        "longhaul.run.evaluate.harness.TaskManager",
        lambda include_path, include_defaults: SimpleNamespace(all_tasks=["choosing"]),
    )
    with pytest.raises(UsageError, match="task reeding: not among"):
        scores("reeding")


def test_files_that_are_wrong_are_a_mistake_without_a_traceback(scores, folder: Path) -> None:
    text = (folder / "choosing.yaml").read_text().replace("rows.jsonl", "gone.jsonl")
    (folder / "broken.yaml").write_text(text.replace("task: choosing", "task: broken"))
    with pytest.raises(UsageError, match="tasks broken: the harness cannot ask them"):
        scores("broken")
