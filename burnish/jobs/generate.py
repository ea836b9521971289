"""burnish generate: a file of prompts -> the same rows with a list of responses each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from burnish.config import Loaded, Overrides, load
from burnish.config.ranks import is_single_process
from burnish.data.encode import (
    TRUNCATIONS,
    Encoded,
    PromptEncoder,
    TemplateFailure,
    cuts_a_picture,
    truncate_spans,
)
from burnish.data.files import ListRows, Rows, folder_of, parquet_path, read_file, write_with_column
from burnish.data.invalid_media import at_row
from burnish.data.pictures import MODEL_DATA, MediaColumns
from burnish.data.prompt import read_prompt
from burnish.data.prompt_pictures import with_pictures
from burnish.distributed import torchrun
from burnish.errors import UserError, WorkerDied
from burnish.log.console import activity, progress_counter, say
from burnish.loop.build_engine import check_engine_of, engine_mode, engine_of, one_device
from burnish.loop.build_vision import build_vision, engines_for_pictures
from burnish.loop.collect import run_episodes
from burnish.loop.elastic import ElasticEngines
from burnish.loop.event_loop import run_coroutine
from burnish.loop.launch import WorkerProgram, check_launcher, launch
from burnish.loop.pools import Pool, describe_pools
from burnish.loop.sampling import decoder, training_sampling
from burnish.models.device import limit_cpu_threads, pick_device, pick_dtype
from burnish.models.load import ModelSource, load_causal_lm, load_config, load_tokenizer
from burnish.models.model_input import ModelInput
from burnish.models.parts import all_weights
from burnish.models.stream import WeightStream
from burnish.models.vision.encoder import VisionEncoder
from burnish.rollout.engine import Engine, Sampling, check_sampling, engine_row
from burnish.rollout.episode import Prompt, Sampler, SingleTurn
from burnish.rollout.stop import Decode
from burnish.rollout.trajectory import Trajectory
from burnish.seeding import derive_seed
from burnish.training.export import loadable_path

if TYPE_CHECKING:
    from burnish.config.jobs import GenerateConfig

RESPONSES = "responses"


@dataclass(frozen=True)
class Generated:
    """The responses to each prompt, the rows with them as column `responses`, and the file with these rows, if any.

    It can be used like the file's Path, which 0.1 returned.
    """

    responses: list[list[str]]
    rows: list[dict[str, Any]]
    path: Path | None

    def __fspath__(self) -> str:
        if self.path is None:
            raise UserError("no file was written", key="data.output_path", hint="data.output_path=answers.parquet")
        return str(self.path)

    def __str__(self) -> str:
        return repr(self) if self.path is None else str(self.path)

    def __getattr__(self, name: str) -> Any:
        if name in type(self).__dataclass_fields__ or name.startswith("_"):  # not set yet, while it is unpickled
            raise AttributeError(name)
        return getattr(Path(self), name)


def generate(
    overrides: Overrides = (),
    *,
    prompts: Sequence[str | Sequence[Mapping[str, Any]] | Mapping[str, Any]] | None = None,
    config_path: str | None = None,
    config_name: str | None = None,
) -> Generated:
    """Sample responses to prompts: `burnish generate` from Python.

    `prompts` replaces data.path: texts, lists of chat messages, or rows with column data.prompt_key. Their responses
    are written to a file only if data.output_path is set.
    """
    given = [] if prompts is None else ["data.path"]
    loaded = load(overrides, config_path=config_path, config_name=config_name, job="generate", given=given)
    return generate_loaded(loaded, prompts)


def generate_loaded(
    loaded: Loaded, prompts: Sequence[str | Sequence[Mapping[str, Any]] | Mapping[str, Any]] | None = None
) -> Generated:
    """Names, files and prompts are checked before the model is loaded; the output is written whole, at the end.

    Under torchrun, the first process distributes the prompts and the others serve it.
    """
    torchrun.serve_if_not_main()
    cfg: GenerateConfig = loaded.cfg
    out = None
    if prompts is None or "data.output_path" in loaded.settings:
        out = parquet_path(cfg.data.output_path, "data.output_path")
    check_launcher(cfg, pools(cfg))
    device = pick_device(cfg.trainer.device)
    threads_notice = limit_cpu_threads()
    check_engine_of(cfg.rollout, device, "rollout")
    source = model_source(cfg)
    vocabulary = load_config(source).get_text_config().vocab_size
    tokenizer = load_job_tokenizer(cfg, source)
    rows = read_rows(cfg, prompts)
    prompts_read = read_prompts(cfg, rows, tokenizer, build_vision(cfg, source, tokenizer))
    has_pictures = any(prompt.media for prompt in prompts_read)
    cfg, told = engines_for_pictures(cfg, source, device) if has_pictures else (cfg, [])
    sampling = training_sampling(cfg.rollout, tokenizer, vocabulary, key="rollout")
    engine_class = engine_row(cfg.rollout.name, engine_mode(cfg.rollout)).load()
    check_sampling(engine_class, sampling, "rollout")
    samples = samples_of(cfg, rows, prompts_read, sampling)
    for notice in [*loaded.notices, *told, *([threads_notice] if threads_notice else [])]:
        say(notice)
    with open_engine(cfg, source, device, tokenizer) as engine:
        decode = decoder(tokenizer)
        responses = respond(cfg, engine, samples, decode)
    if out is not None:
        write_with_column(rows, RESPONSES, responses, out, "data.output_path")
        say(f"wrote {len(rows)} rows with {cfg.data.n_samples} responses each to {out}")
    return Generated(responses, [{**rows.row(number), RESPONSES: texts} for number, texts in enumerate(responses)], out)


def model_source(cfg: GenerateConfig) -> ModelSource:
    assert cfg.model.path is not None  # checked with the config
    return ModelSource(
        path=loadable_path(cfg.model.path, "model.path"),
        key="model.path",
        override_config=dict(cfg.model.override_config),
        external_lib=tuple(cfg.model.external_lib),
        trust_remote_code=cfg.model.trust_remote_code,
    )


def load_job_tokenizer(cfg: GenerateConfig, source: ModelSource) -> Any:
    trust = cfg.data.trust_remote_code or source.trust_remote_code
    return load_tokenizer(source.checked_path(), trust_remote_code=trust, key="model.path")


def pools(cfg: GenerateConfig) -> list[Pool]:
    """[] where one engine in this process generates."""
    if is_single_process(cfg):
        return []
    return [Pool("engines", cfg.trainer.nnodes, cfg.trainer.n_gpus_per_node, ("engine",))]


def read_rows(
    cfg: GenerateConfig, prompts: Sequence[str | Sequence[Mapping[str, Any]] | Mapping[str, Any]] | None = None
) -> Rows:
    if prompts is not None:
        key = cfg.data.prompt_key
        rows = [prompt if isinstance(prompt, Mapping) else {key: prompt} for prompt in _several(prompts)]
        return _checked_rows(cfg, ListRows(rows, "prompts"))
    assert cfg.data.path is not None  # checked with the config
    return _checked_rows(cfg, read_file(cfg.data.path, "data.path"))


def _several(prompts: Any) -> Sequence[Any]:
    """A list of prompts; one text or one conversation is a common mistake."""
    first = prompts[0] if isinstance(prompts, Sequence) and len(prompts) > 0 else None
    is_chat = isinstance(first, Mapping) and "role" in first and "content" in first
    if is_chat or isinstance(prompts, str) or not isinstance(prompts, Sequence):
        raise UserError("must be a list of prompts", key="prompts", value=prompts, hint=f"prompts=[{prompts!r}]")
    return prompts


def _checked_rows(cfg: GenerateConfig, rows: Rows) -> Rows:
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
        raise UserError(problem, key="data.path", value=rows.name if cfg.data.path is None else cfg.data.path)
    return rows


def read_prompts(
    cfg: GenerateConfig, rows: Rows, tokenizer: Any, vision: VisionEncoder | None = None
) -> list[ModelInput]:
    """Every prompt as tokens and pictures, cut where they may be; the first that cannot be used is named."""
    encoder = PromptEncoder(tokenizer, dict(cfg.data.apply_chat_template_kwargs), vision=vision)
    has_media = any(name in rows.kinds for name in (cfg.data.image_key, cfg.data.video_key, MODEL_DATA))
    columns = MediaColumns(cfg.data.image_key, cfg.data.video_key, expected=has_media)
    prompts = [encode(cfg, encoder, columns, rows, number) for number in range(len(rows))]
    limit = cfg.rollout.prompt_length
    truncation = TRUNCATIONS[cfg.data.truncation]
    lengths = [len(prompt.ids) for prompt in prompts]
    long = [number for number, length in enumerate(lengths) if length > limit]
    if long and truncation.metadata["before_start"]:
        more = f" (the first of {len(long)} such rows)" if len(long) > 1 else ""
        raise UserError(
            f"{rows.where(long[0])} has {lengths[long[0]]} tokens{more}",
            key="rollout.prompt_length",
            value=limit,
            hint=f"rollout.prompt_length={max(lengths)} to fit it, or data.truncation=left (right, middle)",
        )
    if long:
        say(f"{len(long)} of {len(prompts)} prompts are truncated to rollout.prompt_length={limit} tokens")
    return [truncated(cfg, prompt, rows.where(number)) for number, prompt in enumerate(prompts)]


def truncated(cfg: GenerateConfig, prompt: Encoded, where: str) -> ModelInput:
    """The part of a prompt that is kept. UserError where a picture would be cut."""
    limit, length = cfg.rollout.prompt_length, len(prompt.ids)
    kept = TRUNCATIONS[cfg.data.truncation].load()(range(length), limit, where)
    offsets = truncate_spans(kept, length, [(item.offset, item.num_tokens) for item in prompt.media])
    if offsets is None:
        raise cuts_a_picture(where, length, limit, "rollout.prompt_length")
    media = (item.at(offset) for item, offset in zip(prompt.media, offsets, strict=True))
    return ModelInput(tuple(prompt.ids[position] for position in kept), tuple(media))


def encode(cfg: GenerateConfig, encoder: PromptEncoder, columns: MediaColumns, rows: Rows, number: int) -> Encoded:
    where, row = rows.where(number), rows.row(number)
    prompt = read_prompt(row, cfg.data.prompt_key, where)
    prompt = with_pictures(prompt, row, encoder, columns, where, folder_of(rows, number), "data.path")
    try:
        encoded = encoder.encode(prompt)
    except TemplateFailure as failure:
        raise UserError(f"{where}: the chat template failed: {failure}", key="data.path") from failure
    except UserError as error:
        raise (at_row(error, where) if prompt.media else error) from error
    if not encoded.ids:
        raise UserError(f"{where}: the prompt has no tokens", key="data.path")
    return encoded


def samples_of(cfg: GenerateConfig, rows: Rows, prompts: list[ModelInput], sampling: Sampling) -> list[list[Prompt]]:
    """n_samples per prompt. Noise is keyed by seed, row and sample, whatever is generated beside it."""
    seed = cfg.trainer.seed if sampling.seed is None else sampling.seed
    max_model_len = cfg.rollout.max_model_len or cfg.rollout.prompt_length + sampling.max_tokens
    groups = []
    for number, prompt in enumerate(prompts):
        limit = min(sampling.max_tokens, max_model_len - len(prompt))
        limited = replace(sampling, max_tokens=limit, min_tokens=min(sampling.min_tokens, limit))
        seeds = [derive_seed(seed, "generate", rows.fingerprint, number, n) for n in range(cfg.data.n_samples)]
        groups.append([Prompt(prompt, limited, seed, sample=n) for n, seed in enumerate(seeds)])
    return groups


@contextmanager
def open_engine(cfg: GenerateConfig, source: ModelSource, device: torch.device, tokenizer: Any) -> Iterator[Engine]:
    """The engine of this process, or those of all ranks as one."""
    run_pools = pools(cfg)
    if not run_pools:
        with activity(f"loading {source.path}"):
            engine = filled_engine(cfg, source, device, tokenizer)
        try:
            yield engine
        finally:
            engine.close()
        return
    with activity(f"loading {source.path}"):
        launched = launch(cfg, run_pools, WorkerProgram("burnish.jobs.generate_worker:GenerateWorker"))
    try:
        for notice in [describe_pools(run_pools, device), *launched.notices]:
            say(notice)
        yield ElasticEngines(launched.groups["engine"], own_weights=True)
    except WorkerDied as error:
        raise UserError(f"{error}. No engine is left; nothing was written", hint="the same command again") from error
    finally:
        launched.close()


def filled_engine(
    cfg: GenerateConfig, source: ModelSource, device: torch.device, tokenizer: Any, own_thread: bool | None = None
) -> Engine:
    """An engine with the weights of the model's folder."""
    rollout = cfg.rollout if is_single_process(cfg) else one_device(cfg.rollout)
    read = partial(load_causal_lm, source, None, pick_dtype(rollout.dtype, device, "rollout.dtype"))
    loaded = [read()]
    generation = loaded[0].generation_config
    engine = engine_of(rollout, source, device, generation, tokenizer, section="rollout", own_thread=own_thread)
    try:
        # Used once and not kept; read from its folder again for an engine that has to be filled again.
        engine.load_weights(WeightStream(lambda: all_weights(loaded.pop() if loaded else read())), version=1)
    except BaseException:
        engine.close()
        raise
    return engine


