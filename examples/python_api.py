"""Training from Python, as notebook cells: builds a tiny model, rows and a reward. No download, about half a minute.

python examples/python_api.py
"""

# %% A tiny Qwen2-shaped model with a character tokenizer. Any Hugging Face model folder or name works too.
from __future__ import annotations

import tempfile
from pathlib import Path

import burnish
from burnish.demo.tiny import make_model, make_tokenizer

folder = Path(tempfile.mkdtemp())
make_model(folder / "model", make_tokenizer("0123456789"), hidden=64, layers=2, seed=0)

# %% Rows in verl's schema. Add "reward_model": {"ground_truth": ...} to pass a reference answer to the reward.
rows = [{"data_source": "my/even", "prompt": [{"role": "user", "content": f"{n:03d}"}]} for n in range(600)]


# %% A reward returns a number, or a dict with 'score' and other values to log.
def even_digits(solution_str: str) -> dict[str, float]:
    """Fraction of the response's characters that are even digits."""
    share = sum(character in "02468" for character in solution_str) / max(1, len(solution_str))
    return {"score": share, "length": len(solution_str)}


# %% Train with the overrides of `burnish train`; a dataset and a function replace the files.
result = burnish.train(
    [
        f"actor_rollout_ref.model.path={folder / 'model'}",
        f"trainer.default_local_dir={folder / 'run'}",
        "algorithm.adv_estimator=grpo",
        "data.train_batch_size=16",
        "data.max_prompt_length=16",
        "data.max_response_length=6",
        "actor_rollout_ref.rollout.n=8",
        "actor_rollout_ref.actor.ppo_mini_batch_size=16",
        "actor_rollout_ref.actor.optim.lr=2e-3",
        "trainer.total_training_steps=20",
        "trainer.test_freq=10",
    ],
    reward=even_digits,
    dataset=rows[:500],
    val_dataset=rows[500:],
)

# %% The result: the run folder, the metrics of the last step and of every validation (step 0 is before training).
print(result.folder, sorted(path.name for path in result.folder.iterdir()))
for step, metrics in result.validation.items():
    print(step, {name: round(value, 3) for name, value in metrics.items()})
