"""What measuring the gradient noise costs on one device: a GPT in bf16, measured and plain steps in turn.

    python experiments/noise_gpu_overhead.py [--pairs 40] [--device cuda] [--json FILE]
    python experiments/noise_gpu_overhead.py --tiny --device cpu      # a smoke test, no figure

A GPT of 124 M parameters (12 layers, width 768, context 512, vocabulary 50,304) with bf16 autocast over fp32
parameters and AdamW, on random tokens: N = 1, two micro-batches of 8 sequences per optimizer step. Needs
torch and gasweep alone, and under three minutes on a current GPU. Every second optimizer step of one run is
measured; a plain step is compared with the mean of its two measured neighbours, the device synchronised
around each. Prints the median extra time of a measured step (that is k = 1), its 95 % interval from the order
statistics, and the k at which the upper limit costs half a percent.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from dataclasses import asdict, dataclass

import torch
from medians import median_interval
from torch import Tensor, nn
from torch.nn import functional

from gasweep.training.gradient_noise import GradientNoiseScale


@dataclass(frozen=True, kw_only=True)
class Shape:
    depth: int = 12
    width: int = 768
    heads: int = 12
    context: int = 512
    vocabulary: int = 50304
    micro_batch_size: int = 8
    accumulation_steps: int = 2


TINY = Shape(depth=2, width=64, heads=2, context=32, vocabulary=256, micro_batch_size=2)


@dataclass(frozen=True, kw_only=True)
class Row:
    device: str
    parameters: int
    pairs: int
    plain_ms: float
    extra: float
    low: float
    high: float
    every_for_one_percent: int
    num_measured: int
    noise_scale: str


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.attention_norm = nn.LayerNorm(shape.width)
        self.queries_keys_values = nn.Linear(shape.width, 3 * shape.width)
        self.attention_out = nn.Linear(shape.width, shape.width)
        self.mlp_norm = nn.LayerNorm(shape.width)
        self.mlp_in = nn.Linear(shape.width, 4 * shape.width)
        self.mlp_out = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.queries_keys_values(self.attention_norm(x)).chunk(3, dim=2)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in split)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp_out(functional.gelu(self.mlp_in(self.mlp_norm(x))))


class Gpt(nn.Module):
    """tokens [n, context] -> logits [n, context, vocabulary]; the head shares the tokens' weight."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.depth)))
        self.norm = nn.LayerNorm(shape.width)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.blocks(self.tokens(tokens) + self.positions(places))
        return functional.linear(self.norm(x), self.tokens.weight)


class Loop:
    """A training loop that measures every second optimizer step."""

    def __init__(self, shape: Shape, *, device: torch.device) -> None:
        torch.manual_seed(0)
        self.shape, self.device = shape, device
        self.model = Gpt(shape).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.noise = GradientNoiseScale(self.model, micro_batch_size=shape.micro_batch_size, every=2)

    def timed_step(self) -> float:
        """Seconds of one optimizer step, from an idle device to an idle device."""
        self._synchronise()
        began = time.perf_counter()
        for _ in range(self.shape.accumulation_steps):
            self._backward()
        self.noise.step()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._synchronise()
        return time.perf_counter() - began

    def _backward(self) -> None:
        shape = self.shape
        size = (shape.micro_batch_size, shape.context + 1)
        drawn = torch.randint(0, shape.vocabulary, size, device=self.device)
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            logits = self.model(drawn[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), drawn[:, 1:].flatten())
        (loss / shape.accumulation_steps).backward()

    def _synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def measure(shape: Shape, *, device: torch.device, pairs: int) -> Row:
    loop = Loop(shape, device=device)
    for _ in range(6):
        loop.timed_step()
    seconds = [loop.timed_step() for _ in range(2 * pairs + 1)]
    # Steps are measured, plain, measured, ...: each plain one stands between its two measured neighbours.
    plain = seconds[1::2]
    measured = [(before + after) / 2.0 for before, after in zip(seconds[0::2], seconds[2::2], strict=False)]
    extra = [one / two - 1.0 for one, two in zip(measured, plain, strict=True)]
    low, high = median_interval(extra)
    found = loop.noise.estimate()
    return Row(
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        parameters=sum(parameter.numel() for parameter in loop.model.parameters()),
        pairs=pairs,
        plain_ms=1e3 * statistics.median(plain),
        extra=statistics.median(extra),
        low=low,
        high=high,
        every_for_one_percent=max(math.ceil(high / 0.005), 1),
        num_measured=found.num_measured,
        noise_scale=str(found.noise_scale),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a model of 0.1 M parameters: does it run?")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    if arguments.pairs < 8:
        parser.error("--pairs must be at least 8, for an interval")
    row = measure(
        TINY if arguments.tiny else Shape(), device=torch.device(arguments.device), pairs=arguments.pairs
    )
    print(row)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(asdict(row), file, indent=1)


if __name__ == "__main__":
    main()
