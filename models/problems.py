"""Everything that is wrong with some weights, told at once: a file is fixed faster that way."""

from collections import defaultdict
from pathlib import Path

from .errors import WeightsError

_SHOWN = 20


class Problems:
    """Collects what is wrong, by kind, to raise it as one error."""

    def __init__(self) -> None:
        """Start with nothing wrong."""
        self._found: dict[str, list[str]] = defaultdict(list)

    def __bool__(self) -> bool:
        """Whether anything is wrong."""
        return bool(self._found)

    def add(self, kind: str, what: str) -> None:
        """Note one problem.

        Args:
            kind: A word or two that similar problems share (`missing`, `wrong shape`).
            what: The tensor, with what was found and expected where it helps.
        """
        self._found[kind].append(what)

    def raise_if_any(self, where: Path, advice: str) -> None:
        """Raise all problems, if there are any.

        Args:
            where: The file or folder that has them.
            advice: What to do next, as a sentence.

        Raises:
            WeightsError: There are problems. Lists up to 20 of each kind, and counts the rest.
        """
        if not self._found:
            return
        lines = [f"{where}: the weights cannot be used."]
        for kind, found in self._found.items():
            lines.append(f"{kind} ({len(found)}):")
            lines += [f"  {what}" for what in found[:_SHOWN]]
            if len(found) > _SHOWN:
                lines.append(f"  ... and {len(found) - _SHOWN} more")
        raise WeightsError("\n".join([*lines, advice]))