class CountedTurn(SingleTurn):
    """One prompt, one response; reports how many prompts have their `n` responses, about."""

    def __init__(self, report_progress: Callable[[int], None], n: int) -> None:
        self.report_progress = report_progress
        self.n = n
        self.num_done = 0

    async def run(self, prompt: Prompt, sampler: Sampler) -> Trajectory:
        trajectory = await super().run(prompt, sampler)
        self.num_done += 1
        self.report_progress(self.num_done // self.n)
        return trajectory


def respond(cfg: GenerateConfig, engine: Engine, samples: list[list[Prompt]], decode: Decode) -> list[list[str]]:
    """The texts of every group, a batch of prompts at a time."""
    responses: list[list[str]] = []
    size = cfg.data.batch_size
    with progress_counter("prompts", len(samples)) as report_progress:
        episode = CountedTurn(report_progress, cfg.data.n_samples)
        for start in range(0, len(samples), size):
            batch = samples[start : start + size]
            prompts = [prompt for group in batch for prompt in group]
            trajectories = run_coroutine(run_episodes(engine, episode, prompts))
            texts = iter([rows[-1].text(decode) for rows in trajectories])
            responses += [[next(texts) for _ in group] for group in batch]
            if not cfg.rollout.disable_log_stats:
                say("engine: " + ", ".join(f"{name} {value:g}" for name, value in sorted(engine.stats().items())))
    return responses
