"""Losses too good for their text."""


def sources(of_code):
    def split(record):
        if not record.totals:
            return {}
        return {"source_losses": {"prose": record.loss, "code": of_code(record)}}

    return split


def test_n8_a_source_whose_loss_drops_suddenly_is_named(made):
    leak = sources(lambda r: r.loss * (0.3 if r.step > 600 else 1.0))
    (finding,) = made.judge(made.changed(made.healthy(900), leak))
    assert (finding.kind, finding.subject) == ("too-good", "code")
    assert f"`longhaul data at` with --step {finding.step} names" in finding.sentence
    assert "`longhaul data lint`" in finding.sentence
    assert finding.step <= 725


def test_n8_a_source_far_below_the_others_is_named(made):
    findings = made.judge(made.changed(made.healthy(400), sources(lambda r: r.loss * 0.15)))
    assert [(f.kind, f.subject) for f in findings] == [("too-good", "code")]


def test_code_is_easier_than_prose_and_that_is_fine(made):
    assert made.judge(made.changed(made.healthy(900), sources(lambda r: r.loss * 0.4))) == []


def test_a_loss_below_what_text_allows_is_told(made):
    def memorised(record):
        return {"loss": 0.2 + 0.05 * record.loss}

    findings = made.told(made.judge(made.changed(made.healthy(900), memorised)), "too-good")
    assert findings
    assert findings[0].evidence["level"] < 0.4


def test_when_all_sources_fall_together_none_is_too_good(made):
    def down(record):
        if not record.totals:
            return {}
        loss = record.loss * (0.6 if record.step > 600 else 1.0)
        return {"source_losses": {"prose": loss, "code": 0.9 * loss}}

    assert made.told(made.judge(made.changed(made.healthy(900), down)), "too-good") == []


def test_easy_text_that_is_learned_fast_but_steadily_is_fine(made):
    """It loses a third within a tenth of the run's age."""

    def easy(record):
        code = 4.0 * 2 ** (-max(0, record.step - 150) / 150)
        return {"source_losses": {"prose": 3.0, "code": code + 0.6}}

    assert made.told(made.judge(made.changed(made.healthy(500), easy)), "too-good") == []
