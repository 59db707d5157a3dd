"""The whole method as one dense, masked pass in float64: what tests of the core compare with.

Written from the paper's description, with numpy and loops. Of the library it is given nothing but a
model's parameters and the numbers that describe a method.

    j:        sink   segment 1   segment 2   query        token i attends to token j
    sink       x
    segment 1  x         x
    segment 2  x                     x
    query      x         x           x         x          (and never to a later one)
"""

import dataclasses
import itertools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

SINK, QUERY = -1, -2  # group numbers; segments count from 0
DIMS = ("layer", "token", "head")


@dataclasses.dataclass(frozen=True)
class Dense:
    """Of the query tokens, all in float64: next-token logits, and entropies per layer and head.

    `every` has statistics of all tokens, in order: `[layers, heads, tokens]`, and `masses` by group
    (sink, segments, query; empty ones left out) along a last axis.
    """

    logits: np.ndarray
    total: np.ndarray
    between: np.ndarray
    every: dict[str, np.ndarray]

    def nll(self, tokens: Sequence[int]) -> np.ndarray:
        """Of each query token but the first."""
        shifted = self.logits[:-1] - self.logits[:-1].max(-1, keepdims=True)
        logp = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        return -logp[np.arange(len(tokens) - 1), list(tokens)[1:]]


def place(
    lengths: Sequence[int],
    start: int,
    *,
    span: str = "max",
    align: str = "spread",
    sequential: bool = False,
    fractional: bool = False,
) -> tuple[list[list[float]], float]:
    """Positions of every segment's tokens and of the first query token, in exact fractions."""

    def whole(x: Fraction) -> float:
        return float(x) if fractional else float(int(x))  # int() truncates towards zero

    if sequential:
        starts = [start + sum(lengths[:i]) for i in range(len(lengths))]
        consecutive = [
            [float(s + i) for i in range(n)] for s, n in zip(starts, lengths, strict=True)
        ]
        return consecutive, float(start + sum(lengths))
    filled = [n for n in lengths if n]
    width = {
        "max": Fraction(max(filled)),
        "mean": Fraction(sum(filled), len(filled)),
        "harmonic": Fraction(len(filled)) / sum(Fraction(1, n) for n in filled),
    }[span]
    inside = {
        "left": lambda i, n: Fraction(i),
        "right": lambda i, n: width - n + i,
        "spread": lambda i, n: i * width / n,
    }[align]
    placed = [[whole(start + inside(i, n)) for i in range(n)] for n in lengths]
    return placed, whole(start + width)


def dense_pass(
    weights: dict[str, np.ndarray],
    config: Any,
    sink: Sequence[int],
    segments: Sequence[Sequence[int]],
    passes: Sequence[Sequence[int]],
    positions: Sequence[float],
    select: Any = None,
) -> Dense:
    """Read everything at once.

    Args:
        weights: By name, layers stacked.
        config: The model's sizes.
        sink: Token ids.
        segments: Token ids of each; may be empty.
        passes: Query tokens in the portions that are read (and select) together: the query, then
            each generated token.
        positions: Of all tokens, in order.
        select: `top_k`, `tau`, `aggregate`, `score_top` and `aggregate_top`, or None.
    """
    weights = {name: np.asarray(array, np.float64) for name, array in weights.items()}
    group = [SINK] * len(sink)
    for number, segment in enumerate(segments):
        group += [number] * len(segment)
    first = len(group)
    for part in passes:
        group += [QUERY] * len(part)
    tokens = [*sink, *(t for s in segments for t in s), *(t for p in passes for t in p)]
    bounds = np.cumsum([first, *map(len, passes)])
    rows = [slice(a, b) for a, b in itertools.pairwise(bounds)]
    members = [np.flatnonzero(np.array(group) == number) for number in range(len(segments))]
    if sum(len(m) > 0 for m in members) < 2:
        select = None  # nothing to choose from

    fixed: dict[int, np.ndarray] = {}
    if select is not None and "layer" in select.aggregate:
        for number in range(len(rows)):  # a survey without selection, once a pass
            scores = _run(
                weights, config, tokens, group, positions, rows, members, select, fixed, number
            )[2]
            fixed[number] = _choose(scores[number], members, select)
    hidden, every, _ = _run(
        weights, config, tokens, group, positions, rows, members, select, fixed, None
    )
    hidden = _rms_norm(hidden[first:], weights["norm"], config.norm_eps)
    head = weights["embed"] if config.tie_embeddings else weights["head"]
    total, between = (every[name][:, :, first:] for name in ("total", "between"))
    return Dense(hidden @ head.T, total, between, every)


