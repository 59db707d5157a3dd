"""What HELMET's tasks share: the paper's sink text for them, and the output that is scored."""

from pce_jax.evals.instance import Instance

HELMET_SINK = "Given the following contexts, answer the final question accordingly:\n\n"


def with_last_line(instance: Instance, output: str) -> str:
    """The output behind the query's last line, which is what the published code scores."""
    return instance.query.rpartition("\n")[2] + output
