"""A few coordinates at which a step's final gradient is compared with what its groups add up to."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from gasweep.training.gradient_noise_norms import head
from gasweep.training.gradient_noise_recorded import Array, Sample

_ELEMENTS = 8
_SMALLEST = 4
_IN_TURN = 4
_TURNS = 16


class HeadSample:
    """The first elements of some parameters, of each group's gradient and of the final one.

    The first step takes all parameters, since most mistakes are in a loop from its start. A copy per
    parameter and group costs about as much as a small one's norm, so later steps take the smallest parameters
    and a further part of all in turn: every one again within 16 measured steps, and all while they are few.

    head_sizes: how many of each parameter's first elements the rank that shows them owns.
    """

    def __init__(self, parameters: list[Tensor], *, head_sizes: list[int]) -> None:
        self._sizes = {i: min(size, _ELEMENTS) for i, size in enumerate(head_sizes) if size > 0}
        self._all = list(self._sizes)
        self._smallest = sorted(self._all, key=lambda index: parameters[index].numel())[:_SMALLEST]
        self._at = 0
        self._chosen = frozenset(self._all)
        self.begin_step()

    def begin_step(self) -> None:
        self._heads: list[tuple[int, Tensor]] = []

    def next_parameters(self) -> None:
        """Sample others in the steps to come; all ranks do so alike."""
        count = min(max(_IN_TURN, math.ceil(len(self._all) / _TURNS)), len(self._all))
        turn = [self._all[(self._at + i) % len(self._all)] for i in range(count)]
        self._at += count
        self._chosen = frozenset([*self._smallest, *turn])

    def add(self, index: int, gradient: Tensor) -> None:
        """One group's gradient; copied now, since a sync may overwrite it in place before the group ends."""
        if index in self._chosen:
            self._heads.append((index, head(gradient, self._sizes[index])))

    def tensors(self, finals: dict[int, Tensor]) -> list[Tensor]:
        """What `read` needs from the device."""
        own = [head(finals[i], self._sizes[i]) for i in sorted(self._chosen & finals.keys())]
        return [*own, *(values for _, values in self._heads)]

    def read(self, flat: Array, finals: dict[int, Tensor]) -> Sample:
        """From `tensors`, joined; 0 where no gradient was."""
        parameters = sorted(self._chosen)
        sizes = [self._sizes[index] for index in parameters]
        places = dict(zip(parameters, np.cumsum([0, *sizes])[:-1].tolist(), strict=True))
        final, total, magnitude = np.zeros((3, sum(sizes)))
        own = [index for index in parameters if index in finals]
        at = 0
        for number, index in enumerate([*own, *(index for index, _ in self._heads)]):
            size, place = self._sizes[index], places[index]
            values = flat[at : at + size]
            if number < len(own):
                final[place : place + size] = values
            else:
                total[place : place + size] += values
                magnitude[place : place + size] += np.abs(values)
            at += size
        return Sample(parameters=parameters, sizes=sizes, total=total, magnitude=magnitude, final=final)

    def num_read(self, finals: dict[int, Tensor]) -> int:
        """How many elements `tensors` holds."""
        own = sum(self._sizes[index] for index in self._chosen & finals.keys())
        return own + sum(self._sizes[index] for index, _ in self._heads)
