"""`pce-lm-eval`: the harness's own command line, which then also knows `--model pce_jax`."""

import sys


def main() -> int:
    """Run the harness's `lm_eval` with our model class.

    Returns:
        The exit status: 2 for arguments or data that cannot be used, as `pce-jax` has it.
    """
    try:
        import pce_jax.evals.harness  # noqa: F401  # registers the class
    except ImportError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    from lm_eval.__main__ import cli_evaluate

    from pce_jax.errors import USER_ERRORS

    try:
        cli_evaluate()
    except USER_ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
