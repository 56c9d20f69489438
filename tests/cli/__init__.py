"""Tests of gasweep.cli."""
