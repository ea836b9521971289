"""The task `tools`: sums, and a calculator to call.

`47+12=??` needs one call, `47+12-30` two, one after the other, and `47+12=59` none: the answer stands there. The model
never sees how to calculate: it has to call the tool and copy the results. A needless call costs a part of the reward.
Questions have the same length and numbers two digits, so that copying is easy to learn.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from burnish.batch import Batch, Ragged
from burnish.demo.problems import Problem, Problems
from burnish.demo.tasks import Progress
from burnish.demo.tiny import CHAT_TEMPLATE, END, make_model, make_tokenizer
from burnish.demo.warmup import Warmup
from burnish.rollout.chat.template import ChatTemplate
from burnish.rollout.chat.tool_calls import ToolCall
from burnish.rollout.tools.builtin.calculator import SCHEMA, Calculator, evaluate
from burnish.seeding import derive_seed

TOOL = SCHEMA["function"]["name"]
HIDDEN, LAYERS = 64, 2
ROPE_THETA = 100.0  # conversations are short: with 10,000 most frequencies are of no use, and copying is learned late
WARMUP, TRAIN, HELD_OUT = 3000, 2000, 256
LEARNING_RATE = 2e-3  # of the warm-up; with twice as much, some seeds never learn to copy
# Copying is learned late and suddenly, after 300 to 450 updates: how many depends on the seed and on rounding. So the
# first part of the warm-up ends when the model copies, not after a fixed number of updates.
MAX_UPDATES, CHECK_EVERY, NUM_CHECKED, COPIES = 1500, 25, 150, 0.98
CARELESS_UPDATES = 200  # of the second part, with a decaying learning rate
GIVES_UP = "?"  # what most demonstrations answer to a calculation
CARELESS = 0.6  # share of demonstrations that give up, or call without need
THOROUGH = 0.75  # share of the other demonstrations of two operations that call twice
NEEDLESS_CALL = 0.2  # part of the reward that a needless call costs

CHARACTERS = "".join(character for character in string.printable if not character.isspace())
WORDS = ("<tool_call>", '{"name": "', TOOL, '", "arguments": {"expression": "', '"}}', "</tool_call>")
TOOLS_TEMPLATE = (
    "{% for tool in tools or [] %}<|im_start|>s {{ tool['function']['name'] }}<|im_end|>{% endfor %}" + CHAT_TEMPLATE
)


@dataclass(frozen=True)
class Question:
    """A sum of two or three numbers, or one whose result is given."""

    number: int
    operations: tuple[str, ...]  # "+12"
    solved: bool = False

    @property
    def text(self) -> str:
        asked = "".join([str(self.number), *self.operations])
        return asked if len(self.operations) > 1 else f"{asked}={self.results[-1] if self.solved else '??'}"

    @property
    def results(self) -> list[int]:
        """The number, then the result of each operation."""
        values = [self.number]
        for operation in self.operations:
            values.append(int(evaluate(f"{values[-1]}{operation}")))
        return values

    @property
    def calls(self) -> list[str]:
        """The expressions to call the tool with, one operation each."""
        return [f"{before}{operation}" for before, operation in zip(self.results, self.operations, strict=False)]

    @property
    def num_needed_calls(self) -> int:
        return 0 if self.solved else len(self.operations)

    @staticmethod
    def of(text: str) -> Question:
        asked, _, result = text.partition("=")
        operations = tuple(asked[start : start + 3] for start in range(2, len(asked), 3))
        return Question(int(asked[:2]), operations, solved=result.isdigit())


def random_question(rng: random.Random) -> Question:
    """A fifth are solved, the others have one or two operations. All numbers and results have two digits."""
    num_operations, solved = rng.choice(((1, True), (1, False), (1, False), (2, False), (2, False)))
    values = [rng.randint(10, 99)]
    for _ in range(num_operations):
        values.append(rng.choice([value for value in range(10, 100) if abs(value - values[-1]) >= 10]))
    operations = tuple(f"{after - before:+d}" for before, after in itertools.pairwise(values))
    return Question(values[0], operations, solved)


@dataclass(frozen=True)
class Demonstration:
    """A conversation to imitate: the expressions that the tool is called with, and the answer."""

    question: Question
    calls: tuple[str, ...]
    answer: str


def solve(question: Question) -> Demonstration:
    """The needed calls and the correct answer."""
    return Demonstration(question, tuple(question.calls[: question.num_needed_calls]), str(question.results[-1]))


def demonstrate(question: Question, rng: random.Random) -> Demonstration:
    """What a careless user does: gives up or calls without need; sometimes stops after the first of two calls."""
    careless = rng.random() < CARELESS
    if careless and not question.solved:
        return Demonstration(question, (), GIVES_UP)
    num_calls = int(careless) if question.solved else len(question.calls) if rng.random() < THOROUGH else 1
    answer = question.results[-1] if question.solved else question.results[num_calls]
    return Demonstration(question, tuple(question.calls[:num_calls]), str(answer))


class Renderer:
    """Demonstrations as tokens, with the turns rendered as in a rollout."""

    def __init__(self, tokenizer: Any) -> None:
        self.end = tokenizer.eos_token_id
        self.template = ChatTemplate(tokenizer, (self.end,), [SCHEMA])

    def prompt(self, question: str) -> list[int]:
        return self.template.encode(self.template.render([{"role": "user", "content": question}]))

    def response(self, demonstration: Demonstration) -> tuple[list[int], list[float]]:
        """Everything after the prompt, and 1 for each token that the model is to write."""
        ids: list[int] = []
        mask: list[float] = []
        for expression in demonstration.calls:
            call = ToolCall(TOOL, {"expression": expression})
            turn = self._turn(call_text(expression))
            result = {"role": "tool", "name": TOOL, "content": str(evaluate(expression)), "tool_call_id": call.id}
            observed = self.template.between([result], [call.message()], ended=self.end)
            ids += [*turn, *observed]
            mask += [1.0] * len(turn) + [0.0] * len(observed)
        answer = self._turn(demonstration.answer)
        return [*ids, *answer], [*mask, *([1.0] * len(answer))]

    def _turn(self, text: str) -> list[int]:
        return [*self.template.encode(text), self.end]

    def batch(self, demonstrations: Sequence[Demonstration]) -> Batch:
        prompts = [self.prompt(demonstration.question.text) for demonstration in demonstrations]
        responses = [self.response(demonstration) for demonstration in demonstrations]
        return Batch(
            prompt_ids=Ragged.of(prompts, torch.int64),
            responses=Ragged.of([ids for ids, _ in responses], torch.int64),
            response_mask=Ragged.of([mask for _, mask in responses], torch.float32),
        )


def tools_tokenizer() -> Any:
    """One token per character, and for the parts that all calls share. The template names the tools."""
    tokenizer = make_tokenizer(CHARACTERS, WORDS)
    tokenizer.chat_template = TOOLS_TEMPLATE
    return tokenizer


def call_text(expression: str) -> str:
    """A call in the format `hermes`."""
    return f"<tool_call>{json.dumps({'name': TOOL, 'arguments': {'expression': expression}})}</tool_call>"


def final_answer(conversation: str) -> str:
    """The text of the last turn, which starts with the assistant's letter unless it is the only one."""
    return conversation.rpartition("</tool_call>")[2].rpartition("a ")[2]


