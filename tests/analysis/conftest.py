from smollm2 import smollm2_path

__all__ = ["smollm2_path"]
