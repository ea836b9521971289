"""burnish generate: a file of prompts -> the same rows with a list of responses each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.config import Loaded, load
from burnish.data.encode import TRUNCATIONS, PromptEncoder, TemplateFailure
from burnish.data.files import Rows, parquet_path, read_file, write_with_column
from burnish.data.prompt import read_prompt
from burnish.errors import UserError
from burnish.log.console import progress_counter, say
from burnish.loop.collect import run_coroutine, run_episodes
from burnish.loop.roles import check_engine_of, engine_of
from burnish.loop.sampling import decoder, training_sampling
from burnish.models.device import pick_device, pick_dtype
from burnish.models.load import ModelSource, load_causal_lm, load_config, load_tokenizer
from burnish.models.model_input import ModelInput
from burnish.models.stream import WeightStream
from burnish.rollout.engine import Engine, Sampling, check_sampling, engine_row
from burnish.rollout.episode import Prompt, SingleTurn
from burnish.rollout.stop import Decode
from burnish.seeding import derive_seed

if TYPE_CHECKING:
    from burnish.config.jobs import GenerateConfig

RESPONSES = "responses"


def generate(overrides: Sequence[str] = (), *, config_path: str | None = None, config_name: str | None = None) -> Path:
    """What the command does, from Python; gives the file that was written."""
    return generate_loaded(load(overrides, config_path=config_path, config_name=config_name, job="generate"))


def generate_loaded(loaded: Loaded) -> Path:
    """Names, files and prompts are checked before the model is loaded; the output is written whole, at the end."""
    cfg: GenerateConfig = loaded.cfg
    out = parquet_path(cfg.data.output_path, "data.output_path")
    device = pick_device(cfg.trainer.device)
    check_engine_of(cfg.rollout, device, "rollout")
    source = model_source(cfg)
    vocabulary = load_config(source).get_text_config().vocab_size
    tokenizer = load_tokenizer(
        source.checked_path(),
        trust_remote_code=cfg.data.trust_remote_code or source.trust_remote_code,
        key="model.path",
    )
    rows = read_rows(cfg)
    prompts = read_prompts(cfg, rows, tokenizer)
    sampling = training_sampling(cfg.rollout, tokenizer, vocabulary, key="rollout")
    check_sampling(engine_row(cfg.rollout.name, cfg.rollout.mode).load(), sampling, "rollout")
    samples = samples_of(cfg, rows, prompts, sampling)
    for notice in loaded.notices:
        say(notice)
    with filled_engine(cfg, source, device, tokenizer) as engine:
        decode = decoder(tokenizer)
        responses = respond(cfg, engine, samples, decode)
    write_with_column(rows, RESPONSES, responses, out, "data.output_path")
    say(f"wrote {len(rows)} rows with {cfg.data.n_samples} responses each to {out}")
    return out


def model_source(cfg: GenerateConfig) -> ModelSource:
    assert cfg.model.path is not None  # checked with the config
    return ModelSource(
        path=cfg.model.path,
        key="model.path",
        override_config=dict(cfg.model.override_config),
        external_lib=tuple(cfg.model.external_lib),
        trust_remote_code=cfg.model.trust_remote_code,
    )


def read_rows(cfg: GenerateConfig) -> Rows:
    assert cfg.data.path is not None  # checked with the config
    rows = read_file(cfg.data.path, "data.path")
    if cfg.data.prompt_key not in rows.kinds:
        raise UserError(
            f"{rows.name} has no such column",
            key="data.prompt_key",
            value=cfg.data.prompt_key,
            allowed=f"its columns {', '.join(sorted(rows.kinds))}",
            hint="data.prompt_key=COLUMN",
        )
    if RESPONSES in rows.kinds:
        problem = f"it has a column {RESPONSES!r} already, which would be lost"
        raise UserError(problem, key="data.path", value=cfg.data.path)
    return rows


def read_prompts(cfg: GenerateConfig, rows: Rows, tokenizer: Any) -> list[list[int]]:
    """Every prompt as tokens, cut where they may be; the first that cannot be used is named."""
    encoder = PromptEncoder(tokenizer, dict(cfg.data.apply_chat_template_kwargs))
    prompts = [encode(cfg, encoder, rows, number) for number in range(len(rows))]
    limit = cfg.rollout.prompt_length
    truncation = TRUNCATIONS[cfg.data.truncation]
    long = [number for number, ids in enumerate(prompts) if len(ids) > limit]
    if long and truncation.metadata["before_start"]:
        more = f" (the first of {len(long)} such rows)" if len(long) > 1 else ""
        raise UserError(
            f"{rows.where(long[0])} has {len(prompts[long[0]])} tokens{more}",
            key="rollout.prompt_length",
            value=limit,
            hint=f"rollout.prompt_length={max(map(len, prompts))} to fit it, or data.truncation=left (right, middle)",
        )
    cut = truncation.load()
    return [list(cut(ids, limit, rows.where(number))) for number, ids in enumerate(prompts)]


def encode(cfg: GenerateConfig, encoder: PromptEncoder, rows: Rows, number: int) -> list[int]:
    where = rows.where(number)
    try:
        ids = encoder.ids(read_prompt(rows.row(number), cfg.data.prompt_key, where))
    except TemplateFailure as failure:
        raise UserError(f"{where}: the chat template failed: {failure}", key="data.path") from failure
    if not ids:
        raise UserError(f"{where}: the prompt has no tokens", key="data.path")
    return ids


def samples_of(cfg: GenerateConfig, rows: Rows, prompts: list[list[int]], sampling: Sampling) -> list[list[Prompt]]:
    """n_samples per prompt. Noise is keyed by seed, row and sample, whatever is generated beside it."""
    seed = cfg.trainer.seed if sampling.seed is None else sampling.seed
    max_model_len = cfg.rollout.max_model_len or cfg.rollout.prompt_length + sampling.max_tokens
    groups = []
    for number, ids in enumerate(prompts):
        limit = min(sampling.max_tokens, max_model_len - len(ids))
        limited = replace(sampling, max_tokens=limit, min_tokens=min(sampling.min_tokens, limit))
        seeds = [derive_seed(seed, "generate", rows.fingerprint, number, n) for n in range(cfg.data.n_samples)]
        groups.append([Prompt(ModelInput(tuple(ids)), limited, seed, sample=n) for n, seed in enumerate(seeds)])
    return groups


@contextmanager
def filled_engine(cfg: GenerateConfig, source: ModelSource, device: Any, tokenizer: Any) -> Iterator[Engine]:
    """The engine with the weights of the model's folder."""
    read = partial(load_causal_lm, source, None, pick_dtype(cfg.rollout.dtype, device, "rollout.dtype"))
    loaded = [read()]
    engine = engine_of(cfg.rollout, source, device, loaded[0].generation_config, tokenizer, section="rollout")
    try:
        # Used once and not kept; read from its folder again for an engine that has to be filled again.
        engine.load_weights(WeightStream(lambda: (loaded.pop() if loaded else read()).named_parameters()), version=1)
        yield engine
    finally:
        engine.close()


def respond(cfg: GenerateConfig, engine: Engine, samples: list[list[Prompt]], decode: Decode) -> list[list[str]]:
    """The texts of every group, a batch of prompts at a time."""
    responses: list[list[str]] = []
    size = cfg.data.batch_size
    with progress_counter("prompts", len(samples)) as done:
        for start in range(0, len(samples), size):
            batch = samples[start : start + size]
            prompts = [prompt for group in batch for prompt in group]
            trajectories = run_coroutine(run_episodes(engine, SingleTurn(), prompts))
            texts = iter([rows[-1].text(decode) for rows in trajectories])
            responses += [[next(texts) for _ in group] for group in batch]
            done(len(responses))
            if not cfg.rollout.disable_log_stats:
                say("engine: " + ", ".join(f"{name} {value:g}" for name, value in sorted(engine.stats().items())))
    return responses
