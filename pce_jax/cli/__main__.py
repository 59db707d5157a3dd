"""`python -m pce_jax.cli` does what the command `pce-jax` does."""

import sys

from .app import main

if __name__ == "__main__":
    sys.exit(main())
