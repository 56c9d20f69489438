"""Tests of gasweep.tracking."""
