"""Parallel context encoding for Llama-style models in JAX.

Cut a context into segments, encode each alone, let a query attend to all of them, and keep its
attention entropy low with a shared sink and selective attention (arXiv 2412.16545). Pure functions
of pytrees::

    import pce_jax as pce

    model, tokenizer = pce.load("smollm2-135m")
    method = pce.METHODS["sink+sel"]
    context = pce.pack(tokenizer, documents, sink=method.sink)
    cache = pce.encode(model, context, method)
    out = pce.generate(model, cache, pce.encode_text(tokenizer, question), method)
"""

from typing import NoReturn

from ._versions import check_installed

try:
    check_installed()  # before jax and flax are imported: a broken pair would crash without a word
except ImportError as error:
    _BROKEN = str(error)

    def __getattr__(name: str) -> NoReturn:
        """Say what is wrong, whatever is asked for; `pce-jax doctor` still runs."""
        if name.startswith("__"):  # Python's own questions
            raise AttributeError(name)
        raise ImportError(_BROKEN)

else:
    from . import analysis, programs
    from .adapter_files import load_adapters, save_adapters
    from .adapters import Adapters, from_text_sink, log_temperature, with_adapters
    from .attention import Entropy
    from .cache import KV, ContextCache, Tail, compress, empty_tail
    from .encode import encode
    from .errors import USER_ERRORS, PceError
    from .generate import GenerateOutput, generate
    from .hub import fetch_embedded, resolve
    from .hub.load import load
    from .hub.tokenizer import encode_text
    from .layout import (
        SegmentedContext,
        bucket,
        from_segments,
        group,
        join,
        pack,
        pad_tokens,
        padding_waste,
        split,
    )
    from .many import Scores, encode_many, score_many, stack
    from .method import METHODS, Method
    from .models import READING, TRAINING, MeshLayout, MeshSizes, Rules, make_mesh
    from .positions import Positions
    from .query import QueryOutput, ScoreOutput, query, score
    from .query_pass import Stats
    from .sampling import Sampling, sample
    from .selection import Select

__all__ = [
    "KV",
    "METHODS",
    "READING",
    "TRAINING",
    "USER_ERRORS",
    "Adapters",
    "ContextCache",
    "Entropy",
    "GenerateOutput",
    "MeshLayout",
    "MeshSizes",
    "Method",
    "PceError",
    "Positions",
    "QueryOutput",
    "Rules",
    "Sampling",
    "ScoreOutput",
    "Scores",
    "SegmentedContext",
    "Select",
    "Stats",
    "Tail",
    "analysis",
    "bucket",
    "compress",
    "empty_tail",
    "encode",
    "encode_many",
    "encode_text",
    "fetch_embedded",
    "from_segments",
    "from_text_sink",
    "generate",
    "group",
    "join",
    "load",
    "load_adapters",
    "log_temperature",
    "make_mesh",
    "pack",
    "pad_tokens",
    "padding_waste",
    "programs",
    "query",
    "resolve",
    "sample",
    "save_adapters",
    "score",
    "score_many",
    "split",
    "stack",
    "with_adapters",
]