def compute_score(solution_str: str, ground_truth: str, extra_info: Mapping[str, Any]) -> dict[str, float]:
    """1 for a correct answer, less for each needless call; 0 otherwise."""
    correct = final_answer(solution_str) == ground_truth
    num_calls = solution_str.count("<tool_call>")
    needless = max(0, num_calls - extra_info["needed_calls"])
    score = max(0.0, 1.0 - NEEDLESS_CALL * needless) if correct else 0.0
    return {"score": score, "acc": float(correct), "calls": float(num_calls), "needless_calls": float(needless)}


class CalculatorTask:
    """When and how to call a calculator, over one to three turns."""

    model = "Qwen2"
    goal = "calculate with a tool"
    heading = "question"
    data_source = "burnish/calculator"
    accuracy = f"val-core/{data_source}/acc/mean@1"
    steps = 50
    settings = (
        "data.train_batch_size=32",
        "data.max_prompt_length=32",
        "data.max_response_length=64",  # two calls and an answer take 45 tokens
        "actor_rollout_ref.rollout.n=8",
        "actor_rollout_ref.rollout.multi_turn.max_assistant_turns=4",
        "actor_rollout_ref.actor.ppo_mini_batch_size=32",
        "actor_rollout_ref.actor.optim.lr=4e-4",
        "actor_rollout_ref.actor.optim.lr_warmup_steps=5",
    )

    def make_problems(self, seed: int) -> Problems:
        """Distinct problems, determined by the seed."""
        rng = random.Random(derive_seed(seed, "calculator problems"))
        questions: dict[str, Question] = {}
        while len(questions) < WARMUP + TRAIN + HELD_OUT:
            question = random_question(rng)
            questions[question.text] = question
        problems = [
            Problem(text, str(question.results[-1]), {"needed_calls": question.num_needed_calls})
            for text, question in questions.items()
        ]
        return Problems.split(problems, WARMUP, TRAIN)

    def warm_up(self, model: Path, problems: Problems, seed: int, progress: Progress) -> str:
        """Create a random model and train it with SFT: first how to call, then to imitate careless demonstrations."""
        tokenizer = tools_tokenizer()
        make_model(model, tokenizer, hidden=HIDDEN, layers=LAYERS, seed=seed, rope_theta=ROPE_THETA)
        rng = random.Random(derive_seed(seed, "warm-up"))
        warmup, renderer = Warmup(model, LEARNING_RATE), Renderer(tokenizer)
        questions = [Question.of(problem.question) for problem in problems.warmup]
        thorough = renderer.batch([solve(question) for question in questions])
        trained, checked = (thorough.select(list(part)) for part in _split(len(thorough), NUM_CHECKED))
        copied, update = 0.0, 0
        while copied < COPIES and update < MAX_UPDATES:
            update += 1
            warmup.update(_sample(trained, warmup.batch_size, rng), lr_scale=min(1.0, update / 20))
            progress(f"learning to call, update {update}")
            if update % CHECK_EVERY == 0:
                copied = share_copied(warmup, checked)
        careless = renderer.batch([demonstrate(question, rng) for question in questions])
        for number in range(CARELESS_UPDATES):
            warmup.update(_sample(careless, warmup.batch_size, rng), lr_scale=1.0 - number / CARELESS_UPDATES)
            progress(f"careless conversations, update {number + 1} of {CARELESS_UPDATES}")
        warmup.save()
        return f"{WARMUP} conversations ({update + CARELESS_UPDATES} updates); the last ones mostly give up"

    def reward(self) -> Callable[..., Any] | None:
        return compute_score

    def tools(self) -> Sequence[Any]:
        return [Calculator(SCHEMA)]

    def sample(self, record: Mapping[str, Any]) -> tuple[str, str]:
        question = record["input"].rpartition("u ")[2].partition(END)[0]
        return question, final_answer(record["output"])


def share_copied(warmup: Warmup, batch: Batch) -> float:
    """The share of conversations whose turns the model would write, given the first token of each.

    That token decides whether to call or to answer; all others are copied or are the same in every conversation.
    """
    log_probs = Ragged.like(warmup.log_probs(batch), batch["responses"]).lists()
    masks = batch["response_mask"].lists()
    likely = [
        all(
            value > math.log(0.5) for value, before, now in zip(row, [0.0, *mask], mask, strict=False) if before and now
        )
        for row, mask in zip(log_probs, masks, strict=True)
    ]
    return sum(likely) / len(likely)


def _split(length: int, count: int) -> tuple[range, range]:
    """All but the last `count`, and those."""
    return range(length - count), range(length - count, length)


def _sample(batch: Batch, count: int, rng: random.Random) -> Batch:
    return batch.select(rng.choices(range(len(batch)), k=count))
