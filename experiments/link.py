"""What `no_sync` saves on a real link: bytes at the interface, and seconds, against what the bytes predict.

Two network namespaces joined by a veth pair, one rank in each, the link shaped with `tc tbf`. For each rate
and G, one optimizer step with and without `no_sync`, interleaved in one run. Needs root and iproute2:

    python experiments/link.py --rates 200mbit 1gbit --accumulation 1 2 4 8 16 --repeats 7

wire: what the interface sent over what gloo should send, which is the metered bytes and the reduce-scatters'
once more (gloo reduces a scattered tensor by an all-reduce, twice the optimum that the meter reports).
time saved: median over the repeats of 1 - t(no_sync) / t(every micro-step), and its range over them;
predicted: the bytes gloo saves, at the link's rate, over the time of the twin that syncs on every micro-step.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from torch import nn

from gasweep.tasks import FashionMnist

NAMES = ("gasweep-a", "gasweep-b")
ADDRESSES = ("10.213.77.1", "10.213.77.2")
INTERFACE = "gsw0"


@dataclass(kw_only=True)
class LayeredMnist(FashionMnist):
    """Every layer is an FSDP unit of its own, so that the root holds no parameter."""

    def parallelize(self, model: nn.Module) -> list[nn.Module]:
        return [module for module in model.modules() if isinstance(module, nn.Linear)]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One measured configuration: a strategy, its options and G."""

    label: str
    strategy: str
    accumulation_steps: int
    options: dict[str, bool]


def variants(strategies: list[str], accumulation: list[int]) -> list[Variant]:
    found = []
    for strategy in strategies:
        for g in accumulation:
            for label, options in _options(strategy, g).items():
                found.append(Variant(label=label, strategy=strategy, accumulation_steps=g, options=options))
    return found


def _options(strategy: str, g: int) -> dict[str, dict[str, bool]]:
    every = {"sync_every_micro_step": True}
    if strategy == "ddp":
        return {"ddp": {}} | ({"ddp, every micro-step": every} if g > 1 else {})
    keep = {"reshard_after_forward": False}
    whole = keep | {"reshard_after_backward": False}
    found = {"fsdp": {}, "fsdp, no reshard after forward": keep, "fsdp, kept unsharded": whole}
    if g > 1:
        found |= {"fsdp, every micro-step": every, "fsdp, no reshard, every": keep | every}
    return found


# ---- one rank, inside its namespace


