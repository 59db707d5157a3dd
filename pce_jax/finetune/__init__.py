"""Fine-tuning that lowers attention entropy: so that segments encoded apart read like one text.

The paper leaves this open (its limitations). The same weights read with full attention are the
teacher; what is trained sees segments. See `objective` for the loss and `adapters` for what is
trained.
"""

from .adapters import Adapters, encode_adapted, from_text_sink, log_temperature
from .objective import Example, Terms, Weights, objective
from .step import Report, Trained, TrainState, begin, decayed, train_step

__all__ = [
    "Adapters",
    "Example",
    "Report",
    "Terms",
    "TrainState",
    "Trained",
    "Weights",
    "begin",
    "decayed",
    "encode_adapted",
    "from_text_sink",
    "log_temperature",
    "objective",
    "train_step",
]
