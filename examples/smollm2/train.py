"""Train a real language model on a CPU: SmolLM2-135M-Instruct learns to answer small sums with the number alone.

    python examples/smollm2/train.py                                    # the model from the hub
    python examples/smollm2/train.py --model smollm2                    # a folder from examples/smollm2/model.py
    python examples/smollm2/train.py trainer.seed=2                     # further overrides go last

Asked "What is 3 + 4?", the untrained model answers with "7" alone in about one of six samples. Sixteen GRPO updates of
all weights raise this to about nine of ten, also for held-out sums.
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
import time
from pathlib import Path

HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
# A short prompt saves time: 11 tokens, against 38 in the model's own chat format.
FORMAT = "{{ messages[0]['content'] }} The answer is"
SETTINGS = (
    f'actor_rollout_ref.model.custom_chat_template="{FORMAT}"',
    "actor_rollout_ref.model.enable_gradient_checkpointing=false",
    "algorithm.adv_estimator=grpo",
    "data.train_batch_size=16",
    "data.max_prompt_length=32",
    "data.max_response_length=6",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.rollout.free_cache_engine=false",  # the cache fits in memory during the update
    "actor_rollout_ref.rollout.val_kwargs.do_sample=true",  # sample held-out sums as in training
    "actor_rollout_ref.rollout.val_kwargs.temperature=1.0",
    "actor_rollout_ref.rollout.val_kwargs.n=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=16",
    "actor_rollout_ref.actor.optim.lr=2e-5",
    "actor_rollout_ref.actor.optim.warmup_style=cosine",
    "reward.num_workers=0",
    "trainer.total_training_steps=16",
    "trainer.test_freq=8",
    "trainer.logger=[console,file]",
)
HELD_OUT = "val-core/sums/reward/mean@4"


def rows() -> tuple[list[dict], list[dict]]:
    """All sums of two digits in verl's schema, as training and held-out rows; each pair appears in both orders."""
    pairs = [(a, b) for a in range(10) for b in range(a, 10)]
    random.Random(1).shuffle(pairs)
    held_out = len(pairs) // 5
    return _to_rows(pairs[held_out:]), _to_rows(pairs[:held_out])


def _to_rows(pairs: list[tuple[int, int]]) -> list[dict]:
    return [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": f"What is {a} + {b}?"}],
            "reward_model": {"ground_truth": str(a + b)},
        }
        for a, b in sorted({order for a, b in pairs for order in ((a, b), (b, a))})
    ]


def score(solution_str: str, ground_truth: str) -> float:
    """1 for the correct number alone, optionally followed by a period."""
    match = re.fullmatch(r"\s*(\d+)\.?\s*", solution_str)
    return float(match is not None and match.group(1) == ground_truth)


def train(model: str, folder: Path, overrides: list[str]) -> tuple[list[float], list[float]]:
    """Returns the mean reward of every step and of every validation on held-out sums."""
    import burnish  # imported here, so that its import time is measured
    from burnish.log.file import read_metrics

    train_rows, held_out = rows()
    paths = (f"actor_rollout_ref.model.path={model}", f"trainer.default_local_dir={folder}")
    result = burnish.train([*SETTINGS, *paths, *overrides], reward=score, dataset=train_rows, val_dataset=held_out)
    steps = [numbers for _, numbers in sorted(read_metrics(folder / "metrics.jsonl").items())]
    curve = [numbers["critic/score/mean"] for numbers in steps if "critic/score/mean" in numbers]
    return curve, [numbers[HELD_OUT] for _, numbers in sorted(result.validation.items())]


def main() -> None:
    started = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=HUB, help="hub name or folder")
    parser.add_argument("--folder", type=Path, help="run folder (default: a new temporary one)")
    parser.add_argument("settings", nargs="*", help="overrides of `burnish train`")
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="smollm2-"))
    curve, held_out = train(args.model, folder, args.settings)
    from burnish.log.curves import sparkline

    seconds = time.perf_counter() - started
    print(f"mean reward of a step      {curve[0]:.2f} -> {curve[-1]:.2f}  {sparkline(curve, 0, 1)}")
    print(f"mean reward, held-out sums {held_out[0]:.2f} -> {held_out[-1]:.2f}  {sparkline(held_out, 0, 1)}")
    print(f"{len(curve)} steps, {seconds:.0f} s in total, including imports, loading and validation")
    print(f"curves: {folder / 'curves.png'}")


if __name__ == "__main__":
    main()
