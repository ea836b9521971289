"""A real language model on a CPU: SmolLM2-135M-Instruct learns to say the number that a small sum makes.

    python examples/smollm2/train.py                                    # the model from the hub
    python examples/smollm2/train.py --model smollm2                    # a folder; examples/smollm2/model.py makes one
    python examples/smollm2/train.py trainer.total_training_steps=40    # further settings go last

Left to itself the model goes on from "3 + 4 =" with all kinds of text; the right number comes first in few of its
samples. GRPO rewards those, and some twenty updates of all its weights make it add.
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
import time
from pathlib import Path

import burnish
from burnish.log.curves import sparkline
from burnish.log.file import read_metrics

HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
PLAIN = "{{ messages[0]['content'] }}"  # the question as it is: prompts are read for every sample, so they are short


def rows(count: int, seed: int) -> list[dict]:
    """Sums of two digits, in verl's schema."""
    rng = random.Random(seed)
    pairs = [(rng.randint(0, 9), rng.randint(0, 9)) for _ in range(count)]
    return [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": f"{a} + {b} ="}],
            "reward_model": {"ground_truth": str(a + b)},
        }
        for a, b in pairs
    ]


def score(solution_str: str, ground_truth: str) -> float:
    """1 where the first thing said is the right number."""
    said = re.match(r"\s*(\d+)", solution_str)
    return float(said is not None and said.group(1) == ground_truth)


def train(model: str, folder: Path, more: list[str]) -> list[float]:
    """The mean reward of every step."""
    settings = [
        f"actor_rollout_ref.model.path={model}",
        f'actor_rollout_ref.model.custom_chat_template="{PLAIN}"',
        "actor_rollout_ref.model.enable_gradient_checkpointing=false",
        "algorithm.adv_estimator=grpo",
        "data.train_batch_size=16",
        "data.max_prompt_length=16",
        "data.max_response_length=4",
        "actor_rollout_ref.rollout.n=8",
        "actor_rollout_ref.actor.ppo_mini_batch_size=16",
        "actor_rollout_ref.actor.optim.lr=2e-5",
        "reward.num_workers=0",
        "trainer.total_training_steps=20",
        "trainer.logger=[console,file]",
        f"trainer.default_local_dir={folder}",
        *more,
    ]
    burnish.train(settings, reward=score, dataset=rows(512, seed=1))
    metrics = read_metrics(folder / "metrics.jsonl")
    return [numbers["critic/score/mean"] for _, numbers in sorted(metrics.items())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=HUB, help="name on the hub, or a folder")
    parser.add_argument("--folder", type=Path, help="the run folder; a new one by default")
    parser.add_argument("settings", nargs="*", help="as `burnish train` takes them")
    args = parser.parse_args()
    started = time.perf_counter()
    curve = train(args.model, args.folder or Path(tempfile.mkdtemp(prefix="smollm2-")), args.settings)
    seconds = time.perf_counter() - started
    drawn = sparkline(curve, 0, 1)
    print(f"mean reward {curve[0]:.2f} -> {curve[-1]:.2f} in {len(curve)} steps and {seconds:.0f} s  {drawn}")


if __name__ == "__main__":
    main()
