"""Text out of tokens as they come, never half a character and never part of a stop string."""

from collections.abc import Sequence
from typing import Any

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # how a tokenizer decodes the first bytes of a character


class TextStream:
    """Turns tokens into text piece by piece: all pieces together are the text of all tokens."""

    def __init__(self, tokenizer: Any, stops: Sequence[str] = ()):
        """Start an empty text.

        Args:
            tokenizer: A transformers tokenizer.
            stops: Strings that end the text; the first one to appear is cut off with all after it.
        """
        self.tokens: list[int] = []
        self.text = ""
        self.stopped = False
        self._tokenizer = tokenizer
        self._stops = [stop for stop in stops if stop]
        self._shown = 0  # characters of the text given away
        self._context = self._read = 0  # tokens in front of the unfinished part, and up to it

    def push(self, token: int) -> str:
        """Take one token and return the text that is certain now, often `""`."""
        self.tokens.append(token)
        return self._advance(finish=False)

    def finish(self) -> str:
        """Return what was held back."""
        return self._advance(finish=True)

    def _advance(self, finish: bool) -> str:
        if self.stopped:
            return ""
        # A token's text may depend on the one before it (a leading space), so decode both.
        before = self._decode(self.tokens[self._context : self._read])
        text = self._decode(self.tokens[self._context :])
        if finish or not text.endswith(_UNFINISHED):
            self.text += text[len(before) :]
            self._context, self._read = self._read, len(self.tokens)
        end = len(self.text) if finish else self._certain()
        for stop in self._stops:
            at = self.text.find(stop)
            if at >= 0:
                self.stopped, self.text = True, self.text[:at]
                end = at
        piece = self.text[self._shown : end]
        self._shown = max(self._shown, end)
        return piece

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

    def _certain(self) -> int:
        """Characters that no stop string can still take back."""
        for start in range(self._shown, len(self.text)):
            if any(stop.startswith(self.text[start:]) for stop in self._stops):
                return start
        return len(self.text)
