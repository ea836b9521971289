"""A real language model on a CPU: SmolLM2-135M-Instruct learns to answer a small sum with the number alone.

    python examples/smollm2/train.py                                    # the model from the hub
    python examples/smollm2/train.py --model smollm2                    # a folder; examples/smollm2/model.py makes one
    python examples/smollm2/train.py trainer.seed=2                     # further settings go last

Asked "What is 3 + 4?" the model says all kinds of things; "7" and nothing else is about one sample in six. GRPO rewards
that one, and sixteen updates of all its weights make it the rule, for sums that it was not asked while it learnt too.
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
import time
from pathlib import Path

HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
# Prompts are read again with every sample. These are 11 tokens; in the model's own chat format they would be 38.
FORMAT = "{{ messages[0]['content'] }} The answer is"
SETTINGS = (
    f'actor_rollout_ref.model.custom_chat_template="{FORMAT}"',
    "actor_rollout_ref.model.enable_gradient_checkpointing=false",
    "algorithm.adv_estimator=grpo",
    "data.train_batch_size=16",
    "data.max_prompt_length=32",
    "data.max_response_length=6",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.rollout.free_cache_engine=false",  # there is room for the cache beside the update
    "actor_rollout_ref.rollout.val_kwargs.do_sample=true",  # held-out sums are answered as in training: sampled
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
    """All sums of two digits in verl's schema: to learn from, and held out. The held-out ones are in both orders."""
    pairs = [(a, b) for a in range(10) for b in range(a, 10)]
    random.Random(1).shuffle(pairs)
    held_out = len(pairs) // 5
    return _asked(pairs[held_out:]), _asked(pairs[:held_out])


def _asked(pairs: list[tuple[int, int]]) -> list[dict]:
    return [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": f"What is {a} + {b}?"}],
            "reward_model": {"ground_truth": str(a + b)},
        }
        for a, b in sorted({order for a, b in pairs for order in ((a, b), (b, a))})
    ]


def score(solution_str: str, ground_truth: str) -> float:
    """1 for the right number and nothing else, but for a full stop."""
    said = re.fullmatch(r"\s*(\d+)\.?\s*", solution_str)
    return float(said is not None and said.group(1) == ground_truth)


def train(model: str, folder: Path, more: list[str]) -> tuple[list[float], list[float]]:
    """The mean reward of every step, and that of the held-out sums before, on the way and at the end."""
    import burnish  # takes seconds, which count
    from burnish.log.file import read_metrics

    learnt, held_out = rows()
    places = (f"actor_rollout_ref.model.path={model}", f"trainer.default_local_dir={folder}")
    result = burnish.train([*SETTINGS, *places, *more], reward=score, dataset=learnt, val_dataset=held_out)
    steps = [numbers for _, numbers in sorted(read_metrics(folder / "metrics.jsonl").items())]
    curve = [numbers["critic/score/mean"] for numbers in steps if "critic/score/mean" in numbers]
    return curve, [numbers[HELD_OUT] for _, numbers in sorted(result.validation.items())]


def main() -> None:
    started = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=HUB, help="name on the hub, or a folder")
    parser.add_argument("--folder", type=Path, help="the run folder; a new one by default")
    parser.add_argument("settings", nargs="*", help="as `burnish train` takes them")
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="smollm2-"))
    curve, held_out = train(args.model, folder, args.settings)
    from burnish.log.curves import sparkline

    seconds = time.perf_counter() - started
    print(f"mean reward of a step      {curve[0]:.2f} -> {curve[-1]:.2f}  {sparkline(curve, 0, 1)}")
    print(f"mean reward, held-out sums {held_out[0]:.2f} -> {held_out[-1]:.2f}  {sparkline(held_out, 0, 1)}")
    print(f"{len(curve)} steps, {seconds:.0f} s from the start of this program, loading and validation included")
    print(f"curves: {folder / 'curves.png'}")


if __name__ == "__main__":
    main()
