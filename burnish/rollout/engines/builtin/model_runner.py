"""ModelRunner: the model and its passes over prompts (prefill, score). Decoders (step_decode, graph_decode) use it.

Of a tensor-parallel engine, every rank has one: the leader's calls of methods marked `on_all_ranks` are repeated by the
others. Only the leader has sequences, logits and samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.errors import UserError
from burnish.models.attention import PAGED
from burnish.models.cpu.library import CannotCompileError
from burnish.models.fused.fp8 import check_fp8, fp8_layers, torch_product, triton_product, use_fp8_layers
from burnish.models.fused.linear import FusedLinear, Product
from burnish.models.fused.replace import replace_modules
from burnish.models.invariant.modules import use_invariant_modules
from burnish.models.kernels.invariant import product
from burnish.models.kernels.sample import log_probs_of
from burnish.models.load import load_causal_lm
from burnish.models.logprobs import chunk_logits
from burnish.models.model_input import MediaKind, ModelInput, whole_runs
from burnish.models.paged import PagedAttention, bind_cache
from burnish.models.parts import head_weight, logit_softcap
from burnish.models.positions import TEXT
from burnish.models.routing import Routing
from burnish.models.tensor_group import on_all_ranks
from burnish.models.tensor_slices import Slice, local_heads, part_of, row_parallel_layers, shard_model
from burnish.models.vision.family import vision_family
from burnish.models.vision.features import Embedded, FeatureMemo, MediaSlice
from burnish.models.wide import embed_in, hidden_states, is_wide
from burnish.rollout.engine import EngineOptions
from burnish.rollout.engines.builtin.invariant import TILE, can_be_invariant, padding, tiled_product
from burnish.rollout.engines.builtin.invariant_attention import InvariantUncached
from burnish.rollout.engines.builtin.kv_cache import CacheShape, KVCache, Segment
from burnish.rollout.engines.builtin.native.kernels import ROW_MULTIPLE, CpuKernels, compile_kernels
from burnish.rollout.engines.builtin.paged_attention import Uncached
from burnish.rollout.engines.builtin.sampling import SamplingBatch
from burnish.rollout.engines.builtin.sequence import PromptState, SequenceState, split_chunks
from burnish.rollout.engines.weights import copy_weights, release_weights
from burnish.sizing import CPU_PREFILL_TOKENS as CPU_TOKENS

MEMO_BYTES = 64 << 20  # of features of pictures whose prompts are not finished, or come again
PrefillAttention = Callable[[list[Segment]], PagedAttention]


class ModelRunner:
    """Owns the model and runs prompts through it. `use_cpu_kernels`: compute in C what can be. `invariant_kernels`:
    by the modules of models/invariant, which training uses too. `triton`: kernels for products with 8-bit weights."""

    def __init__(
        self,
        options: EngineOptions,
        prefill_attention: PrefillAttention,
        *,
        block_size: int,
        invariant: bool,
        use_cpu_kernels: bool,
        triton: bool,
        invariant_kernels: bool = False,
        cache_dtype: torch.dtype | None = None,
    ) -> None:
        self.device = options.device
        self.prefill_attention = prefill_attention
        self.group = options.tensor_group
        self.model = load_causal_lm(options.model, PAGED, options.dtype, empty=True).eval()
        self.model.requires_grad_(False)
        self.invariant_kernels = invariant_kernels
        if invariant_kernels:
            use_invariant_modules(self.model, options.dtype)
        if is_wide(self.model):
            embed_in(self.model, torch.float32)
        self.family = vision_family(self.model.config)
        # Pictures go through the tower one prompt at a time, as it is: its bits do not depend on the batch.
        self.tower = [] if self.family is None else list(self.family.vision_modules(self.model).values())
        self.invariant = invariant_kernels or (invariant and can_be_invariant(self.model, skip=self.tower))
        self.slices: dict[str, Slice] = {}  # which part of each weight this rank holds
        if self.group is not None:
            total = partial(self.group.sum, ordered=self.invariant)
            self.slices = shard_model(self.model, self.group, total, f"{options.section}.tensor_model_parallel_size")
        self.remarks: tuple[str, ...] = ()  # reported at the start of a run
        if options.quantization is not None:  # before the model takes memory of the device
            self._round_layers(options, triton and not self.invariant)
        self.rounded = fp8_layers(self.model)  # by the names of their weights
        self.model.to(options.device)
        if options.invariant and not self.invariant:
            raise UserError(
                f"{type(self.model).__name__} has experts; their matrix products depend on the batch",
                key="actor_rollout_ref.rollout.invariant",
                value=True,
                hint="actor_rollout_ref.rollout.invariant=null",
            )
        config = self.model.config.get_text_config()
        kv_heads, head_dim = cached_heads(config)
        heads, kv_heads = local_heads(
            config.num_attention_heads, kv_heads, 1 if self.group is None else self.group.size
        )
        self.shape = CacheShape(config.num_hidden_layers, kv_heads, head_dim, cache_dtype or options.dtype, block_size)
        self.memo = FeatureMemo(MEMO_BYTES, one_by_one=self.invariant)
        self.positions = TEXT if self.family is None else self.family.positions
        self.cache: KVCache | None = None
        self.routing: Routing | None = None  # where completions say which experts their tokens were sent to
        if options.record_experts:
            self.routing = Routing(self.model, f"{options.section}.enable_rollout_routing_replay")
            self.routing.record()
        self.cpu_kernels: CpuKernels | None = None
        if use_cpu_kernels:
            self.cpu_kernels = self._compile(heads // kv_heads)
        self._prepare_products()

    def _round_layers(self, options: EngineOptions, triton: bool) -> None:
        """Hold the linear layers' weights in 8 bits."""
        key = f"{options.section}.quantization"
        if self.invariant_kernels:
            problem = f"not possible with {options.section}.invariant=true: training has no weights of 8 bits"
            raise UserError(problem, key=key, value="fp8", allowed="null", hint=f"{options.section}.invariant=false")
        check_fp8(options.device, key, "null")
        product = triton_product if triton else torch_product(tiled_product if self.invariant else F.linear)
        experts = use_fp8_layers(self.model, options.quantization == "block", product, key)
        slow = f"{key}: without the Triton kernel, each product expands its 8-bit weights first, which is slow"
        self.remarks = (*(() if triton else (slow,)), *(() if experts is None else (experts,)))

    def _compile(self, group: int) -> CpuKernels | None:
        kernels = None
        try:
            kernels = compile_kernels(self.shape, group, self.device)
        except CannotCompileError as error:
            slow = f"CPU decode kernels are not available; torch decodes at about half the speed: {error}"
            self.remarks = (*self.remarks, slow)
        if self.group is not None and not self.group.min(kernels is not None):
            return None  # all ranks or none: they pad their passes alike
        return kernels

    def _prepare_products(self) -> None:
        """Fuse matrix products into fewer, wider ones; in invariant mode their bits are independent of the batch."""
        tiled = self.invariant and not self.invariant_kernels
        self.product: Product = tiled_product if tiled else F.linear
        self.row_multiple = TILE if tiled else 1  # tokens of a pass are padded to a multiple of this
        self.fused: list[FusedLinear] = []
        if self.invariant_kernels:
            return  # their products take several weights at once
        layers = None
        if self.cpu_kernels is not None:
            layers = self.cpu_kernels.layers
            self.product = layers.product
            if not self.rounded:  # they need whole tiles
                self.row_multiple = ROW_MULTIPLE if self.invariant else 1
        for layer in row_parallel_layers(self.model):
            layer.product = self.product
        replace_modules(self.model, layers, self.product, skip=self.tower)
        self.fused = [module for module in self.model.modules() if isinstance(module, FusedLinear)]

    # memory

    def bind(self, cache: KVCache) -> None:
        self.cache = cache
        bind_cache(self.model, cache.keys, cache.values)
        if self.routing is not None:
            blank = self.routing.empty(cache.num_blocks * cache.block_size, self.device)
            cache.experts = blank.unflatten(0, (cache.num_blocks, cache.block_size))

    def unbind(self) -> None:
        if self.cache is not None:
            nothing = [None] * self.shape.layers
            bind_cache(self.model, nothing, nothing)
        self.cache = None
        self.memo.clear()
        if self.cpu_kernels is not None:
            self.cpu_kernels.layers.forget()

    @on_all_ranks
    def release_weights(self) -> None:
        """Free the weights' memory until new ones are loaded."""
        release_weights(self.model)
        for fused in self.fused:
            fused.release()
        self.memo.clear()
        self._wait_for_ranks()

    def _wait_for_ranks(self) -> None:
        """The caller may use what all ranks have freed."""
        if self.group is not None:
            self.group.barrier()

    def load_weights(self, stream: Iterable[tuple[str, Tensor]]) -> None:
        """Load this rank's part of the weights, and drop what was derived from the old ones."""
        for fused in self.fused:
            fused.allocate()
        copy_weights(self.model, stream, self.slices)
        self.memo.clear()
        if self.cpu_kernels is not None:
            self.cpu_kernels.layers.forget()

    def local_weight(self, name: str, whole: Tensor) -> Tensor:
        """What this rank holds of a weight that was sent to the engine."""
        part = part_of(self.slices, name, whole)
        return self.rounded[name].checked_bytes(part) if name in self.rounded else part

    # passes

    @torch.inference_mode()
    def prefill(self, chunks: Sequence[tuple[PromptState, int]]) -> None:
        """Compute each prompt's last `count` scheduled tokens; after a prompt's last token, keep its logits."""
        for part in split_chunks(chunks, CPU_TOKENS if self.device.type == "cpu" else None):
            self._prefill(part)

    def _prefill(self, chunks: Sequence[tuple[PromptState, int]]) -> None:
        inputs = [prompt.input for prompt, _ in chunks]
        segments = [
            Segment(count, prompt.num_scheduled - count, prompt.blocks, self.wholes(prompt.input))
            for prompt, count in chunks
        ]
        hidden = self.forward(inputs, segments, True)
        if self.routing is not None:
            assert self.cache is not None
            self.keep_experts(torch.cat([segment.slots(self.cache.block_size) for segment in segments]).to(self.device))
        ends = torch.tensor([segment.length for segment in segments]).cumsum(0) - 1
        finished = [number for number, (prompt, _) in enumerate(chunks) if prompt.num_remaining == 0]
        if finished:
            logits = self.logits(hidden[ends[finished].to(self.device)])
            for number, row in zip(finished, logits, strict=True):
                chunks[number][0].logits = row

    @torch.inference_mode()
    def score(self, rows: Sequence[ModelInput | Sequence[int]], temperature: float) -> list[list[float]]:
        """Log-prob of every token given those before it."""
        inputs = [row if isinstance(row, ModelInput) else ModelInput(tuple(row)) for row in rows]
        hidden = self.forward(inputs, [Segment(len(row), wholes=self.wholes(row)) for row in inputs], False)
        scores, start = [], 0
        for row in inputs:
            logits = self.logits(hidden[start : start + len(row)])[:-1]
            tokens = torch.tensor(row.ids[1:], device=self.device)
            if self.invariant_kernels:
                heat = torch.full(tokens.shape, temperature, dtype=torch.float32, device=self.device)
                log_probs, _ = log_probs_of(logits, heat, tokens)
            else:
                log_probs = torch.log_softmax(logits.float() / temperature, -1).gather(-1, tokens[:, None]).squeeze(-1)
            scores.append([0.0, *log_probs.tolist()])
            start += len(row)
        return scores

    def keep_experts(self, slots: Tensor) -> None:
        """Store which experts the first tokens of the last pass were sent to: their places in the cache are `slots`."""
        assert self.routing is not None and self.cache is not None and self.cache.experts is not None
        self.cache.experts.flatten(0, 1)[slots] = self.routing.recorded()[: len(slots)]

    def recorded_experts(self, sequence: SequenceState) -> Tensor | None:
        """Those of a sequence's cached tokens, [tokens, mixtures, k], on the CPU."""
        if self.routing is None or self.cache is None or not sequence.block_table:
            return None
        assert self.cache.experts is not None
        segment = Segment(sequence.num_cached, 0, sequence.block_table)
        return self.cache.experts.flatten(0, 1)[segment.slots(self.cache.block_size).to(self.device)].cpu()

    @on_all_ranks
    @torch.inference_mode()
    def forward(self, inputs: Sequence[ModelInput], segments: list[Segment], cached: bool) -> Tensor:
        """[tokens, hidden] of the inputs' segments, packed, and of the padding behind them.

        `cached`: their keys and values are, or go, into the cache.
        """
        uncached = InvariantUncached if self.invariant_kernels else Uncached
        attention: PrefillAttention = self.prefill_attention if cached else uncached
        spans = [(input, s.start, s.start + s.length) for input, s in zip(inputs, segments, strict=True)]
        slices = media_slices(spans)
        tokens = [token for input, start, stop in spans for token in input.ids[start:stop]]
        positions = [self.positions.prefill(*span) for span in spans]
        if pad := padding(len(tokens), self.row_multiple):
            tokens += [0] * pad
            segments = [*segments, Segment(pad)]
            positions.append(self.positions.packed([pad]))
        ids, packed = torch.tensor(tokens, device=self.device), torch.cat(positions, dim=-1).to(self.device)
        embed = partial(self._embed, ids, slices) if slices else None
        return hidden_states(self.model, ids, packed, attention(segments), embed)

    def _embed(self, ids: Tensor, slices: list[MediaSlice]) -> Embedded:
        assert self.family is not None  # check_requests refuses media for a text model
        return self.family.embed(self.model, ids, slices, memo=self.memo)

    # media

    @property
    def media_kinds(self) -> frozenset[MediaKind]:
        return frozenset() if self.family is None else self.family.kinds

    def wholes(self, input: ModelInput) -> list[tuple[int, int]]:
        """Runs of tokens that attend to each other in both directions, and so must be prefilled in one pass."""
        return whole_runs(input.media) if self.family is not None and self.family.sees_whole_images else []

    def whole_chunk(self, prompt: PromptState, count: int) -> int:
        """`count` tokens of a prompt, fewer or more so that no run of `wholes` is split."""
        end = prompt.num_scheduled + count
        for start, stop in self.wholes(prompt.input):
            if start < end < stop:
                return (start if start > prompt.num_scheduled else stop) - prompt.num_scheduled
        return count

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, V] by the same matrix product as the layers, in float32; as the weights with invariant kernels."""
        if self.invariant_kernels:
            return product(hidden.contiguous(), [head_weight(self.model)], [None])
        if self.product is F.linear:
            return chunk_logits(hidden, head_weight(self.model), 1.0, logit_softcap(self.model))
        pad = padding(len(hidden), self.row_multiple)
        head = self.model.get_output_embeddings()
        assert head is not None  # a language model has one
        logits = head(F.pad(hidden, (0, 0, 0, pad)))[: len(hidden)].float()
        cap = logit_softcap(self.model)
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def sampling_batch(self, sequences: Sequence[SequenceState], first: bool = False) -> SamplingBatch:
        requests = [sequence.request for sequence in sequences]
        seeds, penalties = [request.seed for request in requests], [sequence.penalties for sequence in sequences]
        return SamplingBatch.of([request.sampling for request in requests], seeds, self.device, penalties, first)


def cached_heads(config: Any) -> tuple[int, int]:
    """Key-value heads of the cache, and their width.

    Latent attention (DeepSeek) is cached expanded: keys and values of every head, in the width of the wider ones.
    """
    heads = config.num_attention_heads
    if getattr(config, "kv_lora_rank", None):
        return heads, max(config.qk_nope_head_dim + config.qk_rope_head_dim, config.v_head_dim)
    return config.num_key_value_heads, getattr(config, "head_dim", None) or config.hidden_size // heads


def media_slices(spans: Sequence[tuple[ModelInput, int, int]]) -> list[MediaSlice]:
    """What tokens start..stop of these inputs, packed into one stream, show of their media."""
    slices, at = [], 0
    for input, start, stop in spans:
        for media in input.media:
            first, end = max(start, media.offset), min(stop, media.offset + media.num_tokens)
            if first < end:
                slices.append(MediaSlice(media, at + first - start, first - media.offset, end - first))
        at += stop - start
    return slices
