"""The neural translator: a longhaul recipe over "source ⟶ target", greedy and by beam search.

Shapes: B hypotheses, T tokens, V tokens of the vocabulary.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
_ROWS = 64
"""Hypotheses computed at once."""


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
    """A trained model that translates."""

    def __init__(self, model: Any, tokenizer: Any, context: int, device: Any = "cpu") -> None:
        """`model`: logits [B, T, V] of tokens [B, T], on `device`; of at most `context` tokens."""
        self._model, self._tokenizer, self._context = model, tokenizer, context
        self._device = device
        self._end = int(tokenizer.end_of_text)

    @classmethod
    def of_run(cls, run: Any) -> "Neural":
        """That of a run of `recipe.toml` (`longhaul.Run`)."""
        trained = run.load_model()
        context = trained.recipe.model.context
        return cls(trained.model, trained.dataset.tokenizer, context, trained.device)

    def translate(self, sources: Sequence[str], width: int = 4) -> list[Written]:
        """Of each the best of `width` hypotheses a step, by log probability per token; 1 is greedy.

        Sources of equally many tokens are searched together, `_ROWS` hypotheses at once.
        """
        searches = [_Search(self._asked(source), width) for source in sources]
        by_length: dict[int, list[_Search]] = {}
        for search in searches:
            by_length.setdefault(len(search.asked), []).append(search)
        for length, some in by_length.items():
            at_once = max(1, _ROWS // width)
            most = max(1, min(self._context - length, 2 * length + 12))
            for first in range(0, len(some), at_once):
                self._search(some[first : first + at_once], most)
        return [self._written(search) for search in searches]

    def _asked(self, source: str) -> list[int]:
        """As documents follow each other in training; of a source too long its end."""
        tokens = self._tokenizer.encode(source.replace(ARROW, "->") + ARROW).tolist()
        return [self._end, *tokens[-(self._context * 2 // 3) :]]

    def _search(self, searches: Sequence["_Search"], most: int) -> None:
        import torch

        for _ in range(most):
            going = [search for search in searches if not search.over]
            if not going:
                return
            rows = [search.asked + made for search in going for _, made, _ in search.alive]
            with torch.inference_mode():
                logits_BV = self._model(torch.tensor(rows, device=self._device))[:, -1].float()
                tried = min(going[0].width + 1, logits_BV.shape[1])
                best = torch.log_softmax(logits_BV, dim=-1).topk(tried, dim=-1)
            values, tokens, row = best.values.tolist(), best.indices.tolist(), 0
            for search in going:
                after = row + len(search.alive)
                search.grow(values[row:after], tokens[row:after], self._end)
                row = after

    def _written(self, search: "_Search") -> Written:
        ended = search.ended or [
            (total / max(1, len(made)) ** _LENGTH_POWER, total, made, worst)
            for total, made, worst in search.alive
        ]
        ended.sort(key=lambda one: -one[0])
        score, total, made, worst = ended[0]
        margin = score - ended[1][0] if len(ended) > 1 else 0.0
        kept = [token for token in made if token != self._end]
        text = " ".join(self._tokenizer.decode(kept).replace(ARROW, " ").split())
        return Written(text, total, len(made), bool(search.ended), margin, worst)

    def log_probabilities(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """Of any translations under this model, in nats a token; of long ones their begin."""
        import torch

        rows = []
        for source, target in zip(sources, targets, strict=True):
            answer = [*self._tokenizer.encode(target.replace(ARROW, "->")).tolist(), self._end]
            asked = self._asked(source)
            rows.append((asked, answer[: max(1, self._context - len(asked))]))
        order = sorted(range(len(rows)), key=lambda n: sum(map(len, rows[n])))
        found = [0.0] * len(rows)
        for first in range(0, len(order), _ROWS):
            some = order[first : first + _ROWS]
            length = max(sum(map(len, rows[n])) for n in some)
            # What follows a row's end changes nothing before it.
            filled = [(rows[n][0] + rows[n][1] + [self._end] * length)[:length] for n in some]
            tokens_BT = torch.tensor(filled, device=self._device)
            with torch.inference_mode():
                log_BTV = torch.log_softmax(self._model(tokens_BT[:, :-1]).float(), dim=-1)
                log_BT = log_BTV.gather(2, tokens_BT[:, 1:, None])[..., 0]
            for n, log_T in zip(some, log_BT, strict=True):
                asked, answer = rows[n]
                found[n] = float(log_T[len(asked) - 1 : len(asked) - 1 + len(answer)].mean())
        return found


@dataclass
class _Search:
    """Hypotheses of one source."""

    asked: list[int]
    width: int
    alive: list[tuple[float, list[int], float]] = field(default_factory=lambda: [(0.0, [], 0.0)])
    """Log probability, tokens, and the log probability of the least probable of them."""
    ended: list[tuple[float, float, list[int], float]] = field(default_factory=list)
    """With the score before them."""

    @property
    def over(self) -> bool:
        return len(self.ended) >= self.width or not self.alive

    def grow(self, values: list[list[float]], tokens: list[list[int]], end: int) -> None:
        """One more token, of the most probable ones after each that is alive."""
        grown = [
            (total + value, [*made, token], min(worst, value))
            for (total, made, worst), its, there in zip(self.alive, values, tokens, strict=True)
            for value, token in zip(its, there, strict=True)
        ]
        grown.sort(key=lambda one: -one[0])
        self.alive = []
        for total, made, worst in grown[: 2 * self.width]:
            if made[-1] == end:
                self.ended.append((total / len(made) ** _LENGTH_POWER, total, made, worst))
            elif len(self.alive) < self.width:
                self.alive.append((total, made, worst))
