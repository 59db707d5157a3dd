"""The paper's four task families: language modelling, in-context learning, retrieval, recall."""

from pce_jax.evals.tasks.icl import IclTask
from pce_jax.evals.tasks.lm import LmTask
from pce_jax.evals.tasks.make import TASKS, make_task
from pce_jax.evals.tasks.rag import RagTask
from pce_jax.evals.tasks.recall import RecallTask

__all__ = ["TASKS", "IclTask", "LmTask", "RagTask", "RecallTask", "make_task"]
