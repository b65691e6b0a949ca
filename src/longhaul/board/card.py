"""The model card of an exported run: data, settings, result and incidents, from its logbook."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from longhaul import __version__
from longhaul.board.chronicle import in_short
from longhaul.board.facts import RunFacts
from longhaul.board.incidents import Incident
from longhaul.config.recipe import Recipe
from longhaul.core.units import count, loss_in_words, sentence

_MOST_INCIDENTS = 30


@dataclass(frozen=True)
class CardFacts:
    """What a card says that the logbook does not."""

    recipe: Recipe
    """In force at the exported step."""
    step: int
    parameters: int
    family: str
    sources: Sequence[tuple[str, float, int]]
    """Name, weight, tokens to train on of each."""
    tokenizer: str
    """In words."""
    weights: Mapping[str, str]
    """What the run began with; empty for random weights."""
    checks: Sequence[str]
    """What was compared before the folder was kept, a sentence each."""
    needs: str = ""
    """Where the folder brings code: what loading it takes, in words."""


def model_card(facts: RunFacts, card: CardFacts) -> str:
    """The `README.md` of a model's folder, in Markdown."""
    recipe = card.recipe
    begun = "random weights"
    if card.weights:
        begun = f"weights of family {_plain(card.weights.get('family', '?'))}"
    trusted = ", trust_remote_code=True" if card.needs else ""
    lines = [
        "---", "library_name: transformers", "pipeline_tag: text-generation",
        "tags:", "- longhaul", *(["- custom_code"] if card.needs else []), "---",
        f"# {_plain(recipe.name)}",
        f"A {card.family} model of {card.parameters:,} parameters, trained from {begun} with "
        f"longhaul {__version__}; these are its weights after {count(card.step, 'step')}.",
        "", "```python", "from transformers import AutoModelForCausalLM, AutoTokenizer",
        f'model = AutoModelForCausalLM.from_pretrained("PATH"{trusted})',
        f'tokenizer = AutoTokenizer.from_pretrained("PATH"{trusted})', "```",
        *(["", card.needs] if card.needs else []),
        *_result(facts, card),
        "", "## Data",
        *_table(("source", "weight", "tokens to train on"),
                [(name, f"{weight:g}", f"{tokens:,}") for name, weight, tokens in card.sources]),
        "", f"Tokenizer: {_plain(card.tokenizer)}.",
        "", "## Training",
        *_table(("setting", "value"), _settings(recipe)),
        "", "## What happened", in_short(facts),
        *_incidents([incident for incident in facts.incidents if incident.step <= card.step]),
        "", "## What was compared", *(f"- {check}" for check in card.checks),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _result(facts: RunFacts, card: CardFacts) -> Iterator[str]:
    before = [v for v in facts.validations if v.kept and v.step <= card.step]
    if not before or not math.isfinite(before[-1].loss):
        return
    last = before[-1]
    bits = facts.bits_per_byte if last.step == facts.validations[-1].step else None
    yield from ("", "## Result")
    yield f"Validation loss {loss_in_words(last.loss, bits)}, measured at step {last.step:,}."


def _settings(recipe: Recipe) -> Iterator[tuple[str, str]]:
    model, optim, stage = recipe.model, recipe.optim, recipe.batch_stages()[-1]
    kv = f", {model.key_heads} of keys and values" if model.key_heads != model.heads else ""
    yield (
        "shape",
        (
            f"{count(model.layers, 'layer')} of width {model.width:,}, {model.heads} heads{kv}, "
            f"context {model.context:,}"
        ),
    )
    yield "batch", f"{stage.sequences:,} sequences of {stage.sequence_length:,} tokens"
    rate = f"{optim.lr:g}, {optim.schedule.shape}, {optim.schedule.warmup_steps:,} warm-up steps"
    yield "optimizer", f"{optim.name}, learning rate {rate}"
    yield "weight decay", f"{optim.weight_decay:g}"
    yield "dropout", f"{model.dropout:g}"
    yield "precision", recipe.precision.compute
    yield "seed", str(recipe.seed)


def _incidents(found: Sequence[Incident]) -> Iterator[str]:
    if not found:
        return
    rows = [
        (f"{i.step:,}", sentence(i.sentence), sentence(", ".join(i.actions)) if i.actions else "–")
        for i in found[-_MOST_INCIDENTS:]
    ]
    yield ""
    yield from _table(("step", "what was seen", "what was done"), rows)
    if len(found) > _MOST_INCIDENTS:
        yield f"\n{len(found) - _MOST_INCIDENTS:,} earlier incidents are left out."


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(titles)} |"
    yield "|" + "---|" * len(titles)
    for row in rows:
        yield f"| {' | '.join(map(_plain, row))} |"


def _plain(text: str) -> str:
    """A stranger's text as a cell of a table: no line, no column and no markup of its own."""
    for sign, shown in (("\\", "\\\\"), ("|", "\\|"), ("<", "&lt;"), ("`", "'"), ("[", "\\[")):
        text = text.replace(sign, shown)
    return " ".join(text.split())
