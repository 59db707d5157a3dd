"""Why parallel encoding fails and what repairs do: statistics, oracle swaps and controls.

found = pce.analysis.analyze_query(model, cache, tokens, method)
found.entropy.total, found.k_norm, found.segment_mass ...  # [layers, heads, tokens, ...]
"""

from .controls import (
    cut_behind,
    drop,
    move_to_query,
    overlapping,
    repeat_sink,
    same_sizes,
    separators,
    shuffle,
    unpack,
)
from .statistics import ContextStatistics, Statistics, analyze_query, analyze_segments
from .swaps import full_like, swap

__all__ = [
    "ContextStatistics",
    "Statistics",
    "analyze_query",
    "analyze_segments",
    "cut_behind",
    "drop",
    "full_like",
    "move_to_query",
    "overlapping",
    "repeat_sink",
    "same_sizes",
    "separators",
    "shuffle",
    "swap",
    "unpack",
]
