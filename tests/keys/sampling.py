"""Rows of the sampling keys of actor_rollout_ref.rollout.* that follow vLLM's SamplingParams, and of prefilling."""

from functools import cache

from burnish.loop.recorder import trajectory_records
from burnish.models.model_input import ModelInput
from burnish.rollout.engine import Request, Sampling

from . import observe as see
from .kit import Case, recorded
from .row import Observe, Row

ROLLOUT = "actor_rollout_ref.rollout"
VAL = f"{ROLLOUT}.val_kwargs"
SAMPLED = (f"{VAL}.do_sample=true", f"{VAL}.temperature=1")
LONG = ("data.max_response_length=16",)
PROMPT = tuple(range(3, 13)) * 60  # 600 tokens, longer than two blocks of the cache
ROOM = ("data.max_prompt_length=600",)


@cache
def prefilled(*groups: tuple[tuple[int, ...], ...]) -> Observe:
    """Tokens of each pass over prompts, when these groups of them come one after the other."""

    def passes(case: Case) -> list[int]:
        case.run.sync_weights()
        calls = recorded(case.run.rollout.engine.runner, "prefill")
        for group in groups:
            for future in case.run.rollout.engine.generate([Request(ModelInput(ids), Sampling(2), 0) for ids in group]):
                future.result()
        return [sum(count for _, count in call[0]) for call in calls]

    return passes


def dumped_tokens(case: Case) -> int:
    """Likeliest tokens in the dump of a rollout, beside each token."""
    record = trajectory_records(see.step_batch(case), case.run.recorder.tokenizer)[0]
    return len(record["logprobs"][0]["top"]) if "logprobs" in record else 0


ROWS = [
    Row(f"{ROLLOUT}.min_p", "0.9", see.responses),
    Row(f"{ROLLOUT}.min_tokens", "12", see.response_lengths, LONG),
    Row(f"{ROLLOUT}.stop", "['1','2','3','4']", see.response_lengths, LONG),
    Row(f"{ROLLOUT}.stop_token_ids", "[3,4,5,6]", see.response_lengths, LONG),
    Row(f"{ROLLOUT}.repetition_penalty", "5", see.responses, LONG),
    Row(f"{ROLLOUT}.presence_penalty", "2", see.responses, LONG),
    Row(f"{ROLLOUT}.frequency_penalty", "2", see.responses, LONG),
    Row(f"{ROLLOUT}.bad_words", "['1','2','3','4']", see.responses, LONG),
    Row(f"{ROLLOUT}.seed", "2", see.responses),
    Row(f"{ROLLOUT}.logprobs", "3", dumped_tokens, expected=3),
    Row(f"{ROLLOUT}.use_fire_sampling", "true", see.responses),
    Row(
        f"{ROLLOUT}.enable_chunked_prefill",
        "false",
        prefilled((PROMPT[:400], PROMPT[1:401])),
        (*ROOM, f"{ROLLOUT}.max_num_batched_tokens=700"),
        expected=[400, 400],  # else 400 + 256, 144
    ),
    Row(
        f"{ROLLOUT}.enable_prefix_caching",
        "true",
        prefilled((PROMPT,), (PROMPT[:-1],)),
        ROOM,
        expected=[600, 599 - 512],
    ),
    Row(f"{VAL}.min_p", "0.9", see.validation_responses, SAMPLED),
    Row(f"{VAL}.repetition_penalty", "5", see.validation_responses, SAMPLED),
    Row(f"{VAL}.presence_penalty", "2", see.validation_responses, SAMPLED),
    Row(f"{VAL}.frequency_penalty", "2", see.validation_responses, SAMPLED),
    Row(f"{VAL}.seed", "2", see.validation_responses, SAMPLED),
]
