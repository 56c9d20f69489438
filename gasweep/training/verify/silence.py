"""Switching dropout off underneath any model, however it calls it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
_ATTENTION_WITH_DROPOUT = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_attention_math",
    "_scaled_dot_product_flash_attention_for_cpu",
)


class WithoutDropout(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """In the block dropout of any kind keeps everything: modules, functions, attention's own.

    A mask is a Bernoulli draw divided by its mean; filled with its mean instead, it is 1 everywhere. Other
    random draws (augmentation, sampling) are left alone.
    """

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if function is _aten.bernoulli_.float:
            probability = args[1] if len(args) > 1 else named.get("p", 0.5)
            return args[0].fill_(probability)
        if function is _aten.native_dropout.default:
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        if function._schema.name.split("::")[1] in _ATTENTION_WITH_DROPOUT:
            args, named = _without_probability(function, args, named)
        return function(*args, **named)


def without_dropout() -> AbstractContextManager[object]:
    mode: AbstractContextManager[object] = WithoutDropout()  # type: ignore[no-untyped-call]
    return mode


def _without_probability(
    function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    names = [argument.name for argument in function._schema.arguments]  # type: ignore[attr-defined]
    position = names.index("dropout_p")
    if position < len(args):
        return (*args[:position], 0.0, *args[position + 1 :]), named
    return args, {**named, "dropout_p": 0.0}
