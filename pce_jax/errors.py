"""The errors whose message is meant for the user.

Each says what was wrong, where, and what to do. The command line prints such a message without a
traceback and exits with status 2; any other exception is a defect and keeps its traceback.
"""

from pce_jax.models.errors import ConfigError, ModelError, WeightsError


class PceError(ValueError):
    """An error whose message is for the user: what was wrong, where, and what to do.

    The command line prints it without a traceback and exits with status 2.
    """


class UnknownModelError(PceError):
    """No model goes by the name that was given."""


class ModelFolderError(PceError):
    """A folder, file or repository is there but does not hold a model that can be loaded."""


class DownloadError(PceError):
    """Something could not be fetched, or what was fetched is not what was asked for."""


class CacheError(PceError):
    """The cache folder cannot be created or written."""


class TokenizerError(PceError):
    """A model's tokenizer is missing or cannot be read."""


class LayoutError(PceError):
    """A context cannot be laid out as asked: sink, segments, lengths or positions disagree."""


class SettingsError(PceError):
    """A config file or the data that it names cannot be used."""


class EvalError(PceError):
    """An evaluation cannot be run or reported: its memory, its window or its results folder."""


class AdapterError(PceError):
    """Adapters cannot be read, written, or belong to another model."""


class FinetuneError(PceError):
    """Fine-tuning cannot begin, go on or be exported: its settings, its numbers or its folder."""


class MethodError(PceError):
    """A method has a setting without a meaning, or does not fit the context it is used on."""


USER_ERRORS: tuple[type[Exception], ...] = (PceError, ModelError)
"""What the command line catches and prints without a traceback."""

__all__ = [
    "USER_ERRORS",
    "AdapterError",
    "CacheError",
    "ConfigError",
    "DownloadError",
    "EvalError",
    "FinetuneError",
    "LayoutError",
    "MethodError",
    "ModelError",
    "ModelFolderError",
    "PceError",
    "SettingsError",
    "TokenizerError",
    "UnknownModelError",
    "WeightsError",
]
