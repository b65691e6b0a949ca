"""Divergence."""


def test_a_loss_that_drifts_away_is_an_alarm_and_says_since_when(made):
    def rise(record):
        return {"loss": min(record.loss + 0.03 * max(0, record.step - 200), 11)}

    findings = made.told(made.judge(made.changed(made.healthy(400), rise)), "divergence")
    assert [f.severity for f in findings] == ["warning", "alarm"]
    assert findings[0].step <= 240
    assert 200 <= findings[0].first_step <= 212


def test_a_loss_above_that_of_the_start_is_an_alarm_early(made):
    def explode(record):
        return {"loss": record.loss * (1 + record.step / 60)} if record.step > 30 else {}

    findings = made.told(made.judge(made.changed(made.healthy(150), explode)), "divergence")
    assert findings[-1].severity == "alarm"
    assert findings[-1].step < 100


def test_a_loss_that_comes_back_has_not_diverged(made):
    def bump(record):
        return {"loss": record.loss + 3} if 300 <= record.step < 306 else {}

    assert made.told(made.judge(made.changed(made.healthy(400), bump)), "divergence") == []
