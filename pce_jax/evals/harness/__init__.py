"""Our models in EleutherAI's evaluation harness, as its model class `pce_jax`.

Importing this package registers the class; it needs the extra `eval`. The command `pce-lm-eval` is
the harness's own `lm_eval` with the class registered, since the harness has no way to find model
classes of other packages.
"""

try:
    import lm_eval  # noqa: F401
except ImportError as missing:
    raise ImportError(
        "the evaluation harness is not installed: pip install 'pce-jax[eval]'"
    ) from missing

from pce_jax.evals.harness.model import PceLM

__all__ = ["PceLM"]
