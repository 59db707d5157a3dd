"""Fine-tuning that lowers attention entropy: so that segments encoded apart read like one text.

The paper leaves this open (its limitations). The same weights read with full attention are the
teacher; what is trained sees segments. See `objective` for the loss, `pce_jax.adapters` for
what is trained beside the weights, and `finetune` for a whole run.
"""

from .objective import Example, Terms, Weights, objective
from .step import Report, Trained, TrainState, begin, decayed, train_step

__all__ = [
    "Example",
    "Report",
    "Terms",
    "TrainState",
    "Trained",
    "Weights",
    "begin",
    "decayed",
    "objective",
    "train_step",
]
