from pathlib import Path

from longhaul.monitor.gauges import declared

FIXED = {
    "layer": {
        "residual_max", "residual_min", "residual_rms", "attention_out_max_abs",
        "attention_out_rms", "mlp_out_max_abs", "mlp_out_rms", "attention_logit_max",
    },
    "model": {"output_logit_max", "logsumexp_max", "logsumexp_mean", "noise_scale"},
    "role": {
        "gradient_norm", "weight_norm", "update_ratio", "second_moment_ratio",
        "gradient_zero_share",
    },
    "source": {"source_losses"},
}  # fmt: skip


_READ_FROM = {
    "layer": "each layer",
    "model": "the model",
    "role": "each role of weights",
    "source": "each source of text",
}
_REDUCED = {
    "max": "largest",
    "min": "smallest",
    "mean": "mean",
    "rms": "root of mean square",
    "norm": "root of sum of squares",
}


def as_markdown() -> str:
    """The table for the documentation."""
    lines = [
        "| gauge | of | unit | what it is | over micro-batches and ranks |",
        "|---|---|---|---|---|",
    ]
    for gauge in declared():
        cells = (
            f"`{gauge.name}`",
            _READ_FROM[gauge.per],
            gauge.unit,
            gauge.meaning.replace("|", "\\|"),
            _REDUCED[gauge.reduction],
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def test_gauges_have_the_names_that_detectors_and_journals_know():
    names = {kind: {gauge.name for gauge in declared() if gauge.per == kind} for kind in FIXED}
    assert names == FIXED


def test_the_table_has_a_whole_row_for_each_gauge():
    rows = as_markdown().splitlines()[2:]
    assert len(rows) == len(declared()) == 18
    for row, gauge in zip(rows, declared(), strict=True):
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        assert cells[0] == f"`{gauge.name}`"
        assert len(cells) == 5
        assert all(cells)


def test_the_documented_table_is_that_of_the_code():
    page = Path(__file__).parents[2] / "docs" / "model.md"
    assert as_markdown() in page.read_text(), (
        "put what `as_markdown()` of this file gives into docs/model.md"
    )
