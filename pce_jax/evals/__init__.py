"""Evaluation: the paper's task families, run over degrees and methods, and reported."""
