"""Two published runs as scenarios: as their teams ran them, and as longhaul would.

What a source gives is cited; what none gives is `assumed`, with the span that the study varies it
over. The assumed figures were written down from the teams' own words before anything was simulated.
"""

from dataclasses import replace
from typing import Final

from longhaul.config.load import load_recipe, with_overrides
from longhaul.config.recipe import Recipe
from longhaul.parallel.layout import Layout
from longhaul.plan.failure_rates import DAY_S, LLAMA_3_405B, OPT_175B
from longhaul.plan.simulate.inputs import (
    HOUR_S,
    MINUTE_S,
    NOT_TOLD,
    Input,
    Inputs,
    Outage,
    Scenario,
    assumed,
)
from longhaul.plan.simulate.measured import under_longhaul

_CHRONICLE: Final = "OPT-175B's chronicle (metaseq, projects/OPT/chronicles)"
_LLAMA_PAPER: Final = "Llama 3 (arXiv 2407.21783), section 3.3.4"
_NONE: Final = Input(0.0, "", NOT_TOLD)
NO_SCALE: Final = Input(1.0, "×", "the published rates as they are")


def opt_175b() -> Scenario:
    """OPT-175B as its team ran it: people restart it, alone and at night."""
    sequences, days = 992, 56.0
    gpus, tokens = 992, 300e9
    steps = round(tokens / (sequences * 2048))
    recipe = _recipe("opt-175b", steps, sequences, {"supervise.replace_stragglers": True})
    return Scenario(
        name="OPT-175B",
        gpus=gpus,
        spares=12,
        days=days,
        # 33 days on 1,024 GPUs, final_update.md: on 992 each step takes as much longer.
        step_s=33 * DAY_S * 1024 / gpus / steps,
        wanted=Layout(shard=124, tensor=8),
        recipe=recipe,
        rates=OPT_175B.rates,
        elastic=False,
        knows_machines=False,
        ideal_gpus=1024,
        published=33 / 56,
        published_source=f"{_CHRONICLE}: 33 days of continuous training took from 11 November to "
        "6 January",
        outages=(
            Outage(40, 1.0, f"{_CHRONICLE}, final_update.md: the cluster was deleted on 21 "
                   "December; by the end of the day the bare minimum of machines was there"),
        ),
        inputs=_opt_inputs(),
    )  # fmt: skip


def _opt_inputs() -> Inputs:
    two = f"{_CHRONICLE}, 27_percent_update.md"
    return Inputs(
        failure_scale=NO_SCALE,
        crash_seen_s=assumed(10 * MINUTE_S, 2 * MINUTE_S, 30 * MINUTE_S, "s",
                             "a script watches train.log and calls the person on duty"),
        hang_seen_s=assumed(HOUR_S, 0.5 * HOUR_S, 2 * HOUR_S, "s",
                            "NCCL's timeout of 30 min, and somebody who notices"),
        silent_seen_s=_NONE,
        straggler_seen_s=assumed(12 * HOUR_S, 2 * HOUR_S, 24 * HOUR_S, "s",
                                 "run 12.11 was restarted because everything was slow"),
        straggler_slowdown=assumed(1.3, 1.1, 2.0, "×"),
        manual_share=Input(35 / 105, "", "OPT-175B (arXiv 2205.01068), section 2.5: at least 35 "
                           "manual and more than 70 automatic restarts"),
        person_s=assumed(5 * HOUR_S, 2 * HOUR_S, 10 * HOUR_S, "s",
                         f"{two}: failures take the experiment down for hours at any time of the "
                         "day; a series of diagnostic tests before each manual restart"),
        diagnosis_s=assumed(20 * MINUTE_S, 5 * MINUTE_S, HOUR_S, "s",
                            "scripts that replace a node, burn-in and InfiniBand tests"),
        probe_s=assumed(15 * MINUTE_S, 5 * MINUTE_S, HOUR_S, "s", "burn-in and InfiniBand test"),
        probe_finds=assumed(0.6, 0.3, 0.9, "", "nodes came up with the same ECC errors again"),
        replacement_s=assumed(6 * HOUR_S, 3 * HOUR_S, 24 * HOUR_S, "s",
                              f"{two}: replacement can take hours for a single machine"),
        returns_broken=assumed(0.5, 0.25, 0.75, "",
                               f"{two}: more often than not the same bad machine came back"),
        restart_s=assumed(15 * MINUTE_S, 5 * MINUTE_S, 30 * MINUTE_S, "s",
                          "Slurm, imports, process groups of 992 ranks, compiled kernels"),
        load_s=assumed(45 * MINUTE_S, 15 * MINUTE_S, 90 * MINUTE_S, "s",
                       f"{two}: 1.6 TB in 992 files, whose downloads hung"),
        load_memory_s=_NONE,
        save_interval_s=assumed(1.4 * HOUR_S, 0.7 * HOUR_S, 2.8 * HOUR_S, "s", "250 updates"),
        save_stall_s=assumed(MINUTE_S, 20.0, 3 * MINUTE_S, "s", "1.6 TB to local disks"),
        save_write_s=assumed(15 * MINUTE_S, 5 * MINUTE_S, 45 * MINUTE_S, "s", "to the store"),
        snapshot_steps=_NONE,
        numeric_per_day=assumed(0.25, 0.1, 0.4, "a day",
                                "its restarts 12.17 to 12.53 for loss scale and divergence"),
        numeric_seen_s=assumed(2 * HOUR_S, 0.5 * HOUR_S, 4 * HOUR_S, "s",
                               "somebody looks at the curves"),
        numeric_person_s=assumed(4 * HOUR_S, 2 * HOUR_S, 8 * HOUR_S, "s",
                                 "what to try next is talked over"),
        planned_per_day=_NONE,
        planned_s=_NONE,
    )  # fmt: skip


