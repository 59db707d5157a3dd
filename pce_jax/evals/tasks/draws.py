"""Random draws that come out the same on every machine and in every year.

`numpy.random.RandomState` is the one numpy generator whose streams are frozen for good, and the one
with which the paper's code picks its instances.
"""

import hashlib
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from pce_jax.errors import SettingsError

Thing = TypeVar("Thing")


def stream(*keys: object) -> np.random.RandomState:
    """A generator for whatever the keys name, as in `stream(seed, instance_id)`.

    What an instance draws then depends on its own id, and not on how many came before it.
    """
    digest = hashlib.sha256("\0".join(map(str, keys)).encode()).digest()
    return np.random.RandomState(np.frombuffer(digest, "<u4"))


def keep(things: Sequence[Thing], limit: int | None, shuffle_seed: int | None) -> list[Thing]:
    """The first `limit` of a list, after shuffling it as published.

    The paper's code shuffles a task's whole list with `RandomState(42)` and keeps 100.

    Args:
        things: All of them.
        limit: How many to keep; all with `None`.
        shuffle_seed: Seed of the shuffle; the order stays as it is with `None`.

    Raises:
        SettingsError: The seed is none.
    """
    if shuffle_seed is not None and not 0 <= shuffle_seed < 2**32:
        raise SettingsError(f"shuffle_seed must be from 0 to {2**32 - 1}, it is {shuffle_seed}.")
    order = np.arange(len(things))
    if shuffle_seed is not None:
        np.random.RandomState(shuffle_seed).shuffle(order)
    return [things[index] for index in order[:limit]]