def rank_main(rank: int, settings: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    dist.init_process_group("gloo", init_method=f"tcp://{ADDRESSES[0]}:29871", rank=rank, world_size=2)
    found = variants(settings["strategies"], settings["accumulation"])
    steppers = [_stepper(variant, rank, settings) for variant in found]
    rows: list[list[dict[str, float]]] = [[] for _ in found]
    for repeat in range(settings["repeats"] + 1):
        for i, stepper in enumerate(steppers):
            measured = _measure(stepper)
            if repeat > 0:
                rows[i].append(measured)
    if rank == 0:
        print(json.dumps(rows))
    dist.barrier()
    dist.destroy_process_group()


def _stepper(variant: Variant, rank: int, settings: dict[str, Any]) -> Any:
    from gasweep.config import parse_sweep_config, plan_sweep
    from gasweep.training.advance import Stepper
    from gasweep.training.build import build_trainer
    from gasweep.training.process import ProcessContext
    from gasweep.training.progress import RunProgress

    task = {"_target_": "link.LayeredMnist", "hidden": settings["hidden"], "layers": 2}
    config = parse_sweep_config(
        {
            "task": task,
            "strategy": variant.strategy,
            "strategy_options": variant.options,
            "grid": {
                "micro_batch_size": settings["micro_batch_size"],
                "world_size": 2,
                "accumulation_steps": variant.accumulation_steps,
                "learning_rate": 0.01,
            },
            "target": {"value": 0.0},
            "budget": {"max_optimizer_steps": 10**9},
        }
    )
    (spec,) = plan_sweep(config).runs
    trainer = build_trainer(spec, process=ProcessContext(rank=rank, world_size=2))
    return Stepper(trainer, progress=RunProgress(), sink=lambda **_: None, flags=lambda: (False, False))


def _measure(stepper: Any) -> dict[str, float]:
    import torch.distributed as dist

    dist.barrier()
    before, started = _sent(), time.perf_counter()
    stepper.attempt()
    seconds = time.perf_counter() - started
    dist.barrier()
    traffic = stepper.traffic
    return {
        "seconds": seconds,
        "interface_bytes": _sent() - before,
        "metered_bytes": traffic.model.total_bytes,
        "gloo_bytes": traffic.model.total_bytes + traffic.model.bytes_of("reduce_scatter"),
        "control_bytes": traffic.control.total_bytes,
        "units": traffic.model.units,
    }


def _sent() -> int:
    return int(Path(f"/sys/class/net/{INTERFACE}/statistics/tx_bytes").read_text())


# ---- the parent: namespaces, the link's rate, the table


def sh(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


def build_link() -> None:
    for name in NAMES:
        sh("ip", "netns", "add", name)
    ends = ("netns", NAMES[0], "type", "veth", "peer", INTERFACE, "netns", NAMES[1])
    sh("ip", "link", "add", INTERFACE, *ends)
    for name, address in zip(NAMES, ADDRESSES, strict=True):
        sh("ip", "-n", name, "addr", "add", f"{address}/24", "dev", INTERFACE)
        sh("ip", "-n", name, "link", "set", INTERFACE, "up")
        sh("ip", "-n", name, "link", "set", "lo", "up")


def shape(rate: str) -> None:
    for name in NAMES:
        if rate != "none":
            # A burst of a few milliseconds, so that the rate holds within one step.
            sh(
                *("tc", "-n", name, "qdisc", "replace", "dev", INTERFACE, "root", "tbf"),
                *("rate", rate, "burst", "256kb", "latency", "400ms"),
            )


def remove_link() -> None:
    for name in NAMES:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def measure(rate: str, settings: dict[str, Any]) -> list[list[dict[str, float]]]:
    """Rows of rank 0 per variant, on a link of `rate`."""
    remove_link()
    build_link()
    try:
        shape(rate)
        ranks = [
            subprocess.Popen(
                [
                    *("ip", "netns", "exec", name, sys.executable, __file__),
                    *("--rank", str(rank), "--settings", json.dumps(settings)),
                ],
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank, name in enumerate(NAMES)
        ]
        output = [process.communicate(timeout=900)[0] for process in ranks]
        if any(process.returncode for process in ranks):
            raise SystemExit(f"a rank failed on the {rate} link")
        return json.loads(output[0])
    finally:
        remove_link()


def report(rate: str, found: list[Variant], rows: list[list[dict[str, float]]]) -> list[dict[str, Any]]:
    lines = []
    for variant, measured in zip(found, rows, strict=True):
        lines.append(
            {
                "rate": rate,
                "variant": variant.label,
                "G": variant.accumulation_steps,
                "seconds": [row["seconds"] for row in measured],
                "metered_bytes": measured[0]["metered_bytes"],
                "gloo_bytes": measured[0]["gloo_bytes"],
                "interface_bytes": median(row["interface_bytes"] for row in measured),
                "units": measured[0]["units"],
            }
        )
    for line in lines:
        _compare(line, lines)
    return lines


def _compare(line: dict[str, Any], lines: list[dict[str, Any]]) -> None:
    """Savings of a variant against its twin that syncs on every micro-step."""
    twin = {"ddp": "ddp, every micro-step", "fsdp": "fsdp, every micro-step"}.get(
        line["variant"], "fsdp, no reshard, every" if line["variant"].startswith("fsdp") else ""
    )
    for other in lines:
        if other["variant"] == twin and other["G"] == line["G"] and "every" not in line["variant"]:
            line["bytes_saved"] = 1 - line["metered_bytes"] / other["metered_bytes"]
            line["interface_bytes_saved"] = 1 - line["interface_bytes"] / other["interface_bytes"]
            pairs = zip(line["seconds"], other["seconds"], strict=True)
            line["seconds_saved"] = sorted(1 - own / every for own, every in pairs)
            bits = (other["gloo_bytes"] - line["gloo_bytes"]) * 8
            if line["rate"] != "none":
                predicted = bits / _bits_per_s(line["rate"])
                line["predicted_seconds_saved"] = predicted / median(other["seconds"])


def _bits_per_s(rate: str) -> float:
    units = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
    return float(rate[:-4]) * units[rate[-4:]]


def print_table(lines: list[dict[str, Any]]) -> None:
    head = f"{'link':>8} {'G':>3} {'variant':30} {'ms/step':>8} {'metered':>10} {'interface':>10} {'wire':>6}"
    print(f"{head} {'units':>5} {'bytes saved':>11} {'at iface':>8} {'time saved':>23} {'predicted':>9}")
    for line in lines:
        saved = [
            f"{line[key]:.1%}" if key in line else ""
            for key in ("bytes_saved", "interface_bytes_saved", "predicted_seconds_saved")
        ]
        print(
            f"{line['rate']:>8} {line['G']:>3} {line['variant']:30} {median(line['seconds']) * 1e3:>8.1f} "
            f"{line['metered_bytes']:>10} {line['interface_bytes']:>10.0f} "
            f"{line['interface_bytes'] / line['gloo_bytes']:>6.3f} {line['units']:>5} "
            f"{saved[0]:>11} {saved[1]:>8} {_range(line.get('seconds_saved')):>23} {saved[2]:>9}"
        )


def _range(ordered: list[float] | None) -> str:
    return f"{median(ordered):.1%} [{ordered[0]:.1%}, {ordered[-1]:.1%}]" if ordered else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rates", nargs="+", default=["200mbit", "1gbit"])
    parser.add_argument("--accumulation", nargs="+", type=int, default=[1, 2, 4, 8, 16])
    parser.add_argument("--strategies", nargs="+", default=["ddp"])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--micro-batch-size", type=int, default=16)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--settings", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        rank_main(options.rank, options.settings)
        return
    names = ("strategies", "accumulation", "repeats", "hidden", "micro_batch_size")
    settings = {name: getattr(options, name) for name in names}
    found = variants(options.strategies, options.accumulation)
    lines = [line for rate in options.rates for line in report(rate, found, measure(rate, settings))]
    print_table(lines)
    if options.json is not None:
        options.json.write_text(json.dumps(lines, indent=1) + "\n")


if __name__ == "__main__":
    main()
