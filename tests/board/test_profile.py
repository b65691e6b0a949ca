"""The page of a profile: words are escaped, figures hold what was measured."""

import json
import re
from pathlib import Path

from longhaul.board.profile import render
from longhaul.plan.profile import Profile
from longhaul.plan.roofline import Ceilings
from longhaul.plan.surprises import Seen
from longhaul.plan.timeline import STAGES, HostWait, Operation, Timeline

EVIL = "kernel<b>&"


def page() -> str:
    calls = [
        Operation(name, "forward", "head", 0.01, ([640, 640], [640, 640]), ("float", "float"))
        for name in ("aten::mm", EVIL)
    ]
    stages = dict.fromkeys(STAGES, 0.0) | {"forward": 0.15, "idle": 0.05}
    timeline = Timeline(2, 0.2, stages, calls, [HostWait(EVIL, "forward", 0.01)], True)
    device = Ceilings("invented", {"float": 1e12}, ((1_000, 1e-6), (1_000_000, 1e-3)))
    return render(
        Profile("<i>mine", timeline, device, Seen(plain_s=0.09, gauge_steps=1), Path("there")),
        "plotly()",
    )


def test_no_word_becomes_a_tag() -> None:
    text = page()
    assert "&lt;i&gt;mine" in text
    assert "<i>mine" not in text
    assert EVIL not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert "http" not in text.replace("http-equiv", "")


def test_figures_hold_stages_parts_and_the_roofline() -> None:
    (embedded,) = re.findall(r'id="data">(.*?)</script>', page(), flags=re.DOTALL)
    figures = {figure["name"]: figure["traces"] for figure in json.loads(embedded)["figures"]}
    assert set(figures) == {"stages", "parts", "roofline"}
    shown = {trace["name"]: trace["x"] for trace in figures["stages"]}
    assert shown == {"forward 75.0%": [75.0], "idle 25.0%": [25.0]}
    measured = next(t for t in figures["parts"] if t["name"] == "measured")
    assert (measured["y"], measured["x"]) == (["head"], [10.0])
    assert "<b>" not in json.dumps(figures["roofline"])
