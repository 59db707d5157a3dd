"""Llama-family decoders in Flax NNX: configs, weights in and out, and the forward pass.

Imported as `pce_jax.models`. Knows nothing of parallel context encoding.
"""

from .config import LlamaConfig, RopeConfig
from .errors import ConfigError, ModelError, WeightsError
from .gguf_io import load_gguf
from .int8 import to_int8
from .llama import Llama, Remat, decode_stack, embed, forward, init, keep_of_stack, unembed
from .lora import Lora, init_lora, merged, with_lora, with_remat
from .mesh import MeshLayout, MeshSizes, make_mesh
from .safetensors_reader import load_folder
from .safetensors_writer import save_folder
from .shapes import SHAPES
from .sharding import READING, TRAINING, Rules

__all__ = [
    "READING",
    "SHAPES",
    "TRAINING",
    "ConfigError",
    "Llama",
    "LlamaConfig",
    "Lora",
    "MeshLayout",
    "MeshSizes",
    "ModelError",
    "Remat",
    "RopeConfig",
    "Rules",
    "WeightsError",
    "decode_stack",
    "embed",
    "forward",
    "init",
    "init_lora",
    "keep_of_stack",
    "load_folder",
    "load_gguf",
    "make_mesh",
    "merged",
    "save_folder",
    "to_int8",
    "unembed",
    "with_lora",
    "with_remat",
]
