"""What each idea of a speedrun is worth: ideas are recipes, figures follow from the runs, and a run
that was made is not made again.
"""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.ablate import worth
from benchmarks.ablate.__main__ import DOCUMENT, price_of, stored_table
from benchmarks.ablate.ideas import STUDIES
from benchmarks.ablate.training import Results, Run, base_of, length
from benchmarks.common import RESULTS, block, rewrite_block
from benchmarks.gpu.setting import Setting

from longhaul.config.load import load_recipe
from longhaul.core.errors import UsageError

ROOT = Path(__file__).parents[2]
FACTS = {"on": "here", "steps": 100, "base": "abc", "dollars_per_hour": 3.6, "command": "x"}
SEEDS = range(1, 6)
_124M = STUDIES["speedrun-124m"]


@pytest.mark.parametrize("recipe", STUDIES)
def test_each_idea_is_another_recipe_of_as_many_tokens(recipe: str, tmp_path: Path) -> None:
    study = STUDIES[recipe]
    base = base_of(study, Setting(False, tmp_path, tmp_path))
    steps = study.steps or load_recipe(recipe, base).recipe.total_steps()
    whole = load_recipe(recipe, [*base, *length(base, recipe, (), steps)]).recipe
    assert whole.total_steps() == steps
    for idea, settings in {**study.without, **study.added}.items():
        options = [*base, *settings, *length(base, recipe, settings, steps)]
        own = load_recipe(recipe, options).recipe
        assert own.model_dump(exclude={"train"}) != whole.model_dump(exclude={"train"}), idea
        sequences = [
            sum(r.batch_at(n).sequences for n in range(r.total_steps())) for r in (own, whole)
        ]
        assert sequences[0] == pytest.approx(sequences[1], rel=0.01), idea


def test_stages_move_with_the_length() -> None:
    settings = length((), "speedrun-124m", _124M.added["three tokens ahead, two, then one"], 190)
    cut = load_recipe("speedrun-124m", settings).recipe
    assert [stage.from_step for stage in cut.model.window_stages] == [0, 60, 120]
    ahead = load_recipe(
        "speedrun-124m", [*_124M.added["three tokens ahead, two, then one"], *settings]
    )
    assert [stage.from_step for stage in ahead.recipe.model.ahead_stages] == [0, 63, 127]


def run(settings: tuple[str, ...], seed: int, steps: int, loss: float, step_s: float = 0.1) -> Run:
    return Run(settings, seed, steps, loss, steps, steps * step_s, step_s, 1.0)


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """The whole recipe loses 0.1 nats with each halving; one idea is worth a halving and costs a
    tenth of a step's time; one is worth nothing.
    """
    made = Results(tmp_path / "ablate.json", FACTS)
    for seed in SEEDS:
        noise = 0.01 * (-1) ** seed
        for share in (1.0, *worth.SHARES):
            loss = 3.0 - 0.1 * math.log2(share) + noise
            made.add(run((), seed, max(1, round(100 * share)), loss))
        good, vain = _124M.without["QK-norm"], _124M.without["value residual"]
        made.add(run(good, seed, 100, 3.1 + noise + 0.0001 * seed, step_s=0.09))
        made.add(run(vain, seed, 100, 3.0 - noise, step_s=0.1))
        made.add(run(_124M.added["token smear"], seed, 100, 2.9 + noise + 0.0001 * seed))
    return made


def test_an_idea_is_worth_the_tokens_that_the_whole_recipe_needs_less(results: Results) -> None:
    found = worth.findings(_124M, results, 100)
    assert found is not None
    good, vain = found.without["QK-norm"], found.without["value residual"]
    assert good.is_winner
    assert good.tokens == pytest.approx(2.0, rel=0.01)
    assert good.seconds == pytest.approx(1.8, rel=0.01)
    assert not vain.is_shown
    assert vain.tokens is None
    assert found.added["token smear"].is_shown
    assert not found.added["token smear"].is_winner
    page = worth.table(found, 3.6)
    # 0.8 of 10 s at 0.001 dollars a second.
    assert "| QK-norm | +0.1003 | yes | 0.90 × | 2.00 × | 1.80 × | +8.0" in page
    assert page.index("QK-norm") < page.index("value residual") < page.index("token smear")
    bars = {bar.name: bar.value for bar in worth.rows(found, 3.6)}
    assert bars["QK-norm: dollars"] == pytest.approx(0.008, rel=0.02)


