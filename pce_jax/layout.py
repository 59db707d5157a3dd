"""From token lists to a segmented context: splitting, packing, padding to buckets.

Everything here runs on the host and yields numpy arrays, so that shapes are settled before anything
is compiled. Both axes of a context are padded to a bucket, and padding is described by lengths,
never by a token id.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from .errors import LayoutError
from .hub.tokenizer import encode_text


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SegmentedContext:
    """A context cut into segments that will not see each other, behind one shared sink.

    Attributes:
        sink: Token ids of the shared prefix; may be empty.
        segments: Token ids of each segment, padded at the end.
        lengths: Tokens in each segment; 0 marks an empty (padding) segment.
    """

    sink: Int[Array | np.ndarray, " sink"]
    segments: Int[Array | np.ndarray, "segments tokens"]
    lengths: Int[Array | np.ndarray, " segments"]


_SMALLEST = 16


def bucket(size: int, smallest: int = _SMALLEST) -> int:
    """The padded size for `size`: the next of 16, 24, 32, 48, 64, 96 ...

    A compiled program belongs to padded sizes, so this one function decides how many programs there
    are: two for each doubling of a size. Above the smallest bucket at most a third is padding
    (`padding_waste` says how much it is). What is padded to it:

    - segments of a context: from 1 on, by `from_segments`, `pack` and `split`;
    - tokens of a segment: from 16 on, by the same;
    - tokens of a query: by `pad_tokens` and `generate`;
    - slots of `generate`'s tail: the padded query and the tokens to come.

    Evaluation knows all its sizes before it begins: those that share a bucket share the smallest
    shape that holds them all (`aligned`).

    Args:
        size: What has to fit.
        smallest: The first bucket; a power of two.

    Example:
        >>> pce.bucket(3), pce.bucket(17), pce.bucket(25)
        (16, 24, 32)
    """
    power = max(smallest, 1 << max(size - 1, 0).bit_length())
    return power * 3 // 4 if power > smallest and size <= power * 3 // 4 else power


def aligned(size: int) -> int:
    """The padded size where the largest of a bucket is known: the next multiple of 16."""
    return -(-size // _SMALLEST) * _SMALLEST


def padding_waste(context: SegmentedContext) -> float:
    """The share of a context's token slots that hold no token.

    Args:
        context: From `pack`, `split` or `from_segments`, or several from `stack`.

    Example:
        >>> pce.padding_waste(pce.from_segments([[1] * 12, [2] * 12, [3] * 12]))
        0.25
    """
    return 1 - int(np.sum(np.asarray(context.lengths))) / np.size(context.segments)


def pad_tokens(tokens: Sequence[int] | np.ndarray) -> tuple[Int[np.ndarray, " bucket"], int]:
    """Pad a token list to its bucket, so that lists of similar length share one compiled program.

    Returns:
        The padded int32 array and the number of real tokens in it.

    Raises:
        LayoutError: There are no tokens.

    Example:
        >>> tokens, length = pce.pad_tokens([5, 6, 7])
        >>> out = pce.query(model, cache, tokens, length=length)
        >>> tokens.shape, length
        ((16,), 3)
    """
    if not len(tokens):
        raise LayoutError("no tokens: the text is empty. Give at least one token.")
    padded = np.zeros(bucket(len(tokens)), np.int32)
    padded[: len(tokens)] = tokens
    return padded, len(tokens)


def split(tokens: Sequence[int], degree: int, sink: Sequence[int] = ()) -> SegmentedContext:
    """Cut a token stream into `degree` contiguous segments of ceil(n / degree) tokens.

    This is how the paper's LM task cuts. The last segment is shorter when the division leaves a
    rest; where rounding up uses the tokens earlier, fewer segments than `degree` are filled.

    Args:
        tokens: Token ids of the context.
        degree: Number of segments, P.
        sink: Token ids of the shared prefix.

    Raises:
        LayoutError: No tokens, or `degree` is not between 1 and their number.

    Example:
        >>> tokens = pce.encode_text(tokenizer, "One long text that goes on and on.")
        >>> context = pce.split(tokens, degree=4)
        >>> context.lengths
        array([3, 3, 3], dtype=int32)
    """
    return from_segments(cut(tokens, degree), sink)


def cut(tokens: Sequence[int], degree: int) -> list[list[int]]:
    """The segments of `split` as lists, not padded.

    Raises:
        LayoutError: As `split`.
    """
    tokens = list(tokens)
    _check_degree(degree)
    if not tokens:
        raise LayoutError(
            "the context is empty: there is nothing to split. Give at least one token."
        )
    if degree > len(tokens):
        raise LayoutError(
            f"degree {degree} is above the context's {len(tokens)} tokens: every segment needs at "
            f"least one. Use a degree of at most {len(tokens)}, or a longer context."
        )
    size = -(-len(tokens) // degree)
    return [tokens[i : i + size] for i in range(0, len(tokens), size)]


def group(items: Sequence[Sequence[int]], degree: int) -> list[list[int]]:
    """Deal consecutive whole items to `degree` segments.

    Their item counts differ by at most one, larger ones first (the paper's documents and demos).

    With fewer items than `degree` there are as many segments as items.

    Raises:
        LayoutError: No items, or `degree` is below 1.

    Example:
        >>> pce.group([[1], [2, 2], [3]], degree=2)
        [[1, 2, 2], [3]]
    """
    _check_degree(degree)
    if not len(items):
        raise LayoutError("there are no documents: give at least one.")
    parts = np.array_split(np.arange(len(items)), min(degree, len(items)))
    return [[token for item in part for token in items[item]] for part in parts]


def pack(
    tokenizer: Any, documents: Sequence[str], sink: str = "", degree: int | None = None
) -> SegmentedContext:
    r"""Turn documents into a context of one segment each, or of `degree` groups of documents.

    Texts are taken as they are, each tokenised on its own and without special tokens, so that a
    document has the same tokens whatever stands around it. Put separators (`"\n\n"`) into the
    texts if you want them.

    Args:
        tokenizer: A transformers tokenizer.
        documents: The texts, in order.
        sink: Text of the shared prefix, `METHODS["sink"].sink` for the default one.
        degree: Number of segments; one a document by default.

    Raises:
        LayoutError: No documents, one text instead of a list of them, an empty document (named by
            its number), or `degree` below 1.

    Example:
        >>> documents = ["Ada wrote code.\n\n", "Bob baked bread.\n\n", "Cleo sang.\n\n"]
        >>> context = pce.pack(tokenizer, documents, sink="\n\n")
        >>> context.segments.shape, context.lengths  # padded to (segments, tokens)
        ((3, 16), array([6, 5, 5], dtype=int32))
    """
    if isinstance(documents, str):
        raise LayoutError("documents is one text: give a list of texts, or cut it with split.")
    items = [encode_text(tokenizer, text) for text in documents]
    empty = [str(number) for number, item in enumerate(items, 1) if not item]
    if empty:
        raise LayoutError(f"document {', '.join(empty)} of {len(items)} is empty: leave it out.")
    prefix = encode_text(tokenizer, sink) if sink else ()
    return from_segments(group(items, max(len(items), 1) if degree is None else degree), prefix)


def from_segments(segments: Sequence[Sequence[int]], sink: Sequence[int] = ()) -> SegmentedContext:
    """Pad ready-made segments of token ids into a context.

    Raises:
        LayoutError: There are no segments.

    Example:
        >>> pce.from_segments([[1, 2, 3], [4]], sink=[9]).lengths
        array([3, 1], dtype=int32)
    """
    if not len(segments):
        raise LayoutError("there are no segments: give at least one.")
    lengths = [len(segment) for segment in segments]
    padded = np.zeros((bucket(len(segments), smallest=1), bucket(max(lengths))), np.int32)
    for row, segment in zip(padded, segments, strict=False):
        row[: len(segment)] = segment
    lengths += [0] * (len(padded) - len(lengths))
    return SegmentedContext(np.asarray(sink, np.int32), padded, np.asarray(lengths, np.int32))


def join(context: SegmentedContext) -> SegmentedContext:
    """The same tokens as one segment, of the same padded size: what full attention reads.

    Works on traced arrays.

    Example:
        >>> pce.join(pce.from_segments([[1, 2, 3], [4]])).lengths
        Array([4], dtype=int32)
    """
    tokens = context.segments.shape[1]
    real = (jnp.arange(tokens) < jnp.asarray(context.lengths)[:, None]).reshape(-1)
    order = jnp.argsort(~real, stable=True)  # real tokens first, in their order
    flat = jnp.asarray(context.segments).reshape(-1)[order]
    return SegmentedContext(context.sink, flat[None], jnp.sum(jnp.asarray(context.lengths))[None])


def dealt(context: SegmentedContext, devices: int) -> SegmentedContext:
    """A context whose segments divide over devices: empty ones fill it up.

    Args:
        context: One, or several from `stack`. A single segment stays alone: all devices read it.
        devices: That segments are spread over.

    Raises:
        LayoutError: There are fewer segments than devices.
    """
    segments = context.segments.shape[-2]
    missing = -segments % devices
    if segments == 1 or not missing:
        return context
    if segments < devices:
        raise LayoutError(
            f"{segments} segments are spread over {devices} devices, of which some would do "
            f"nothing. Use a degree of at least {devices}, or a mesh whose segment axes make at "
            f"most {segments}."
        )
    numpy = jnp if isinstance(context.segments, jax.Array) else np
    axes = context.segments.ndim
    more = [(0, missing if axis == axes - 2 else 0) for axis in range(axes)]
    return SegmentedContext(
        context.sink, numpy.pad(context.segments, more), numpy.pad(context.lengths, more[:-1])
    )


def check_tokens(tokens: Any, vocab_size: int) -> None:
    """Refuse token ids that a model does not have; looked up, they would give some other token's.

    Only lists and numpy arrays are looked at: what is on a device stays there.

    Raises:
        LayoutError: An id lies outside the vocabulary.
    """
    if isinstance(tokens, jax.Array) or not np.size(tokens):
        return
    ids = np.asarray(tokens)
    for wrong in (ids.min(), ids.max()):
        if not 0 <= wrong < vocab_size:
            raise LayoutError(
                f"token id {wrong} is outside the model's vocabulary of {vocab_size}: do the "
                "tokenizer and the model belong together?"
            )


def _check_degree(degree: int) -> None:
    if degree < 1:
        raise LayoutError(f"degree must be at least 1 (1 is full attention), got {degree}")
