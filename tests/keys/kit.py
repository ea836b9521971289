"""Kit: a tiny model, data and user code on disk, and a Case for every command line that a row asks for."""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
import string
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, MixtralConfig

from burnish.batch import Batch, Ragged
from burnish.config import Loaded, TrainConfig, load
from burnish.data.files import write_parquet
from burnish.data.shapes import draw_scene, picture
from burnish.demo.tiny import make_model, make_tokenizer
from burnish.demo.tiny_vision import make_vision_model
from burnish.errors import UserError
from burnish.log.file import read_metrics
from burnish.loop.api import start
from burnish.loop.build import build
from burnish.loop.fit import Result, fit
from burnish.loop.run import Run
from burnish.loop.state import resume
from burnish.rollout.engine import Request

from ..rollout.agents.conftest import CHATML
from .row import Observe, Refusal

USER = Path(__file__).parent / "user"  # code that a user might have written
PROMPTS, SAMPLES, TOKENS = 4, 2, 4  # of a step
ROWS = 12


@dataclass(frozen=True)
class Fitted:
    """What a whole run left behind."""

    result: Result
    files: list[str]  # in the run folder
    metrics: dict[int, dict[str, float]]
    said: list[str]  # lines on the console
    requests: list[list[Request]]  # of each call of the engine


class Case:
    """One command line: its config, and the run it builds once somebody looks at it."""

    def __init__(self, kit: Kit, overrides: tuple[str, ...]) -> None:
        self.kit = kit
        self.overrides = overrides
        self.loaded = kit.load(overrides)
        self.folder = kit.folder(overrides)
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def cfg(self) -> TrainConfig:
        return self.loaded.cfg

    @cached_property
    def run(self) -> Run:
        return build(self.cfg)

    def resumed(self) -> Run:
        resume(self.run)
        return self.run

    def fitted(self) -> Fitted:
        """The whole run; equal command lines run once."""
        if self.overrides not in self.kit.fits:
            self.kit.fits[self.overrides] = self._fit()
        return self.kit.fits[self.overrides]

    def _fit(self) -> Fitted:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            run = self.resumed()
            requests = recorded(run.rollout.engine, "generate")
            start(run, self.loaded)
            result = fit(run)
        files = sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())
        metrics = read_metrics(run.recorder.folder.metrics) if run.recorder.folder.metrics.exists() else {}
        return Fitted(result, files, metrics, said.getvalue().splitlines(), [call[0] for call in requests])

    def close(self) -> None:
        if "run" in vars(self):
            self.run.close()