def test_an_idea_that_is_worth_more_than_was_tried_says_so(results: Results) -> None:
    for seed in SEEDS:
        results.add(run(_124M.without["U-net skips"], seed, 100, 3.5 + 0.001 * seed))
    found = worth.findings(_124M, results, 100)
    assert found is not None
    assert found.without["U-net skips"].tokens is None
    assert "| over 4 × | – | – |" in worth.table(found, 3.6)


def test_runs_are_read_again_and_others_refused(results: Results) -> None:
    again = Results(results.path, FACTS)
    assert again.runs == results.runs
    with pytest.raises(UsageError, match="'here', not 'elsewhere'"):
        Results(results.path, {**FACTS, "on": "elsewhere"})
    assert not Results(results.path, {**FACTS, "on": "elsewhere"}, anew=True).runs


def test_the_price_is_the_devices() -> None:
    assert price_of("NVIDIA H100 80GB HBM3", _124M, tiny=False) == 2.69
    with pytest.raises(SystemExit, match="--dollars-per-hour"):
        price_of("NVIDIA TITAN", _124M, tiny=False)


def test_a_table_of_runs_goes_between_the_lines_of_a_document(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.common.ROOT", tmp_path)
    document = tmp_path / "x.md"
    document.write_text("before\n<!-- a -->\nold\n<!-- end of a -->\nafter\n")
    rewrite_block(document, "a", stored_table(results.path, _124M))
    assert document.read_text().startswith("before\n<!-- a -->\n| without | loss |")
    assert "old" not in document.read_text()
    assert document.read_text().endswith("`x`.\n<!-- end of a -->\nafter\n")
    with pytest.raises(ValueError, match="no lines"):
        block(document, "b")


@pytest.mark.parametrize("recipe", STUDIES)
def test_the_documents_table_is_that_of_the_stored_runs(recipe: str) -> None:
    told, path = block(DOCUMENT, f"ablate {recipe}"), RESULTS / f"ablate-{recipe}.json"
    if path.is_file():
        assert told.strip() == stored_table(path, STUDIES[recipe]).strip()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_on_a_cpu_steps_are_compared_in_pairs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.ablate", "--tiny", "--seeds", "2", "--steps", "4"]
    command += ["--only", "QK", "--results", str(tmp_path), "--prepared", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    body = json.loads((tmp_path / "ablate-speedrun-shakespeare-tiny.json").read_text())
    (pace,) = body["paces"]
    assert pace["settings"] == ["model.qk_norm=false"]
    assert len(pace["ratios"]) == 3
    row = next(r for r in body["bars"] if r["name"] == "QK-norm: seconds of a step without it")
    assert row["value"] == sorted(pace["ratios"])[1]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_runs_tiny_on_a_cpu_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.ablate", "--recipe", "speedrun-124m", "--tiny"]
    command += ["--seeds", "2", "--steps", "4", "--only", "value residual,token smear"]
    command += ["--results", str(tmp_path), "--prepared", str(tmp_path / "prepared")]

    def printed(*more: str) -> str:
        whole = [*command, *more]
        return subprocess.run(whole, cwd=ROOT, check=True, capture_output=True, text=True).stdout

    assert "not measured yet: the whole recipe" in printed("--minutes", "0.02")
    first = printed()
    assert "| value residual |" in first
    assert "| token smear |" in first
    body = json.loads((tmp_path / "ablate-speedrun-124m-tiny.json").read_text())
    assert len(body["runs"]) == 8
    assert {row["name"] for row in body["bars"]} >= {"whole recipe: loss"}
    second = printed()
    assert ", seed 1:" not in second
    assert "| value residual |" in second
