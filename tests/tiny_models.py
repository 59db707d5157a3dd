"""Tiny configs with random weights, and how Hugging Face names those, for tests of weights."""

from typing import Any

import ml_dtypes
import numpy as np

from pce_jax.models import Llama, LlamaConfig
from pce_jax.models.families import hf_tensor_names
from pce_jax.models.llama import parameter_shapes

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def tiny_config(**fields: Any) -> LlamaConfig:
    """Two layers whose sizes all differ (`heads x head_dim` is not the width)."""
    sizes: dict[str, Any] = {
        "vocab_size": 40,
        "hidden_size": 32,
        "intermediate_size": 96,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "bos_token_id": 1,
        "eos_token_ids": (2,),
    }
    return LlamaConfig(**(sizes | fields))


def random_parameters(config: LlamaConfig, dtype: Any = np.float32) -> dict[str, np.ndarray]:
    """Stacked arrays by our names."""
    draw = np.random.default_rng(0)
    return {
        name: draw.normal(size=shape).astype(np.float32).astype(dtype)
        for name, shape in parameter_shapes(config).items()
    }


def hf_tensors(config: LlamaConfig, parameters: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same arrays by Hugging Face's names, a layer each."""
    tensors = {}
    for name, array in parameters.items():
        names = hf_tensor_names(name, config.num_layers)
        layers = array if name.startswith("blocks.") else array[None]
        tensors |= dict(zip(names, layers, strict=True))
    return tensors


def arrays_of(model: Llama) -> dict[str, np.ndarray]:
    """A model's stacked arrays by our names."""
    return {
        name: np.asarray(
            getattr(model.blocks if "." in name else model, name.removeprefix("blocks."))[...]
        )
        for name in parameter_shapes(model.config)
    }


def assert_bits_equal(model: Llama, parameters: dict[str, np.ndarray]) -> None:
    """The model has exactly these parameters, in dtype and in every bit."""
    arrays = arrays_of(model)
    assert arrays.keys() == parameters.keys()
    for name, array in arrays.items():
        assert array.dtype == parameters[name].dtype, name
        assert array.shape == parameters[name].shape, name
        assert array.tobytes() == parameters[name].tobytes(), name
