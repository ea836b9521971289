"""GRPO step with tools on a CPU against TRL's GRPOTrainer: 64 conversations x 3 tool calls x 50 ms.

    python bench/agents_vs_trl.py --trl-python VENV/bin/python [--rounds 2] [--steps 4]

VENV has torch, trl, datasets and accelerate. A tiny model first learns by heart to call the tool three times and then
to answer, so that both frameworks sample the same conversations (temperature 1). Model, prompts, tool, number of
samples, loss and learning rate are the same; they alternate, so that other load affects both. Tool wait is the wall
time of a step in which at least one call runs. Exits with status 1 unless the median tool wait is 20 times lower and
the median step 4 times faster.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tables

PROMPTS, SAMPLES, CALLS, TOOL_SECONDS = 8, 8, 3, 0.05
MAX_RESPONSE = 512
LEARNING_RATE, MAX_LOSS = 3e-3, 5e-4  # of the model that learns the conversations
WAIT_TARGET, STEP_TARGET = 20, 4
COLUMNS = {
    "round": "{round}",
    "Burnish s": "{seconds:.2f}",
    "of which tool wait": "{wait_seconds:.2f}",
    "TRL s": "{trl_seconds:.2f}",
    "of which tool wait ": "{trl_wait_seconds:.2f}",
    "tool wait": "{wait_ratio:.0f}x lower",
    "step": "{ratio:.1f}x faster",
    "calls per conversation, Burnish and TRL": "{calls:.2f}, {trl_calls:.2f}",
}
INTERVALS: list[tuple[float, float]] = []  # of tool calls, in the process that executes them


def look_up(word: str) -> str:
    """Look up a word.

    Args:
        word: the word
    """
    started = time.monotonic()
    time.sleep(TOOL_SECONDS)
    INTERVALS.append((started, time.monotonic()))
    return f"{word} is known"


def union_seconds(intervals: list[tuple[float, float]]) -> float:
    """The length of the union of intervals."""
    total, covered_to = 0.0, 0.0
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, covered_to))
        covered_to = max(covered_to, end)
    return total


def questions(steps: int) -> list[list[dict[str, str]]]:
    rng = random.Random(0)
    return [[{"role": "user", "content": f"Look up {rng.randrange(100)} words."}] for _ in range(PROMPTS * (steps + 1))]


def conversation(question: list[dict[str, str]]) -> list[dict[str, Any]]:
    """What the model learns by heart."""
    messages: list[dict[str, Any]] = list(question)
    for word in ("one", "two", "three"):
        call = {"type": "function", "function": {"name": "look_up", "arguments": {"word": word}}}
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": "look_up", "content": f"{word} is known"},
        ]
    return [*messages, {"role": "assistant", "content": "All are known."}]


def make_model(folder: str, template: str) -> float:
    """A tiny Qwen2 that has learned the conversations; returns its last loss per token of them."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
    from transformers.utils import get_json_schema

    from burnish.rollout.tools.functions import FunctionTool

    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.chat_template = template
    rng = random.Random(1)
    texts = []
    for schema in (FunctionTool(look_up).schema, get_json_schema(look_up)):  # as each framework shows the tool
        for _ in range(64):
            question = [{"role": "user", "content": f"Look up {rng.randrange(100)} words."}]
            start = fast.apply_chat_template(question, tools=[schema], tokenize=False, add_generation_prompt=True)
            texts.append((start, fast.apply_chat_template(conversation(question), tools=[schema], tokenize=False)))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=768, special_tokens=specials, initial_alphabet=alphabet)
    tokenizer.train_from_iterator([text for _, text in texts], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = template
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=64, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=fast.eos_token_id, pad_token_id=fast.pad_token_id,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    encoded = [[fast(text, add_special_tokens=False)["input_ids"] for text in pair] for pair in texts]
    loss = learn_by_heart(model, [(len(start), ids) for start, ids in encoded], rng)
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return loss


def learn_by_heart(model: Any, rows: list[tuple[int, list[int]]], rng: random.Random, max_steps: int = 1500) -> float:
    """Train on rows of (prompt length, tokens) until the loss of what follows the prompts is nearly 0."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    losses = [math.inf]
    while max(losses[-5:]) > MAX_LOSS and len(losses) < max_steps:
        batch = rng.sample(rows, 4)
        length = max(len(ids) for _, ids in batch)
        inputs = torch.tensor([ids + [0] * (length - len(ids)) for _, ids in batch])
        labels = torch.tensor([[-100] * skip + ids[skip:] + [-100] * (length - len(ids)) for skip, ids in batch])
        loss = model(input_ids=inputs, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses[-1]


def result(framework: str, step_ends: list[float]) -> dict[str, Any]:
    """Medians over the steps after the first. Tool calls belong to the step in which they ended."""
    spans = list(itertools.pairwise(step_ends))
    calls = [[c for c in INTERVALS if start < c[1] <= end] for start, end in spans]
    return {
        "framework": framework,
        "seconds": statistics.median(end - start for start, end in spans),
        "wait_seconds": statistics.median(map(union_seconds, calls)),
        "calls": statistics.mean(map(len, calls)) / (PROMPTS * SAMPLES),
    }


def run_burnish(model: str, steps: int) -> dict[str, Any]:
    import burnish
    from burnish.log.file import FileLogger

    ends: list[float] = []
    log = FileLogger.log

    def timed_log(self: FileLogger, *args: Any, **kwargs: Any) -> None:
        ends.append(time.monotonic())
        log(self, *args, **kwargs)

    FileLogger.log = timed_log  # a step is logged when it ends
    rewards = random.Random(0)
    rows = [
        {"prompt": question, "data_source": "words", "reward_model": {"ground_truth": ""}}
        for question in questions(steps)
    ]
    turns = "actor_rollout_ref.rollout.multi_turn"
    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            f"actor_rollout_ref.model.path={model}",
            "actor_rollout_ref.model.enable_gradient_checkpointing=false",
            "algorithm.adv_estimator=grpo",
            f"data.train_batch_size={PROMPTS}",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={PROMPTS}",
            f"actor_rollout_ref.rollout.n={SAMPLES}",
            f"data.max_response_length={MAX_RESPONSE}",
            "data.max_prompt_length=512",
            "actor_rollout_ref.actor.optim.lr=1e-6",
            f"{turns}.enable=true",
            f"{turns}.max_assistant_turns={CALLS + 1}",
            f"trainer.total_training_steps={steps}",
            f"trainer.default_local_dir={folder}",
            "trainer.save_freq=-1",
            "trainer.logger=[file]",
        ]
        burnish.train(overrides, reward=lambda solution_str: rewards.random(), dataset=rows, tools=[look_up])
    return result("burnish", ends)


def run_trl(model: str, steps: int) -> dict[str, Any]:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    ends: list[float] = []

    class Ends(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            ends.append(time.monotonic())

    rewards = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, per_device_train_batch_size=PROMPTS * SAMPLES, num_generations=SAMPLES,
            max_completion_length=MAX_RESPONSE, max_steps=steps, report_to=[], save_strategy="no", learning_rate=1e-6,
            beta=0.0, temperature=1.0, use_cpu=True, gradient_checkpointing=False, max_tool_calling_iterations=CALLS,
            logging_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(model),
            processing_class=AutoTokenizer.from_pretrained(model),
            reward_funcs=lambda completions, **columns: [rewards.random() for _ in completions],
            args=config,
            train_dataset=Dataset.from_list([{"prompt": question} for question in questions(steps)]),
            callbacks=[Ends()],
            tools=[look_up],
        )
        trainer.train()
    return result("trl", ends)


def run_command(command: list[str]) -> dict[str, Any]:
    """The JSON on the last line of its output."""
    finished = subprocess.run(command, capture_output=True, text=True)
    if finished.returncode:
        raise SystemExit(f"{command[:2]} failed:\n{finished.stderr[-2000:]}")
    return json.loads(finished.stdout.strip().splitlines()[-1])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-python", help="Python of an environment with TRL")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--run", choices=RUNS, help="internal: run this framework and print JSON")
    parser.add_argument("--model", type=Path, help="keep the model in this folder, and use the one that it holds")
    tables.add_option(parser)
    return parser.parse_args()


RUNS = {"burnish": run_burnish, "trl": run_trl}


def main() -> int:
    args = parse()
    if args.run:
        print(json.dumps(RUNS[args.run](str(args.model), args.steps)))
        return 0
    # TRL reads calls only of chat templates that it knows.
    path = "pathlib.Path(trl.__file__).parent / 'chat_templates/qwen2_5.jinja'"
    code = f"import pathlib, sys, trl; sys.stdout.write(({path}).read_text())"
    template = subprocess.run([args.trl_python, "-c", code], check=True, capture_output=True, text=True).stdout
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        model = str(args.model or folder)
        if not (Path(model) / "config.json").exists():
            print(f"the model learns by heart: loss {make_model(model, template):.4f}", flush=True)
        print(tables.table(COLUMNS, rows), end="", flush=True)
        for number in range(args.rounds):
            ours, theirs = (
                run_command([python, __file__, "--run", name, "--model", model, "--steps", str(args.steps)])
                for name, python in (("burnish", sys.executable), ("trl", args.trl_python))
            )
            row = {"round": number + 1} | {name: ours[name] for name in ("seconds", "wait_seconds", "calls")}
            row |= {f"trl_{name}": theirs[name] for name in ("seconds", "wait_seconds", "calls")}
            row |= {"ratio": theirs["seconds"] / ours["seconds"]}
            row |= {"wait_ratio": theirs["wait_seconds"] / ours["wait_seconds"]}
            rows.append(row)
            print(tables.table(COLUMNS, [row]).splitlines()[-1], flush=True)
    tables.save(args, "agents_vs_trl", COLUMNS, rows, peer_python=args.trl_python)
    wait, step = (statistics.median(row[name] for row in rows) for name in ("wait_ratio", "ratio"))
    print(f"tool wait is {wait:.0f}x lower and a step {step:.1f}x faster (medians of {args.rounds} rounds)")
    return 0 if wait >= WAIT_TARGET and step >= STEP_TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
