"""Reports: Markdown, CSV and pictures from rows of results."""

from .folder import report_folder
from .report import render
from .stats import Bootstrap

__all__ = ["Bootstrap", "render", "report_folder"]
