"""Readers that turn anyone's file into `StudyRun`s. Stdlib only; may import analysis and errors."""

from gasweep.analysis.sources.options import SourceOptions
from gasweep.analysis.sources.read import Source, read_source

__all__ = ["Source", "SourceOptions", "read_source"]
