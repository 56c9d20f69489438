"""Kill a rank at a random step and resume, again and again: are the bits those of an undisturbed run?

    python -m experiments.crash_resume [--kills 20] [--seed 0] [--output FILE]

Trains `text_lm` under `determinism: bitwise` with a checkpoint after every optimizer step. Each attempt
continues from the last one in a random layout and strategy (single process, DDP or FSDP2 on two ranks), and a
random rank is killed (SIGKILL) at a random moment of a random later step, which may be the writing of a
checkpoint. Compared with a run that nothing disturbed: SHA-256 of all parameters, and of all evaluations.
Exit code 1 when they differ.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from experiments.bitwise_matrix import Bits, spec_of, train
from gasweep.config.run_spec import RunSpec
from gasweep.config.schema import CheckpointConfig
from gasweep.errors import RunError
from gasweep.training.local_ranks import LocalRanks

LAYOUTS = [
    ("single", 16, 1),
    ("single", 64, 1),
    ("ddp", 8, 2),
    ("ddp", 16, 2),
    ("fsdp", 4, 2),
    ("fsdp", 32, 2),
]
STEPS_PER_KILL = 4


def latest(folder: Path) -> int:
    """Optimizer steps in the newest finished checkpoint."""
    return max((int(path.name) for path in folder.glob("checkpoints/[0-9]*")), default=0)


def attempt(
    ranks: LocalRanks, spec: RunSpec, folder: Path, *, kill_at: int | None, delay_s: float, victim: int
) -> Any:
    """The bits when the run ended, None when it was killed at step `kill_at`."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(ranks.run(spec.layout.world_size, train, spec=spec, folder=folder)[0])
        except RunError:
            outcome.append(None)

    thread = threading.Thread(target=run)
    thread.start()
    killed = kill_at is None
    while thread.is_alive():
        if not killed and kill_at is not None and latest(folder) >= kill_at:
            time.sleep(delay_s)
            os.kill(ranks.process_ids[victim], signal.SIGKILL)
            killed = True
        thread.join(timeout=0.002)
    return outcome[0]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    bits, undisturbed, lines = disturbed_and_not(kills=options.kills, seed=options.seed)
    same = (bits.parameters, bits.evaluations) == (undisturbed.parameters, undisturbed.evaluations)
    lines += [
        "",
        f"disturbed    {bits.parameters}  evaluations {bits.evaluations[:16]}",
        f"undisturbed  {undisturbed.parameters}  evaluations {undisturbed.evaluations[:16]}",
        f"{options.kills} kills: {'the same bits' if same else 'DIFFERENT bits'}",
    ]
    print("\n".join(lines[-4:]))
    if options.output is not None:
        options.output.write_text("\n".join(lines) + "\n")
    return 0 if same else 1


def disturbed_and_not(*, kills: int, seed: int) -> tuple[Bits, Bits, list[str]]:
    """The bits of a run killed `kills` times, of one that was not, and a line per kill."""
    generator = random.Random(seed)
    steps = STEPS_PER_KILL * (kills + 2)
    every_step = {"checkpoint": CheckpointConfig(every_s=None, every_optimizer_steps=1)}
    lines = []
    with LocalRanks(timeout_s=7200) as ranks, tempfile.TemporaryDirectory() as name:
        folder, done = Path(name), 0
        undisturbed: Bits = ranks.run(1, train, spec=spec_of("single", 64, 1, steps=steps))[0]
        while done < kills:
            strategy, b, n = generator.choice(LAYOUTS)
            at = latest(folder) + generator.randint(1, STEPS_PER_KILL)
            victim, delay_s = generator.randrange(n), generator.uniform(0.0, 0.1)
            spec = spec_of(strategy, b, n, steps=steps, **every_step)
            outcome = attempt(ranks, spec, folder, kill_at=at, delay_s=delay_s, victim=victim)
            if outcome is not None:
                return outcome, undisturbed, [*lines, f"the run ended after {done} kills"]
            done += 1
            lines.append(
                f"kill {done:2d}: {strategy:<6} {spec.layout!s:>7}, rank {victim} after step {latest(folder)}"
            )
            print(lines[-1], flush=True)
        spec = spec_of("ddp", 16, 2, steps=steps, **every_step)
        bits: Bits = attempt(ranks, spec, folder, kill_at=None, delay_s=0.0, victim=0)
    return bits, undisturbed, lines


if __name__ == "__main__":
    sys.exit(main())
