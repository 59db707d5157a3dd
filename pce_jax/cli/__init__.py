"""The command line: `pce-jax demo | generate | eval | ...`, also as `python -m pce_jax.cli`."""

from .app import main

__all__ = ["main"]
