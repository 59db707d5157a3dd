"""The decoder: embedding, blocks of attention and gated MLP under `lax.scan`, final norm and head.

It knows nothing of parallel encoding. A block hands its *un-rotated* queries, keys and values to an
`attend` function and takes back the mixed values, plus whatever that function wants to keep (keys
and values for a cache, attention entropy, segment scores). Everything a method does lives in its
`attend`; see `decode_stack`.

Weights keep Hugging Face's orientation `[out, in]`; those of the blocks are stacked along a leading
layer axis.
"""

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from .config import LlamaConfig
from .rope import rotary, rotate, rotated_layers, turns
from .sharding import READING, Axis, Rules, lookup, product, shard

if TYPE_CHECKING:
    from .lora import Lora

Attend = Callable[[Array, Array, Array, Array, Any], tuple[Array, Any]]
"""`attend(q, k, v, rotated, state) -> (mixed, kept)`.

`q [*batch, tokens, heads, head_dim]`, `k` and `v [*batch, tokens, kv_heads, head_dim]`, whether the
layer rotates queries and keys (`rope.rotate` asks), and its slice of `state`; returns values mixed
per query head, shaped like `q`, and any pytree to keep for this layer.
"""


Remat = Literal["none", "products", "all"]
"""What a backward pass computes again, block by block, to save memory: nothing, all but the matrix
products with weights, or everything."""


class Block(nnx.Module):
    """One decoder block, or all of them stacked (then every parameter has a leading layer axis).

    A parameter that the config does not ask for (a bias, the query/key norms) is `None`, and so are
    the scales of projections unless these are int8 (`to_int8`), and adapters (`with_lora`).
    """

    attention_norm: nnx.Param
    q_proj: nnx.Param
    k_proj: nnx.Param
    v_proj: nnx.Param
    o_proj: nnx.Param
    q_bias: nnx.Param | None
    k_bias: nnx.Param | None
    v_bias: nnx.Param | None
    o_bias: nnx.Param | None
    q_norm: nnx.Param | None
    k_norm: nnx.Param | None
    mlp_norm: nnx.Param
    gate_proj: nnx.Param
    up_proj: nnx.Param
    down_proj: nnx.Param
    gate_bias: nnx.Param | None
    up_bias: nnx.Param | None
    down_bias: nnx.Param | None
    q_scale: nnx.Param | None
    k_scale: nnx.Param | None
    v_scale: nnx.Param | None
    o_scale: nnx.Param | None
    gate_scale: nnx.Param | None
    up_scale: nnx.Param | None
    down_scale: nnx.Param | None

    def __init__(self, parameters: Mapping[str, Any], lora: "Lora | None" = None):
        """Wrap arrays by name; names that are absent become `None`."""
        for name in Block.__annotations__:
            value = parameters.get(name)
            setattr(self, name, None if value is None else nnx.Param(value))
        self.lora = nnx.data(lora)


class Llama(nnx.Module):
    """A decoder of the Llama family: a pytree of parameters with its config."""

    def __init__(
        self,
        config: LlamaConfig,
        parameters: Mapping[str, Any],
        lora: "Lora | None" = None,
        remat: Remat = "none",
        learned: Any = None,
        rules: Rules = READING,
    ):
        """Wrap arrays by the names of `parameter_shapes(config)`.

        Args:
            config: What the arrays mean.
            parameters: Arrays (or `jax.ShapeDtypeStruct`) by dotted name; `blocks.*` are stacked.
            lora: Adapters of the projections, stacked too.
            remat: What to compute again in a backward pass.
            learned: What a method has learned to go with these weights, any pytree; it is carried
                along, and nothing here looks at it.
            rules: How arrays are spread over the devices of a mesh.
        """
        self.config = config
        self.rules = rules
        self.remat: Remat = remat
        self.learned = nnx.data(learned)
        self.embed = nnx.Param(parameters["embed"])
        stacked = {name: value for name, value in parameters.items() if name.startswith("blocks.")}
        self.blocks = Block(
            {name.removeprefix("blocks."): value for name, value in stacked.items()}, lora
        )
        self.norm = nnx.Param(parameters["norm"])
        self.head = None if config.tie_embeddings else nnx.Param(parameters["head"])
        scales = (parameters.get(f"{name}_scale") for name in ("embed", "head"))
        self.embed_scale, self.head_scale = (
            None if scale is None else nnx.Param(scale) for scale in scales
        )

    @property
    def dtype(self) -> jnp.dtype:
        """Dtype of the activations, and of the weights unless these are int8."""
        return self.norm[...].dtype


