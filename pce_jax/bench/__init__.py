"""What `pce-jax bench` measures: speed and memory, against full attention and Hugging Face."""
