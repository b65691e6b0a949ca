from longhaul.board.curves import ModelGauges
from longhaul.board.live_run import LiveRun
from longhaul.logbook.segments import read_segments


def read(folder):
    with LiveRun(folder) as run:
        return run.model_gauges(read_segments(folder))


def test_every_gauge_has_a_row_a_layer_and_a_value_a_column(told):
    found = read(told)
    assert "attention_logit_max" in found.layers
    assert all(len(rows) == 12 for rows in found.layers.values())
    assert {len(row) for rows in found.layers.values() for row in rows} == {len(found.step)}
    assert set(found.totals["update_ratio"]) == {"matrix", "embedding", "vector", "head"}
    assert set(found.totals["source_losses"]) == {"books", "web"}


def test_columns_keep_the_order_of_time_and_the_growth_that_was_rolled_back(told):
    found = read(told)
    assert list(found.segment) == sorted(found.segment)
    assert any(now < before for before, now in zip(found.step, found.step[1:], strict=False))
    lost = [column for column, kept in enumerate(found.kept) if not kept]
    layer = found.layers["attention_logit_max"][3]
    kept_peak = max(v for c, v in enumerate(layer) if c not in lost and v is not None)
    assert max(layer[column] or 0 for column in lost) > kept_peak


def test_many_gauge_steps_become_few_columns_that_keep_the_extreme(new_story):
    story = new_story()
    story.layers, story.every = 4, 1
    story.start(1)
    story.open("1.00", "", 0, "start")
    story.train(0, 900)
    story.train(900, 901, grow=500.0)
    story.train(901, 1200)
    found = read(story.close())
    assert 200 < len(found.step) <= 401
    peak = max(value for value in found.layers["attention_logit_max"][3] if value is not None)
    assert peak > 100
    lowest = [value for value in found.layers["residual_min"][1] if value is not None]
    assert max(lowest) < -3


def test_a_run_without_gauges_has_no_columns(new_story):
    story = new_story()
    story.every = 10**9
    story.start(1)
    story.open("1.00", "", 0, "start")
    story.train(0, 3)
    assert read(story.close()) == ModelGauges()
