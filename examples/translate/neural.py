"""The neural translator: a longhaul recipe over "source ⟶ target", greedy and by beam search.

Shapes: B hypotheses, T tokens, V tokens of the vocabulary.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.translate.catalogues import Pair
from examples.translate.text import MOST_MARKS

ARROW = "⟶"
END = "<|endoftext|>"
RECIPE = Path(__file__).with_name("recipe.toml")
_LENGTH_POWER = 1.0
"""The score is the sum of log probabilities over the number of tokens to this power (Wu et al.,
arXiv 1609.08144, section 7, have a smoother form)."""


@dataclass(frozen=True, slots=True)
class Written:
    """A translation and what the model thinks of it."""

    text: str
    """Masked."""
    log_probability: float
    """Of the tokens and the end of text, in nats."""
    num_tokens: int
    """With the end of text; those of an unfinished one as they are."""
    finished: bool
    margin: float
    """Score of the best over that of the second, in nats a token; 0 if there is no second."""
    worst: float
    """Log probability of the least probable token, in nats."""


def train_tokenizer(pairs: Sequence[Pair], vocab_size: int, path: Path) -> None:
    """One BPE for both languages; `⟶` and the marks are tokens of their own, also in text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - MOST_MARKS - 1,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # As in training: the first word of each side stands at a begin, without a space.
    texts = (side for pair in pairs for side in (pair.source, pair.target))
    tokenizer.train_from_iterator(texts, trainer)
    own = [ARROW, *(f"⟦{number}⟧" for number in range(1, MOST_MARKS + 1))]
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in own])
    path.write_text(tokenizer.to_str())


def train(
    pairs: Sequence[Pair],
    folder: Path,
    steps: int | None = None,
    vocab_size: int = 3072,
    say: Callable[[str], None] = print,
    **overrides: Any,
) -> Any:
    """Train `recipe.toml` on these pairs in `folder`; the finished run (`longhaul.Run`).

    Trained again with the same pairs, a run that was interrupted goes on, and a finished one is
    given back. Raises what `longhaul.train` raises.
    """
    import longhaul

    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "train.jsonl"
    lines = [json.dumps({"text": f"{p.source}{ARROW}{p.target}"}) for p in pairs]
    content = "\n".join(lines) + "\n"
    if not text.exists() or text.read_text() != content:
        text.write_text(content)
        train_tokenizer(pairs, vocab_size, folder / "tokenizer.json")
    changed: dict[str, Any] = {
        "data.sources": [{"path": str(text.resolve())}],
        "tokenizer.path": str((folder / "tokenizer.json").resolve()),
        **overrides,
    }
    if steps is not None:
        changed["train.steps"] = steps
    return longhaul.train(
        RECIPE,
        runs_dir=folder / "runs",
        prepared_dir=folder / "prepared",
        say=say,
        **changed,
    )


class Neural:
    """A trained run that translates."""

    def __init__(self, run: Any) -> None:
        trained = run.load_model()
        self._model = trained.model
        self._device = trained.device
        self._tokenizer = trained.dataset.tokenizer
        self._context = trained.recipe.model.context
        self._end = self._tokenizer.end_of_text

    def greedy(self, source: str) -> Written:
        """The most probable token each time."""
        return self.beam(source, 1)

    def beam(self, source: str, width: int = 4) -> Written:
        """The best of `width` hypotheses a step, by log probability per token."""
        import torch

        asked = [
            int(token) for token in self._tokenizer.encode(source.replace(ARROW, "->") + ARROW)
        ]
        asked = asked[-(self._context * 2 // 3) :]
        most = min(self._context - len(asked), 2 * len(asked) + 12)
        alive: list[tuple[float, list[int], float]] = [(0.0, [], 0.0)]
        ended: list[tuple[float, float, list[int], float]] = []
        with torch.inference_mode():
            for _ in range(most):
                rows = torch.tensor([asked + made for _, made, _ in alive], device=self._device)
                logits_BV = self._model(rows)[:, -1].float()
                log_BV = torch.log_softmax(logits_BV, dim=-1)
                grown = []
                values_BW, tokens_BW = log_BV.topk(width + 1, dim=-1)
                for (total, made, worst), values, tokens in zip(
                    alive, values_BW.tolist(), tokens_BW.tolist(), strict=True
                ):
                    for value, token in zip(values, tokens, strict=True):
                        grown.append((total + value, [*made, token], min(worst, value)))
                grown.sort(key=lambda one: -one[0])
                alive = []
                for total, made, worst in grown[: 2 * width]:
                    if made[-1] == self._end:
                        score = total / len(made) ** _LENGTH_POWER
                        ended.append((score, total, made, worst))
                    elif len(alive) < width:
                        alive.append((total, made, worst))
                if len(ended) >= width or not alive:
                    break
        return self._best(ended, alive)

    def _best(
        self,
        ended: list[tuple[float, float, list[int], float]],
        alive: list[tuple[float, list[int], float]],
    ) -> Written:
        finished = bool(ended)
        if not finished:
            ended = [(t / max(1, len(m)) ** _LENGTH_POWER, t, m, w) for t, m, w in alive]
        ended.sort(key=lambda one: -one[0])
        score, total, made, worst = ended[0]
        margin = score - ended[1][0] if len(ended) > 1 else 0.0
        kept = [token for token in made if token != self._end]
        text = " ".join(self._tokenizer.decode(kept).replace(ARROW, " ").split())
        return Written(text, total, len(made), finished, margin, worst)

    def log_probability(self, source: str, target: str) -> float:
        """Of any translation under this model, in nats a token."""
        import torch

        asked = self._tokenizer.encode(source.replace(ARROW, "->") + ARROW).tolist()
        answer = [*self._tokenizer.encode(target.replace(ARROW, "->")).tolist(), self._end]
        asked = asked[-(self._context // 2) :]
        answer = answer[: self._context - len(asked)]
        with torch.inference_mode():
            row = torch.tensor([asked + answer], device=self._device)
            log_TV = torch.log_softmax(self._model(row[:, :-1])[0].float(), dim=-1)
        wanted = row[0, len(asked) :, None]
        return float(log_TV[len(asked) - 1 :].gather(1, wanted).mean())
