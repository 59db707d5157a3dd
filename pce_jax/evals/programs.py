"""The old name of `pce_jax.programs`."""

from pce_jax.programs import CompileTime, count

__all__ = ["CompileTime", "count"]
