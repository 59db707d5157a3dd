"""A parallel encoding method as one value, and the named ones of the paper."""

import dataclasses

from .positions import Positions
from .selection import Select


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    r"""How a context is encoded and attended to. Hashable: static under `jit`.

    Attributes:
        sink: Text of the shared prefix in front of every segment (paper, section 4.1); hand it to
            `pack`.
        positions: Which positions segments and query take.
        select: Selective attention, or `None` to attend to every segment.
        full: Read the segments as one: ordinary full attention, the yardstick.

    Example:
        >>> method = pce.Method(sink="\n\n", select=pce.Select(top_k=4))
        >>> pce.METHODS["sink"].select is None
        True
    """

    sink: str = ""
    positions: Positions = Positions()
    select: Select | None = None
    full: bool = False


METHODS: dict[str, Method] = {
    "full": Method(full=True),
    "naive": Method(),
    "sink": Method(sink="\n\n"),
    "sel": Method(select=Select()),
    "sink+sel": Method(sink="\n\n", select=Select()),
}
"""Full attention and the paper's methods, with its shortest sink (what it says hardly matters)."""
