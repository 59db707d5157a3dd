"""The errors that the model layer raises about what it was given to read."""


class ModelError(ValueError):
    """An error whose message is for the user: what was wrong, where, and what to do."""


class ConfigError(ModelError):
    """A model configuration is unknown, contradictory or not supported."""


class WeightsError(ModelError):
    """Weights are missing, left over, or of the wrong shape or type."""
