"""A small GPT: pre-norm decoder blocks, learned positions, an untied head.

Shapes: n windows, t positions, w width, h heads, v vocabulary.
Source: Radford et al. 2019 (GPT-2): normal(0, 0.02) weights, residual projections divided by sqrt(2·depth).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

INIT_DEVIATION = 0.02


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); dropout on both residual branches."""

    def __init__(self, *, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_ntw: Tensor) -> Tensor:
        x_ntw = x_ntw + self.dropout(self._attend(self.attention_norm(x_ntw)))
        hidden = functional.gelu(self.mlp_in(self.mlp_norm(x_ntw)))
        out: Tensor = x_ntw + self.dropout(self.mlp_out(hidden))
        return out

    def _attend(self, x_ntw: Tensor) -> Tensor:
        n, t, w = x_ntw.shape
        parts = self.queries_keys_values(x_ntw).view(n, t, 3, self.heads, w // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed_nhtd = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.attention_out(mixed_nhtd.transpose(1, 2).reshape(n, t, w))
        return out


class Gpt(nn.Module):
    """tokens [n, t] int64 with t <= context -> logits [n, t, v]."""

    def __init__(
        self, *, vocabulary: int, depth: int, width: int, heads: int, context: int, dropout: float
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width=width, heads=heads, dropout=dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self._initialise(depth)

    def forward(self, tokens_nt: Tensor) -> Tensor:
        positions_t = torch.arange(tokens_nt.shape[1], device=tokens_nt.device)
        x_ntw = self.dropout(self.tokens(tokens_nt) + self.positions(positions_t))
        for block in self.blocks:
            x_ntw = block(x_ntw)
        logits_ntv: Tensor = self.head(self.norm(x_ntw))
        return logits_ntv

    def _initialise(self, depth: int) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith(("attention_out.weight", "mlp_out.weight")):
                nn.init.normal_(parameter, std=INIT_DEVIATION / math.sqrt(2 * depth))
            elif parameter.dim() > 1:
                nn.init.normal_(parameter, std=INIT_DEVIATION)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
