"""Tests of gasweep.results."""
