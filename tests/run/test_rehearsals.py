"""What is rehearsed is nobody's business: no tracker shows it, and nobody is called for it."""

from longhaul.config.load import as_toml, load_recipe
from longhaul.logbook.folder import RunFolder
from longhaul.run.drill import plan as drill
from longhaul.run.ladder import ladder
from longhaul.run.preflight import context as preflight
from longhaul.run.profile import profile
from longhaul.supervise.sidecars import sidecars_of

WATCHED = (
    'monitor.trackers=["tensorboard"]', "monitor.metrics_port=9400", 'alert.command=["page-me"]',
    'alert.webhook="https://host/hook"',
)  # fmt: skip


def started(options, folder):
    return sidecars_of(load_recipe("drill", [*WATCHED, *options]).recipe, RunFolder(folder))


def test_no_rehearsal_is_mirrored_or_calls_anybody(tmp_path):
    own = preflight._own_settings(load_recipe("drill", WATCHED).recipe, 12)
    of_preflight = [f"{path}={as_toml(value)}" for path, value in own.items()]
    of_ladder = [f"{path}={as_toml(value)}" for path, value in ladder._OWN.items()]
    assert len(started((), tmp_path)) == 3
    for options in (of_preflight, of_ladder, profile._NOTHING_ELSE):
        assert started(options, tmp_path) == ()


def test_nor_is_a_drill_of_a_recipe_that_asks_for_it(tmp_path):
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        'extends = "drill"\n[alert]\ncommand = ["page-me"]\n'
        '[monitor]\ntrackers = ["wandb"]\nmetrics_port = 9400\n'
    )
    settings = drill._plan(drill.Typed(str(recipe)), None, tmp_path).settings
    assert sidecars_of(settings, RunFolder(tmp_path)) == ()
    assert settings.alert.command == ()
