"""The decoder: embedding, blocks of attention and gated MLP under `lax.scan`, final norm and head.

It knows nothing of parallel encoding. A block hands its *un-rotated* queries, keys and values to an
`attend` function and takes back the mixed values, plus whatever that function wants to keep (keys
and values for a cache, attention entropy, segment scores). Everything a method does lives in its
`attend`; see `decode_stack`.

Weights keep Hugging Face's orientation `[out, in]`; those of the blocks are stacked along a leading
layer axis.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from .config import LlamaConfig
from .rope import rotary, rotate, rotated_layers, turns

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
    ):
        """Wrap arrays by the names of `parameter_shapes(config)`.

        Args:
            config: What the arrays mean.
            parameters: Arrays (or `jax.ShapeDtypeStruct`) by dotted name; `blocks.*` are stacked.
            lora: Adapters of the projections, stacked too.
            remat: What to compute again in a backward pass.
            learned: What a method has learned to go with these weights, any pytree; it is carried
                along, and nothing here looks at it.
        """
        self.config = config
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


def parameter_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Dotted name and shape of every parameter of `config`; what loaders and `init` go by."""
    layers, d, mlp = config.num_layers, config.hidden_size, config.intermediate_size
    q_out, kv_out = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    block: dict[str, tuple[int, ...]] = {
        "attention_norm": (d,),
        "q_proj": (q_out, d),
        "k_proj": (kv_out, d),
        "v_proj": (kv_out, d),
        "o_proj": (d, q_out),
        "mlp_norm": (d,),
        "gate_proj": (mlp, d),
        "up_proj": (mlp, d),
        "down_proj": (d, mlp),
    }
    if config.qkv_bias:
        block |= {"q_bias": (q_out,), "k_bias": (kv_out,), "v_bias": (kv_out,)}
    if config.out_bias:
        block |= {"o_bias": (d,)}
    if config.qk_norm:
        block |= {"q_norm": (config.head_dim,), "k_norm": (config.head_dim,)}
    if config.mlp_bias:
        block |= {"gate_bias": (mlp,), "up_bias": (mlp,), "down_bias": (d,)}
    shapes: dict[str, tuple[int, ...]] = {"embed": (config.vocab_size, d)}
    shapes |= {f"blocks.{name}": (layers, *shape) for name, shape in block.items()}
    shapes |= {"norm": (d,)}
    return shapes if config.tie_embeddings else shapes | {"head": (config.vocab_size, d)}


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


def embed(model: Llama, tokens: Int[Array, "*batch tokens"]) -> Float[Array, "*batch tokens d"]:
    """Look tokens up in the embedding."""
    rows = model.embed[...][tokens]
    if model.embed_scale is None:
        return rows
    return rows.astype(model.dtype) * model.embed_scale[...][tokens][..., None]


def unembed(model: Llama, hidden: Float[Array, "*batch d"]) -> Float[Array, "*batch vocab"]:
    """Final norm and output head; float32 logits."""
    head, scale = (
        (model.embed, model.embed_scale) if model.head is None else (model.head, model.head_scale)
    )
    normed = _rms_norm(hidden, model.norm, model.config.norm_eps)
    weight = head[...].astype(normed.dtype)
    logits = jnp.einsum("...d,vd->...v", normed, weight, preferred_element_type=jnp.float32)
    return logits if scale is None else logits * scale[...].astype(jnp.float32)


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
        return _block(model.config, hidden, attend, *layer)

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
            q, k, v = _projected(model.config, hidden, block)
            return hidden, keep(q, k, v, rotated, state)

        def go_on(hidden: Array) -> tuple[Array, Any]:
            return _block(model.config, hidden, attend, block, rotated, state)

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
    config: LlamaConfig, hidden: Array, attend: Attend, block: Block, rotated: Array, state: Any
) -> tuple[Array, Any]:
    """One block: attention and MLP, each behind a norm and added to the residual stream."""
    mixed, kept = attend(*_projected(config, hidden, block), rotated, state)
    mixed = mixed.reshape(*hidden.shape[:-1], -1)
    hidden = hidden + _linear(mixed, block, "o")
    x = _rms_norm(hidden, block.mlp_norm, config.norm_eps)
    gate = _linear(x, block, "gate")
    up = _linear(x, block, "up")
    inner = _ACTIVATIONS[config.activation](gate) * up
    return hidden + _linear(inner, block, "down"), kept


def _projected(config: LlamaConfig, hidden: Array, block: Block) -> tuple[Array, Array, Array]:
    """Un-rotated queries, keys and values of one block."""
    x = _rms_norm(hidden, block.attention_norm, config.norm_eps)
    q = _heads(_linear(x, block, "q"), config.num_heads)
    k = _heads(_linear(x, block, "k"), config.num_kv_heads)
    v = _heads(_linear(x, block, "v"), config.num_kv_heads)
    if block.q_norm is not None and block.k_norm is not None:
        q, k = (
            _rms_norm(q, block.q_norm, config.norm_eps),
            _rms_norm(k, block.k_norm, config.norm_eps),
        )
    return q, k, v


def _linear(x: Array, block: Block, name: str) -> Array:
    """A projection of one block, with its adapter and its bias if it has them."""
    weight, scale, bias = (getattr(block, f"{name}_{part}") for part in ("proj", "scale", "bias"))
    y = jnp.einsum("...i,oi->...o", x, weight[...].astype(x.dtype))
    if scale is not None:
        y = y * scale[...]
    if block.lora is not None:
        y = y + block.lora.added(name, x)
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
