"""What one can see of a reward model, and the models it is seen with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from burnish.demo.tiny import make_tokenizer

from ..conftest import CHARACTERS
from ..reward_models import make_reward_model
from .kit import USER, Case, Kit, fixed_batch, recorded
from .observe import step_batch


def scorer(kit: Kit, likes: str = "7") -> Path:
    """A model that likes a character. Its template is not the policy's."""
    folder = kit.root / f"scorer_{likes}"
    if not folder.exists():
        tokenizer = make_tokenizer(CHARACTERS)
        tokenizer.chat_template = "{% for m in messages %}<|im_start|>{{ m['content'] }}+{% endfor %}"
        make_reward_model(folder, tokenizer, likes, mean=0.5, std=2.0)
    return folder


def remote_scorer(kit: Kit) -> Path:
    """The same as a repository that brings its own class."""
    folder = kit.root / "remote_scorer"
    if not folder.exists():
        shutil.copytree(scorer(kit), folder)
        shutil.copy(USER / "remote_classes.py", folder)
        classes = {"AutoConfig": "RemoteConfig", "AutoModelForSequenceClassification": "RemoteValues"}
        own = {auto: f"remote_classes.{name}" for auto, name in classes.items()}
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"model_type": "keys_remote", "auto_map": own}))
    return folder


def scores(case: Case) -> list[float]:
    """Of a step's responses, whoever gives them."""
    batch = step_batch(case)
    if case.run.learner.reward_model is not None:
        batch = case.run.learner.reward_model.score(batch)
    return batch["token_level_scores"].sums().tolist()


def judge_class(case: Case) -> str:
    return type(case.run.learner.reward_model.model.backend.model).__name__


def num_passes(case: Case) -> int:
    """Micro-batches of reading a step."""
    model = case.run.learner.reward_model.model
    calls = recorded(model.backend, "scores")
    model.compute_scores(fixed_batch(case.run))
    return len(calls)
