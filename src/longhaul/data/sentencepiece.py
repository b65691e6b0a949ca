"""SentencePiece models of every type, encoded by their own library.

Nothing in a model is run, and nothing in it is trusted: the library checks the pieces and, since
0.2.3, every table of normalisation rules before it uses them.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from sentencepiece import SentencePieceProcessor

from longhaul.core.errors import DataError
from longhaul.data.tokenizing import (
    BEGINS_OF_TEXT,
    ENDS_OF_TEXT,
    SPACE_MARK,
    TokenArray,
    Tokenizer,
    Wanted,
    names_of,
)


class SentencePieceTokenizer(Tokenizer):
    """A tokenizer of the `sentencepiece` library, from a `.model` of this name.

    End-of-text, if wanted, is the first of the four usual tokens that is a control piece, which no
    text is ever encoded to, or the control piece of that name; begin-of-text likewise. DataError
    if the library refuses the content.
    """

    file_name = "tokenizer.model"

    def __init__(
        self, content: bytes, end_of_text: Wanted, name: str, begin_of_text: Wanted = False
    ) -> None:
        self._inner = SentencePieceProcessor()
        try:
            self._inner.LoadFromSerializedProto(content)
            self.vocab_size = self._inner.vocab_size()
            self._pieces = self._inner.id_to_piece(list(range(self.vocab_size)))
        except (RuntimeError, ValueError, LookupError) as error:
            raise DataError(
                f"{name}: not a SentencePiece model ({error})",
                "give a SentencePiece model, or the tokenizer.json of the same one",
            ) from None
        self._content = content
        self.end_of_text = self._control(names_of(end_of_text, ENDS_OF_TEXT))
        self.begin_of_text = self._control(names_of(begin_of_text, BEGINS_OF_TEXT))

    def _control(self, names: Iterable[str]) -> int | None:
        found = map(self._inner.piece_to_id, names)
        return next((number for number in found if self._inner.is_control(number)), None)

    def name_of(self, token: int) -> str:
        """The piece."""
        return str(self._pieces[token])

    def special_tokens(self) -> list[str]:
        """Control pieces (see `Tokenizer`)."""
        return [p for number, p in enumerate(self._pieces) if self._inner.is_control(number)]

    def encode_batch(self, texts: Sequence[str]) -> list[TokenArray]:
        """Token numbers of each text (see `Tokenizer`), on all cores."""
        contents = [text.encode(errors="replace") for text in texts]
        found = self._inner.encode(contents, return_type="numpy", num_threads=-1)
        return [numbers.view(np.uint32) for numbers in found]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token numbers (see `Tokenizer`); control pieces have none."""
        known = [int(i) for i in ids if 0 <= i < self.vocab_size]
        content: bytes = self._inner.decode(known, return_type=bytes)
        return content.decode(errors="replace")

    def token_bytes(self) -> npt.NDArray[np.int64]:
        """UTF-8 bytes of each token (see `Tokenizer`); a byte's piece is one."""
        sizes = [len(piece.replace(SPACE_MARK, " ").encode()) for piece in self._pieces]
        for number in range(self.vocab_size):
            if self._inner.is_byte(number):
                sizes[number] = 1
            elif self._inner.is_control(number) or self._inner.is_unknown(number):
                sizes[number] = 0
        return np.array(sizes, np.int64)

    def content(self) -> bytes:
        """The `.model`, byte for byte as it was given."""
        return self._content
