import textwrap

from longhaul.config.problems import lines_of_settings


def test_every_key_is_found_on_its_line() -> None:
    text = textwrap.dedent("""\
        name = "x"  # [not.a.table]
        model.width = 4
        [optim]
        lr = 1
        "weight_decay" = 2
        [optim.schedule]
        shape = "a = b"
        [[data.sources]]
        path = "one"
        [[data.sources]]
        path = "two"
        [sample]
        prompt = '''
        fake = 1
        '''
        tokens = 5
        [batch]
        stages = [
          { from_step = 1 },
        ]
        sequences = 3
        """)
    lines = lines_of_settings(text)
    expected = {
        "name": 1, "model.width": 2, "optim": 3, "optim.lr": 4, "optim.weight_decay": 5,
        "optim.schedule.shape": 7, "data.sources.0.path": 9, "data.sources.1.path": 11,
        "sample.prompt": 13, "sample.tokens": 16, "batch.stages": 18, "batch.sequences": 21,
    }  # fmt: skip
    assert {path: lines[path] for path in expected} == expected
    assert not any("fake" in path or path.endswith("from_step") for path in lines)