def _run(
    weights: dict[str, np.ndarray],
    config: Any,
    tokens: list[int],
    group: list[int],
    positions: Sequence[float],
    rows: list[slice],
    members: list[np.ndarray],
    select: Any,
    fixed: dict[int, np.ndarray],
    survey: int | None,
) -> tuple[np.ndarray, dict[str, np.ndarray], list[np.ndarray]]:
    """Residual stream, statistics `[layers, heads, tokens]`, and each pass's scores by layer."""
    count = len(tokens)
    visible = np.zeros((count, count), bool)
    for i in range(count):
        for j in range(i + 1):
            visible[i, j] = group[j] == SINK or group[j] == group[i] or group[i] == QUERY
    x = weights["embed"][tokens]
    layers: list[dict[str, np.ndarray]] = []
    scores: list[list[np.ndarray]] = [[] for _ in rows]
    for layer in range(config.num_layers):
        w = {n.removeprefix("blocks."): a[layer] for n, a in weights.items() if "." in n}
        y = _rms_norm(x, w["attention_norm"], config.norm_eps)
        q = (y @ w["q_proj"].T).reshape(count, config.num_heads, config.head_dim)
        k = (y @ w["k_proj"].T).reshape(count, config.num_kv_heads, config.head_dim)
        v = (y @ w["v_proj"].T).reshape(count, config.num_kv_heads, config.head_dim)
        shared = config.num_heads // config.num_kv_heads
        q, k = (_rotate(a, positions, config.rope.theta) for a in (q, k))
        k, v = np.repeat(k, shared, axis=1), np.repeat(v, shared, axis=1)
        logits = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(config.head_dim)
        p = np.where(
            visible, np.exp(logits - np.where(visible, logits, -np.inf).max(-1)[..., None]), 0
        )
        p /= p.sum(-1, keepdims=True)
        for number, part in enumerate(rows if select is not None else []):
            seen = _scores(p[:, part], members, select.score_top)
            scores[number].append(seen)
            if survey is not None and number >= survey:
                continue
            if "layer" in select.aggregate:
                choice = fixed[number][layer]
            else:
                choice = _choose(seen[None], members, select)[0]
            p[:, part] = _reweigh(p[:, part], members, choice, select.tau)
        mixed = np.einsum("hij,jhd->ihd", p, v)
        x = x + mixed.reshape(count, -1) @ w["o_proj"].T
        y = _rms_norm(x, w["mlp_norm"], config.norm_eps)
        gate = y @ w["gate_proj"].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ w["up_proj"].T)) @ w["down_proj"].T
        masses = np.stack(
            [p[:, :, np.array(group) == g].sum(-1) for g in dict.fromkeys(group)], axis=-1
        )
        by_token = {"q": q, "k": k, "v": v, "output": mixed}
        sizes = {name: np.abs(a).mean(-1).T for name, a in by_token.items()}
        q_norm, k_norm = np.linalg.norm(q, axis=-1).T, np.linalg.norm(k, axis=-1).T
        cosine = np.einsum("ihd,jhd->hij", q, k) / q_norm[:, :, None] / k_norm[:, None]
        seen = visible.sum(-1)
        layers.append(
            sizes
            | {
                "total": plain_entropy(p),
                "between": plain_entropy(masses),
                "masses": masses,
                "logit": (np.abs(logits) * visible).sum(-1) / seen,
                "cosine": (cosine * visible).sum(-1) / seen,
                "q_norm": q_norm,
                "k_norm": k_norm,
            }
        )
    by_layer = [np.stack(part) if part else np.zeros(0) for part in scores]
    every = {name: np.stack([layer[name] for layer in layers]) for name in layers[0]}
    return x, every, by_layer


def plain_entropy(p: np.ndarray) -> np.ndarray:
    """-sum p log p over the last axis, in nats."""
    return -(p * np.log(np.where(p > 0, p, 1))).sum(-1)


def _top_sum(x: np.ndarray, top: int) -> float:
    if not len(x):
        return 0.0
    return float(np.mean(x) if top <= 0 else np.sort(x)[::-1][:top].sum())


def _scores(p: np.ndarray, members: list[np.ndarray], top: int) -> np.ndarray:
    """`[tokens, heads, segments]` from `p [heads, tokens, keys]`."""
    heads, count, _ = p.shape
    scores = np.zeros((count, heads, len(members)))
    for t in range(count):
        for h in range(heads):
            scores[t, h] = [_top_sum(p[h, t, keys], top) for keys in members]
    return scores


def _choose(scores: np.ndarray, members: list[np.ndarray], select: Any) -> np.ndarray:
    """1 or 0 for each segment, or its target mass; `scores [layers, tokens, heads, segments]`."""
    filled = [number for number, keys in enumerate(members) if len(keys)]
    choice = np.zeros_like(scores)
    for index in np.ndindex(scores.shape[:3]):
        together = tuple(
            slice(None) if dim in select.aggregate else i
            for dim, i in zip(DIMS, index, strict=True)
        )
        found = {s: _top_sum(scores[(*together, s)].ravel(), select.aggregate_top) for s in filled}
        if select.tau is not None:
            powers = {s: (value + 1e-5) ** (1 / select.tau) for s, value in found.items()}
            for s, power in powers.items():
                choice[(*index, s)] = power / sum(powers.values())
        else:
            for s in sorted(filled, key=lambda s: (-found[s], s))[: select.top_k]:
                choice[(*index, s)] = 1
    return choice


def _reweigh(
    p: np.ndarray, members: list[np.ndarray], choice: np.ndarray, tau: float | None
) -> np.ndarray:
    p = p.copy()
    for t in range(p.shape[1]):
        for h in range(p.shape[0]):
            for s, keys in enumerate(members):
                if len(keys):
                    mass = p[h, t, keys].sum()
                    p[h, t, keys] *= choice[t, h, s] if tau is None else choice[t, h, s] / mass
            p[h, t] /= max(p[h, t].sum(), 1e-5)
    return p


def _rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return weight * x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps)


def _rotate(x: np.ndarray, positions: Sequence[float], theta: float) -> np.ndarray:
    half = x.shape[-1] // 2
    angles = np.outer(np.asarray(positions, np.float64), theta ** (-np.arange(half) / half))
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
