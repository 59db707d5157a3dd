"""`pce-jax demo`: perplexity and attention entropy against the degree of parallelism."""