PROJECTIONS: dict[str, tuple[Axis, Axis]] = {
    "q": ("heads", "embed"),
    "k": ("kv_heads", "embed"),
    "v": ("kv_heads", "embed"),
    "o": ("embed", "heads"),
    "gate": ("mlp", "embed"),
    "up": ("mlp", "embed"),
    "down": ("embed", "mlp"),
}
"""What the two axes `[out, in]` of each projection's weight mean."""


def parameter_axes(config: LlamaConfig) -> dict[str, tuple[Axis, ...]]:
    """Dotted name of every parameter of `config`, and what its axes mean."""
    block: dict[str, tuple[Axis, ...]] = {
        "attention_norm": ("width",),
        **{f"{name}_proj": PROJECTIONS[name] for name in "qkvo"},
        "mlp_norm": ("width",),
        **{f"{name}_proj": PROJECTIONS[name] for name in ("gate", "up", "down")},
    }
    if config.qkv_bias:
        block |= {f"{name}_bias": PROJECTIONS[name][:1] for name in "qkv"}
    if config.out_bias:
        block |= {"o_bias": ("width",)}
    if config.qk_norm:
        block |= {"q_norm": ("head_dim",), "k_norm": ("head_dim",)}
    if config.mlp_bias:
        block |= {"gate_bias": ("mlp",), "up_bias": ("mlp",), "down_bias": ("width",)}
    axes: dict[str, tuple[Axis, ...]] = {"embed": ("vocab", "embed")}
    axes |= {f"blocks.{name}": ("layers", *each) for name, each in block.items()}
    axes |= {"norm": ("width",)}
    return axes if config.tie_embeddings else axes | {"head": ("vocab", "embed")}


def parameter_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Dotted name and shape of every parameter of `config`; what loaders and `init` go by."""
    sizes: dict[Axis, int] = {
        "layers": config.num_layers,
        "vocab": config.vocab_size,
        "embed": config.hidden_size,
        "width": config.hidden_size,
        "heads": config.num_heads * config.head_dim,
        "kv_heads": config.num_kv_heads * config.head_dim,
        "head_dim": config.head_dim,
        "mlp": config.intermediate_size,
    }
    return {
        name: tuple(sizes[axis] for axis in axes) for name, axes in parameter_axes(config).items()
    }


def init(config: LlamaConfig, key: Key[Array, ""], dtype: Any = jnp.float32) -> Llama:
    """A random model: norms 1, biases 0, projections normal with deviation `1 / sqrt(in)`."""

    def draw(name: str, shape: tuple[int, ...], key: Array) -> Array:
        if name.endswith("norm"):
            return jnp.ones(shape, dtype)
        if name.endswith("bias"):
            return jnp.zeros(shape, dtype)
        return (jax.random.normal(key, shape) * shape[-1] ** -0.5).astype(dtype)

    shapes = parameter_shapes(config)
    keys = jax.random.split(key, len(shapes))
    drawn = zip(shapes.items(), keys, strict=True)
    return Llama(config, {name: draw(name, shape, key) for (name, shape), key in drawn})


def parameters_of(model: Llama) -> dict[str, Array]:
    """A model's arrays by dotted name, scales of int8 included, as `Llama` takes them."""
    found = {}
    for owner, prefix in ((model, ""), (model.blocks, "blocks.")):
        for name, value in vars(owner).items():
            if isinstance(value, nnx.Param):
                found[prefix + name] = value[...]
    return found


def changed(model: Llama, **changes: Any) -> Llama:
    """The model with something else beside its weights, which are shared and not copied.

    Args:
        model: The decoder.
        **changes: Arguments of `Llama` by name.
    """
    kept: dict[str, Any] = {
        "config": model.config,
        "parameters": parameters_of(model),
        "lora": model.blocks.lora,
        "remat": model.remat,
        "learned": model.learned,
        "rules": model.rules,
    }
    return Llama(**kept | changes)


