"""Encoding in segments against full attention over the same tokens, and against plain products."""

import pce_jax as pce

from .bars import Bar, of_ratio
from .flops import encode_flops, linear_flops
from .found import Found, Row
from .roofline import layer_products
from .setting import Setting
from .sizes import Cut
from .timing import Case, Timed, ratio

LIMITS = {4096: 0.65, 8192: 0.50}
"""Time of encoding relative to a full prefill, by context tokens."""

MATMUL_SHARE = 0.60
"""Operations per second of encoding, relative to those of the model's products alone."""

LONG = 4096
"""Longer contexts are measured less often: full attention takes most of a minute."""


def repeats_of(setting: Setting, cut: Cut) -> int:
    """How often a context is encoded."""
    return setting.fewer_repeats if cut.tokens > LONG else setting.repeats


def cost(setting: Setting) -> float:
    """What the part costs, in FLOPs."""
    each = [
        sum(flops(setting, cut)) * (1 + repeats_of(setting, cut)) for cut in setting.sizes.encode
    ]
    return 1.1 * sum(each)


def flops(setting: Setting, cut: Cut) -> tuple[int, int]:
    """Operations of encoding in segments, and as one."""
    lengths = setting.lengths(cut)
    return encode_flops(setting.config, lengths), encode_flops(setting.config, [sum(lengths)])


def measure(setting: Setting) -> Found:
    """Encode every context in segments and as one."""
    found = Found()
    for number, cut in enumerate(setting.sizes.encode):
        found += _one(setting, cut, with_products=number == 0)
    return found


def _one(setting: Setting, cut: Cut, with_products: bool) -> Found:
    model, context = setting.model, setting.context(cut)
    ours, whole = flops(setting, cut)
    tokens = sum(setting.lengths(cut))
    full = pce.METHODS["full"]
    cases = {
        "in segments": Case(lambda: pce.encode(model, context), cost=ours),
        "full prefill": Case(lambda: pce.encode(model, context, full), cost=whole),
    }
    layer = linear_flops(setting.config, tokens) / setting.config.num_layers
    if with_products:
        products = layer_products(setting.config, tokens, model.dtype)
        cases["one layer's plain products"] = Case(products, cost=layer)
    timed = setting.time(cases, repeats_of(setting, cut))
    counted = {"in segments": ours, "full prefill": whole, "one layer's plain products": layer}
    rows = [
        Row(
            part="encode",
            size=str(cut),
            name=name,
            sample=each.sample,
            compile_seconds=each.compile_seconds,
            tokens=tokens if name in ("in segments", "full prefill") else 0,
            flops=counted[name],
        )
        for name, each in timed.items()
    ]
    return Found(rows=tuple(rows), bars=tuple(_bars(setting, cut, timed, ours, layer)))


def _bars(
    setting: Setting, cut: Cut, timed: dict[str, Timed], ours: float, layer: float
) -> list[Bar]:
    judged = setting.judged("encode")
    segments, full = timed["in segments"].sample, timed["full prefill"].sample
    limit = LIMITS.get(cut.tokens, max(LIMITS.values()))
    name = f"encode {cut} / own full prefill"
    bars = [of_ratio(f"encode-{cut.tokens}", name, ratio(segments, full), limit, judged)]
    if "one layer's plain products" in timed:
        # Operations per second: seconds per operation, the other way round.
        plain = timed["one layer's plain products"].sample
        share = ratio(plain.scaled(1 / layer), segments.scaled(1 / ours))
        bars.append(
            Bar(
                key="encode-matmul",
                name=f"encode FLOP/s / plain matmul, {cut}",
                value=share.value,
                limit=MATMUL_SHARE,
                at_least=True,
                low=share.low,
                high=share.high,
                judged=judged,
            )
        )
    return bars