def llama_3_405b() -> Scenario:
    """Llama 3 405B as its team ran it: mostly automatic."""
    sequences, length, gpus = 2048, 8192, 16_384
    flops = 6 * 405.9e9 * sequences * length
    recipe = _recipe(
        "llama-8b", 1_000_000, sequences,
        {"batch.sequence_length": length, "supervise.replace_stragglers": True},
    )  # fmt: skip
    return Scenario(
        name="Llama 3 405B",
        gpus=gpus,
        spares=64,
        days=LLAMA_3_405B.days,
        step_s=flops / (gpus * 380e12),  # 380 TFLOP/s a GPU, the paper's table 4
        wanted=Layout(shard=128, tensor=8, pipeline=16),
        recipe=recipe,
        rates=LLAMA_3_405B.rates,
        elastic=False,
        knows_machines=True,
        published=0.90,
        published_source=f"{_LLAMA_PAPER}: higher than 90 % effective training time",
        at_least=True,
        inputs=_llama_inputs(),
    )


def _llama_inputs() -> Inputs:
    return Inputs(
        failure_scale=NO_SCALE,
        crash_seen_s=assumed(MINUTE_S, 10.0, 5 * MINUTE_S, "s"),
        hang_seen_s=assumed(10 * MINUTE_S, 5 * MINUTE_S, 30 * MINUTE_S, "s",
                            "NCCL's flight recorder and a watchdog"),
        silent_seen_s=assumed(6 * HOUR_S, HOUR_S, 24 * HOUR_S, "s"),
        straggler_seen_s=assumed(0.5 * HOUR_S, 600.0, 4 * HOUR_S, "s",
                                 "tools that order suspicious communications by priority"),
        straggler_slowdown=assumed(1.3, 1.1, 2.0, "×"),
        manual_share=Input(3 / 419, "", f"{_LLAMA_PAPER}: 3 incidents needed much manual work"),
        person_s=assumed(4 * HOUR_S, HOUR_S, 12 * HOUR_S, "s"),
        diagnosis_s=assumed(2 * MINUTE_S, 30.0, 10 * MINUTE_S, "s"),
        probe_s=assumed(2 * MINUTE_S, MINUTE_S, 10 * MINUTE_S, "s"),
        probe_finds=assumed(0.9, 0.6, 1.0, ""),
        replacement_s=assumed(24 * HOUR_S, 6 * HOUR_S, 72 * HOUR_S, "s"),
        returns_broken=assumed(0.05, 0.0, 0.2, ""),
        restart_s=assumed(4 * MINUTE_S, MINUTE_S, 10 * MINUTE_S, "s",
                          f"{_LLAMA_PAPER}: start-up time was reduced"),
        load_s=assumed(2 * MINUTE_S, 30.0, 5 * MINUTE_S, "s"),
        load_memory_s=_NONE,
        save_interval_s=assumed(10 * MINUTE_S, 5 * MINUTE_S, 30 * MINUTE_S, "s",
                                f"{_LLAMA_PAPER}: checkpoint time was reduced"),
        save_stall_s=assumed(3.0, 1.0, 15.0, "s"),
        save_write_s=assumed(MINUTE_S, 20.0, 3 * MINUTE_S, "s"),
        snapshot_steps=_NONE,
        numeric_per_day=Input(0.0, "a day", "Llama 3 (arXiv 2407.21783): few loss spikes, and no "
                              "intervention to correct a divergence"),
        numeric_seen_s=_NONE,
        numeric_person_s=_NONE,
        planned_per_day=Input(47 / 54, "a day", f"{_LLAMA_PAPER}: 47 planned interruptions"),
        planned_s=assumed(15 * MINUTE_S, 5 * MINUTE_S, HOUR_S, "s", "firmware, settings, data"),
    )  # fmt: skip


PRESETS: Final = {"opt-175b": opt_175b, "llama-3-405b": llama_3_405b}


def preset(name: str, longhaul: bool = False) -> Scenario:
    """A published run by name, as it was or under longhaul; KeyError for another name."""
    scenario = PRESETS[name]()
    return with_longhaul(scenario) if longhaul else scenario


def with_longhaul(scenario: Scenario) -> Scenario:
    """The same cluster and run, with failures seen and answered as longhaul does it."""
    return replace(
        scenario,
        name=f"{scenario.name} under longhaul",
        inputs=under_longhaul(scenario.inputs, scenario.gpus),
        elastic=True,
        knows_machines=True,
        published=None,
        published_source="",
        at_least=False,
    )


def _recipe(name: str, steps: int, sequences: int, values: dict[str, object]) -> Recipe:
    base = {"train.steps": steps, "train.tokens": None, "batch.sequences": sequences}
    return with_overrides(load_recipe(name).recipe, base | values)