class Kit:
    """Made once; `seen` remembers what was observed, so that rows share what they start from."""

    def __init__(self, root: Path, model: str) -> None:
        self.root = root
        self.model = model
        self.numbers: dict[tuple[str, ...], int] = {}
        self.loaded: dict[tuple[str, ...], Loaded] = {}
        self.fits: dict[tuple[str, ...], Fitted] = {}
        self.known: dict[tuple[Observe, tuple[str, ...]], Any] = {}
        self.train_file = self._data("train", ROWS)
        self.other_file = self._data("other", ROWS, offset=20)
        self.val_file = self._data("val", PROMPTS, offset=40)
        self.base = (
            f"data.train_files={self.train_file}",
            f"data.train_batch_size={PROMPTS}",
            "data.max_prompt_length=24",
            f"data.max_response_length={TOKENS}",
            f"actor_rollout_ref.model.path={model}",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={PROMPTS}",
            "actor_rollout_ref.actor.optim.lr=1e-2",
            f"actor_rollout_ref.rollout.n={SAMPLES}",
            "actor_rollout_ref.rollout.max_num_seqs=16",
            "algorithm.adv_estimator=grpo",
            f"custom_reward_function.path={USER / 'rewards.py'}",
            "reward.num_workers=0",
            "trainer.total_training_steps=2",
            "trainer.device=cpu",
        )

    def load(self, overrides: tuple[str, ...]) -> Loaded:
        if overrides not in self.loaded:
            folder = f"trainer.default_local_dir={self.folder(overrides)}"
            self.loaded[overrides] = load([*self.base, folder, *overrides])
        return self.loaded[overrides]

    def folder(self, overrides: tuple[str, ...]) -> Path:
        """The run folder of this command line."""
        return self.root / f"run{self.numbers.setdefault(overrides, len(self.numbers))}"

    def seen(self, observe: Observe, overrides: tuple[str, ...], again: bool = False) -> Any:
        """What is observed under these overrides."""
        if again:
            self.fits.pop(overrides, None)
        if again or (observe, overrides) not in self.known:
            self.known[observe, overrides] = self._observed(observe, overrides)
        return self.known[observe, overrides]

    def _observed(self, observe: Observe, overrides: tuple[str, ...]) -> Any:
        try:
            case = Case(self, overrides)
            try:
                return observe(case)
            finally:
                case.close()
        except UserError as error:
            return Refusal(error.problem)

    def _data(self, name: str, count: int, offset: int = 0) -> Path:
        """Rows of verl's schema with a second prompt column and a second column of data sources."""
        rows = [
            {
                "prompt": [{"role": "user", "content": "+".join([str(number)] * (1 + number % 3))}],
                "question": [{"role": "user", "content": f"{number}?"}],
                "data_source": "sums",
                "kind": f"sums of {number % 2}",
                "reward_model": {"ground_truth": str(number)},
            }
            for number in range(offset, offset + count)
        ]
        path = self.root / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    @cached_property
    def saved(self) -> Path:
        """The folder of a run with a critic that saved both of its steps."""
        case = Case(self, ("trainer.experiment_name=saved", "algorithm.adv_estimator=gae", "trainer.save_freq=1"))
        case.fitted()
        case.close()
        return case.folder

    @cached_property
    def other_model(self) -> Path:
        """The model with other weights."""
        model = AutoModelForCausalLM.from_pretrained(self.model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.5)
        folder = self.root / "other_model"
        shutil.copytree(self.model, folder)
        model.save_pretrained(folder)
        return folder

    @cached_property
    def moe_model(self) -> Path:
        """A mixture of experts with the model's tokenizer."""
        folder = self.root / "moe_model"
        shutil.copytree(self.model, folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
        sizes = json.loads((Path(self.model) / "config.json").read_text())
        names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        names += ("num_key_value_heads", "eos_token_id", "pad_token_id")
        torch.manual_seed(0)
        experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "bos_token_id": None}
        config = MixtralConfig(**{name: sizes[name] for name in names if name in sizes}, **experts)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        return folder

    @cached_property
    def chat_model(self) -> Path:
        """A model whose tokenizer knows all characters and whose template knows tools."""
        folder = self.root / "chat_model"
        tokenizer = make_tokenizer(string.printable)
        tokenizer.chat_template = CHATML
        make_model(folder, tokenizer, hidden=16, layers=1, seed=0)
        return folder

    @cached_property
    def vision_model(self) -> Path:
        folder = self.root / "vision_model"
        make_vision_model(folder, "qwen2_5_vl", hidden=16, layers=1)
        return folder

    def vision_file(self, name: str) -> Path:
        """Rows with images: also in another column, one of them corrupt, two in one prompt, or films instead."""
        path = self.root / f"{name}.parquet"
        pictures = [picture(draw_scene(random.Random(number)), 28) for number in range(2 * PROMPTS + 2)]
        columns = [{"images": [image], "others": [pictures[-1 - n]]} for n, image in enumerate(pictures[: PROMPTS + 1])]
        if name == "corrupt":
            columns[1]["images"] = [pictures[1][:60]]
        if name == "several":
            columns[1]["images"] = pictures[:2]
        if name == "films":
            columns = [{"films": [[image, image]]} for image in pictures[:PROMPTS]]
        rows = [
            {
                "prompt": [
                    {"role": "user", "content": ("<video>" if "films" in row else "<image>" * len(row["images"]))}
                ],
                "data_source": "sums",
                "reward_model": {"ground_truth": "1"},
                **row,
            }
            for row in columns
        ]
        write_parquet(rows, path)
        return path

    @cached_property
    def other_tokenizer(self) -> Path:
        """A tokenizer that knows fewer characters, and so numbers them otherwise."""
        make_tokenizer("0123456789?+").save_pretrained(self.root / "other_tokenizer")
        return self.root / "other_tokenizer"

    @cached_property
    def remote_model(self) -> Path:
        """The model and its tokenizer as a repository that brings its own classes."""
        folder = self.root / "remote_model"
        shutil.copytree(self.model, folder)
        shutil.copy(USER / "remote_classes.py", folder)
        classes = {"AutoConfig": "RemoteConfig", "AutoModelForCausalLM": "RemoteLM"}
        classes |= {"AutoModelForTokenClassification": "RemoteValues"}
        _edit(folder / "config.json", model_type="keys_remote", auto_map=_auto_map(classes))
        return folder

    @cached_property
    def remote_tokenizer(self) -> Path:
        folder = self.root / "remote_tokenizer"
        shutil.copytree(self.model, folder)
        shutil.copy(USER / "remote_classes.py", folder)
        own = {"AutoTokenizer": [None, "remote_classes.RemoteTokenizer"]}
        _edit(folder / "tokenizer_config.json", tokenizer_class="RemoteTokenizer", auto_map=own)
        return folder


def _auto_map(classes: dict[str, str]) -> dict[str, str]:
    return {auto: f"remote_classes.{name}" for auto, name in classes.items()}


def _edit(path: Path, **entries: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def recorded(owner: object, name: str) -> list[tuple]:
    """The positional arguments of every call of this method from now on."""
    calls: list[tuple] = []
    method: Callable = getattr(owner, name)

    def call(*arguments: Any, **more: Any) -> Any:
        calls.append(arguments)
        return method(*arguments, **more)

    setattr(owner, name, call)
    return calls


def fixed_batch(run: Run) -> Batch:
    """A step's batch with every column a role or an estimator reads, the same for every run of the same data."""
    prompts = run.rollout.train_data.batch(range(PROMPTS), epoch=0).repeat(SAMPLES)
    generator = torch.Generator().manual_seed(0)
    lengths = [1 + row % TOKENS for row in range(len(prompts))]
    responses = Ragged.of([torch.randint(3, 15, (n,), generator=generator) for n in lengths], torch.int64)

    def column(mean: float, spread: float) -> Ragged:
        return Ragged.like(mean + spread * torch.randn(len(responses.flat), generator=generator), responses)

    return prompts.add(
        responses=responses,
        response_mask=Ragged.like(torch.ones(len(responses.flat)), responses),
        old_log_probs=column(-3, 1),
        ref_log_prob=column(-3, 1),
        advantages=column(0, 2),
        values=column(0, 1),
        returns=column(0, 1),
        token_level_scores=column(0, 1),
    )