def embed(model: Llama, tokens: Int[Array, "*batch tokens"]) -> Float[Array, "*batch tokens d"]:
    """Look tokens up in the embedding."""
    rows = lookup(model.embed[...], tokens, model.rules)
    if model.embed_scale is None:
        return rows
    scale = lookup(model.embed_scale[...][:, None], tokens, model.rules)
    return rows.astype(model.dtype) * scale


def unembed(model: Llama, hidden: Float[Array, "*batch d"]) -> Float[Array, "*batch vocab"]:
    """Final norm and output head; float32 logits, spread along the vocabulary if the head is."""
    head, scale = (
        (model.embed, model.embed_scale) if model.head is None else (model.head, model.head_scale)
    )
    normed = _rms_norm(hidden, model.norm, model.config.norm_eps)
    weight = head[...].astype(normed.dtype)
    logits = product(normed, weight, ("vocab", "embed"), model.rules, jnp.float32)
    if scale is None:
        return logits
    return logits * shard(scale[...].astype(jnp.float32), ("vocab",), model.rules)


def decode_stack(
    model: Llama, hidden: Float[Array, "*batch tokens d"], attend: Attend, state: Any = None
) -> tuple[Float[Array, "*batch tokens d"], Any]:
    """Run the residual stream through every block, with attention done by `attend`.

    Args:
        model: The decoder.
        hidden: Embedded tokens.
        attend: What attention does at each layer.
        state: Any pytree whose leaves have a leading layer axis; `attend` gets its layer's slice.

    Returns:
        The residual stream after the last block (before the final norm), and what `attend` kept,
        stacked along a leading layer axis.
    """

    def step(hidden: Array, layer: tuple[Block, Array, Any]) -> tuple[Array, Any]:
        return _block(model, hidden, attend, *layer)

    layers = (model.blocks, jnp.asarray(rotated_layers(model.config)), state)
    if model.remat != "none":
        step = _computed_again(step, model.remat)
    return jax.lax.scan(step, hidden, layers)


def keep_of_stack(
    model: Llama,
    hidden: Float[Array, "*batch tokens d"],
    attend: Attend,
    keep: Callable[[Array, Array, Array, Array, Any], Any],
    state: Any = None,
) -> Any:
    """What `attend` keeps at every layer, where nothing is to come out of the stack.

    So the last block ends there: for keys and values, it needs neither attention nor MLP.

    Args:
        model: The decoder.
        hidden: Embedded tokens.
        attend: What attention does at each layer but the last.
        keep: What it would keep there: called as it is, gives the second half of its result.
        state: As in `decode_stack`.

    Returns:
        What was kept, stacked along a leading layer axis.
    """
    last = jnp.arange(model.config.num_layers) == model.config.num_layers - 1

    def step(hidden: Array, layer: tuple[Array, Block, Array, Any]) -> tuple[Array, Any]:
        last, block, rotated, state = layer

        def stop(hidden: Array) -> tuple[Array, Any]:
            q, k, v = _projected(model, hidden, block)
            return hidden, keep(q, k, v, rotated, state)

        def go_on(hidden: Array) -> tuple[Array, Any]:
            return _block(model, hidden, attend, block, rotated, state)

        return jax.lax.cond(last, stop, go_on, hidden)

    layers = (last, model.blocks, jnp.asarray(rotated_layers(model.config)), state)
    # For the backward pass a cond keeps a copy of the weights that go into it; this, what it makes.
    return jax.lax.scan(_computed_again(step, model.remat), hidden, layers)[1]


