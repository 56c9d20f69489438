"""Ranks killed at random and resumed in other layouts (`experiments/crash_resume.py`), in short and whole."""

import pytest

from experiments.crash_resume import disturbed_and_not


def assert_same_bits(*, kills):
    bits, undisturbed, lines = disturbed_and_not(kills=kills, seed=kills)
    assert len(lines) == kills, lines
    assert bits.parameters == undisturbed.parameters
    assert bits.evaluations == undisturbed.evaluations


@pytest.mark.multiprocess
@pytest.mark.fault
def test_two_kills_change_no_bit():
    assert_same_bits(kills=2)


@pytest.mark.multiprocess
@pytest.mark.fault
@pytest.mark.long
@pytest.mark.timeout(7200)
def test_twenty_kills_change_no_bit():
    assert_same_bits(kills=20)