def forward(
    model: Llama,
    tokens: Int[Array, "*batch tokens"],
    positions: Float[Array, "*batch tokens"] | None = None,
) -> Float[Array, "*batch tokens vocab"]:
    """Logits of ordinary causal attention over whole sequences: the plain reference.

    Args:
        model: The decoder.
        tokens: Token ids.
        positions: Position of each token; 0, 1, 2 ... by default.
    """
    if positions is None:
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[-1], dtype=jnp.float32), tokens.shape)

    angles = turns(rotary(model.config), positions)

    def attend(q: Array, k: Array, v: Array, rotated: Array, state: None) -> tuple[Array, None]:
        return _causal_attention(rotate(q, angles, rotated), rotate(k, angles, rotated), v), None

    hidden, _ = decode_stack(model, embed(model, tokens), attend)
    return unembed(model, hidden)


def _computed_again(step: Callable[..., Any], remat: Remat) -> Callable[..., Any]:
    """A step of a scan over blocks whose backward pass keeps no more than `remat` says."""
    policies = jax.checkpoint_policies
    kept = {
        "none": policies.everything_saveable,
        "products": policies.dots_with_no_batch_dims_saveable,
        "all": policies.nothing_saveable,
    }
    return jax.checkpoint(step, policy=kept[remat], prevent_cse=False)


def _block(
    model: Llama, hidden: Array, attend: Attend, block: Block, rotated: Array, state: Any
) -> tuple[Array, Any]:
    """One block: attention and MLP, each behind a norm and added to the residual stream."""
    config, linear = model.config, functools.partial(_linear, model.rules, block)
    mixed, kept = attend(*_projected(model, hidden, block), rotated, state)
    mixed = mixed.reshape(*hidden.shape[:-1], -1)
    hidden = hidden + linear("o", mixed)
    x = _rms_norm(hidden, block.mlp_norm, config.norm_eps)
    inner = _ACTIVATIONS[config.activation](linear("gate", x)) * linear("up", x)
    return hidden + linear("down", inner), kept


def _projected(model: Llama, hidden: Array, block: Block) -> tuple[Array, Array, Array]:
    """Un-rotated queries, keys and values of one block."""
    config, linear = model.config, functools.partial(_linear, model.rules, block)
    x = _rms_norm(hidden, block.attention_norm, config.norm_eps)
    q = _heads(linear("q", x), config.num_heads)
    k = _heads(linear("k", x), config.num_kv_heads)
    v = _heads(linear("v", x), config.num_kv_heads)
    if block.q_norm is not None and block.k_norm is not None:
        q, k = (
            _rms_norm(q, block.q_norm, config.norm_eps),
            _rms_norm(k, block.k_norm, config.norm_eps),
        )
    return q, k, v


def _linear(rules: Rules, block: Block, name: str, x: Array) -> Array:
    """A projection of one block, with its adapter and its bias if it has them."""
    weight, scale, bias = (getattr(block, f"{name}_{part}") for part in ("proj", "scale", "bias"))
    y = product(x, weight[...].astype(x.dtype), PROJECTIONS[name], rules)
    out = PROJECTIONS[name][0]
    if scale is not None:
        y = y * shard(scale[...], (None if out == "embed" else out,), rules)
    if block.lora is not None:
        y = y + block.lora.added(name, x, rules)
    return y if bias is None else y + bias[...]


def _heads(x: Array, heads: int) -> Array:
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads)


def _rms_norm(x: Array, weight: nnx.Param, eps: float) -> Array:
    """RMSNorm: the statistics in float32, the result in the dtype of `x`."""
    wide = x.astype(jnp.float32)
    normed = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps)
    return weight[...] * normed.astype(x.dtype)


def _causal_attention(q: Array, k: Array, v: Array) -> Array:
    """Attention of a sequence to its own past; groups of query heads share a key head."""
    *batch, tokens, heads, head_dim = q.shape
    grouped = q.reshape(*batch, tokens, k.shape[-2], heads // k.shape[-2], head_dim)
    logits = jnp.einsum("...tkgd,...skd->...kgts", grouped, k, preferred_element_type=jnp.float32)
    causal = jnp.tril(jnp.ones((tokens, tokens), bool))
    weights = jax.nn.softmax(jnp.where(causal, logits * head_dim**-0.5, -jnp.inf), axis=-1)
    return jnp.einsum("...kgts,...skd->...tkgd", weights.astype(v.dtype), v).reshape(q.shape)


_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_pytorch_tanh": lambda x: jax.nn.gelu(x, approximate=True),
}
