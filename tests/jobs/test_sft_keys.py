"""Every key of `burnish sft` that acts: one value, and the effect to observe."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch

from burnish.config import load
from burnish.config.status import status_of
from burnish.config.tree import tree
from burnish.demo.tiny import make_model, make_tokenizer
from burnish.distributed.process_group import RankInfo
from burnish.errors import UserError, WorkerDied
from burnish.jobs.sft.build import build, model_source, pools
from burnish.jobs.sft.fit import fit, resume, sft, start
from burnish.jobs.sft.worker import SftWorker
from burnish.log.file import read_metrics
from burnish.loop import backends
from burnish.loop.launch import WorkerProgram
from burnish.training import optim
from burnish.training.backend import has_dropout
from burnish.training.backends import module as backend
from burnish.training.offload import TensorOffload
from burnish.training.packing import PackedRows

from ..keys import ranks

HEADER = "{% if add_generation_prompt %}[assistant]{% endif %}"
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}" + HEADER
TOOLS = "{% if tools %}{{ tools | length }}{% endif %}{% if enable_thinking %}think{% endif %}" + TEMPLATE


@pytest.fixture(autouse=True)
def _no_curves(monkeypatch):
    """Drawing takes longer than these runs; test_sft.py draws."""
    monkeypatch.setattr("burnish.jobs.sft.fit.draw_curves", lambda metrics, picture: None)


class Kit:
    """A model and files on disk; `run` builds, `fit` trains two updates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0
        make_model(
            folder / "model", make_tokenizer("0123456789[];abcdefghijklmnopqrstuvwxyz"), hidden=16, layers=2, seed=0
        )
        make_model(
            folder / "other", make_tokenizer("0123456789[];abcdefghijklmnopqrstuvwxyz"), hidden=16, layers=2, seed=1
        )
        chat = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "cd"}]
        rows = [
            {
                "question": f"ab{i}",
                "answer": f"c{i % 3}",
                "asked": f"longer {i}",
                "said": "yes",
                "nested": {"in": f"n{i}"},
                "messages": chat,
                "other_messages": chat[:1] + chat,
                "odd_messages": [chat[0], {"role": "assistant", "content": "end|>"}],
                "tools": [{"name": "t"}],
                "other_tools": None,
                "enable_thinking": True,
                "other_thinking": False,
            }
            for i in range(8)
        ]
        (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "val.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:4]))
        (folder / "classes.py").write_text(CLASSES)
        (folder / "sft_key_library.py").write_text("loaded = True\n")
        splits = {"train": datasets.Dataset.from_list(rows), "test": datasets.Dataset.from_list(rows[:4])}
        datasets.DatasetDict(splits).save_to_disk(str(folder / "saved"))
        self.shm = folder / "shm"
        self.shm.mkdir()
        self.begun = folder / "begun"

    def checkpoint(self, step: int) -> str:
        """A checkpoint of a run that is created once."""
        if not self.begun.exists():
            self.fit((f"trainer.default_local_dir={self.begun}", "trainer.save_freq=1"))
        return str(self.begun / f"global_step_{step}")

    def adapter(self) -> str:
        """A saved adapter of rank 3."""
        run = self.run(("model.lora_rank=3",))
        adapters = run.model.backend.adapters
        adapters.write(self.folder / "adapter", adapters.state())
        return self.path("adapter")

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def overrides(self, more: tuple[str, ...]) -> list[str]:
        self.count += 1
        return [
            f"model.partial_pretrain={self.folder / 'model'}",
            f"data.train_files={self.folder / 'train.jsonl'}",
            "data.train_batch_size=4",
            f"trainer.default_local_dir={self.folder / f'run{self.count}'}",
            "trainer.logger=[file]",
            "trainer.total_training_steps=2",
            "optim.lr=1e-2",
            *more,
        ]

    def run(self, more: tuple[str, ...]) -> Any:
        return build(load(self.overrides(more), job="sft").cfg)

    def fit(self, more: tuple[str, ...]) -> tuple[Any, dict[int, dict[str, float]]]:
        loaded = load(self.overrides(more), job="sft")
        run = build(loaded.cfg)
        try:
            resume(run)
            start(run, loaded)
            fit(run)
        finally:
            run.close()
        metrics = read_metrics(run.folder.metrics) if run.folder.metrics.exists() else {}
        return run, metrics


CLASSES = """
class Doubled:
    def __init__(self, data_files, tokenizer, config, processor=None):
        self.rows = [{"question": "zz", "answer": "yy"}] * 6
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, index):
        return self.rows[index]

class Short(Doubled):
    def __len__(self):
        return 4
"""


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    return Kit(tmp_path_factory.mktemp("sft_keys"))


@pytest.fixture(autouse=True)
def surroundings(kit, monkeypatch):
    monkeypatch.syspath_prepend(str(kit.folder))
    monkeypatch.setattr("burnish.storage.SHARED_MEMORY", kit.shm)


def ids(kit: Kit, more: tuple[str, ...]) -> Any:
    """The tokens of the first example, and the number of examples."""
    try:
        data = kit.run(more).train_data
    except UserError as error:
        return error.text()
    return data.example(0).ids, len(data)


def losses(kit: Kit, more: tuple[str, ...]) -> Any:
    _, metrics = kit.fit(more)
    return [metrics[step]["train/loss"] for step in sorted(metrics)]


def of_run(look: Callable[[Any], Any]) -> Callable[[Kit, tuple[str, ...]], Any]:
    return lambda kit, more: look(kit.run(more))


def after(look: Callable[[Any, dict], Any]) -> Callable[[Kit, tuple[str, ...]], Any]:
    return lambda kit, more: look(*kit.fit(more))


def files(run: Any, metrics: dict) -> list[str]:
    return sorted(str(path.relative_to(run.folder.path)) for path in run.folder.path.rglob("*"))


def exported(kit: Kit, more: tuple[str, ...]) -> list[str]:
    """Files of the export folder after a run."""
    folder = kit.folder / "exported"
    shutil.rmtree(folder, ignore_errors=True)
    kit.fit(more)
    return sorted(path.name for path in folder.glob("*"))


def rates(run: Any, metrics: dict) -> list[float]:
    return [metrics[step]["train/lr"] for step in sorted(metrics)]


def model_of(run: Any) -> Any:
    return run.model.backend.model


def of_source(look: Callable[[Any], Any]) -> Callable[[Kit, tuple[str, ...]], Any]:
    return lambda kit, more: look(model_source(load(kit.overrides(more), job="sft").cfg))


def trained(kit: Kit, more: tuple[str, ...]) -> list[tuple[str, tuple[int, ...]]]:
    model = model_of(kit.run(more))
    return [(name, tuple(p.shape)) for name, p in model.named_parameters() if p.requires_grad]


def dtypes(kit: Kit, more: tuple[str, ...]) -> set[torch.dtype]:
    return {parameter.dtype for parameter in model_of(kit.run(more)).parameters()}


def buffers(kit: Kit, more: tuple[str, ...]) -> set[torch.dtype]:
    return {buffer.dtype for buffer in model_of(kit.run(more)).buffers()}


def scaling(kit: Kit, more: tuple[str, ...]) -> set[float]:
    layers = kit.run(more).model.backend.adapters.layers.values()
    return {scale for layer in layers for scale in layer.scaling.values()}


def first_adapter(kit: Kit, more: tuple[str, ...]) -> float:
    model = model_of(kit.run(more))
    return next(float(p.abs().sum()) for name, p in model.named_parameters() if "lora_A" in name)


def checkpointed(kit: Kit, more: tuple[str, ...]) -> int:
    """Number of tensors that a forward pass saves for the backward pass."""
    run, count = kit.run(more), 0

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += 1
        return tensor

    model_of(run).train()
    batch = run.train_data.batch(range(4))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run.model.backend.log_probs(PackedRows.of(batch, run.model.backend.device), 1.0, with_entropy=False)
    return count


def moved(kit: Kit, more: tuple[str, ...]) -> dict[str, int]:
    """Offload operations of an update, as if the device had its own memory."""
    counts = {"weights": 0, "state": 0, "on the CPU": 0, "activations": 0}
    fetch, on_cpu, saving = TensorOffload.load, optim.updated_on_cpu, backend.activations_on_cpu

    def counted(offload: TensorOffload) -> None:
        counts["weights" if offload is run.model.backend.offload else "state"] += 1
        fetch(offload)

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            counts[name] += 1
            return function(*args)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backends, "has_own_memory", lambda device: True)
        run = kit.run(more)
        patch.setattr(TensorOffload, "load", counted)
        patch.setattr(optim, "updated_on_cpu", counting("on the CPU", on_cpu))
        patch.setattr(backend, "activations_on_cpu", counting("activations", saving))
        run.model.update(run.train_data.batch(range(4)), 1)
    return counts


def in_shm(kit: Kit, more: tuple[str, ...]) -> int:
    """Number of files in the shared-memory cache, starting with an empty one."""
    shutil.rmtree(kit.shm)
    kit.shm.mkdir()
    kit.run(more)
    return sum(path.is_file() for path in kit.shm.rglob("*"))


def library_loaded(kit: Kit, more: tuple[str, ...]) -> bool:
    sys.modules.pop("sft_key_library", None)
    kit.run(more)
    return "sft_key_library" in sys.modules


def resumed(kit: Kit, more: tuple[str, ...]) -> tuple[int, int]:
    run = kit.run(more)
    resume(run)
    return run.step, run.model.optimizer.updates


def resumes(kit: Kit, more: tuple[str, ...]) -> bool:
    """Whether the run resumes, rather than being refused."""
    try:
        return kit.run(more) is not None
    except UserError:
        return False


def saved_by_main_thread(kit: Kit, more: tuple[str, ...]) -> bool:
    """Whether the main thread wrote the checkpoint."""
    run = build(load(kit.overrides(more), job="sft").cfg)
    writers: list[str] = []
    original = run.checkpoints.save
    object.__setattr__(
        run.checkpoints, "save", lambda *args: (writers.append(threading.current_thread().name), original(*args))
    )
    fit(run)
    return writers == [threading.main_thread().name]


def sharded(look: Callable[[str, Any], Any]) -> Callable[[Kit, tuple[str, ...]], Any]:
    """What the first of two ranks sees of its model."""

    def observe(kit: Kit, more: tuple[str, ...]) -> Any:
        cfg = load(kit.overrides(more), job="sft").cfg
        with ranks.two_ranks(), pytest.MonkeyPatch.context() as patch:
            patch.setattr("burnish.loop.role_worker.init_process_group", lambda info, device: None)
            worker = SftWorker(RankInfo(rank=0, size=2, local_rank=0, address=""), cfg, ("model",), 2)
            return look("model", worker.roles["model"].backend)

    return observe


def sequence_ranks(role: str, backend: Any) -> int:
    return backend.parallel.sequence_size


def launched(look: Callable[[Any], Any]) -> Callable[[Kit, tuple[str, ...]], Any]:
    """What the run's processes, or Ray, are told at the start."""

    def observe(kit: Kit, more: tuple[str, ...]) -> Any:
        cfg = load(kit.overrides(more), job="sft").cfg
        return look(ranks.Launch(cfg, pools(cfg), WorkerProgram("burnish.jobs.sft.worker:SftWorker", (2,))))

    return observe


def attempts(kit: Kit, more: tuple[str, ...]) -> int:
    """How often a run is built whose workers always die."""
    built = []

    def build(*arguments: Any, **options: Any) -> None:
        built.append(arguments)
        raise WorkerDied("rank 1", "was killed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("burnish.jobs.sft.fit.build", build)
        with pytest.raises(UserError):
            sft(kit.overrides(more))
    return len(built)


def is_watched(kit: Kit, more: tuple[str, ...]) -> bool:
    """Whether a watchdog looks after the run while it trains."""
    threads: set[str] = set()

    def look(run: Any) -> dict[str, float]:
        threads.update(thread.name for thread in threading.enumerate())
        return {}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("burnish.jobs.sft.fit.fault_metrics", look)
        sft(kit.overrides(more))
    return "burnish-watchdog" in threads


CHAT = (f"data.chat_template={json.dumps(TEMPLATE)}", "data.multiturn.enable=true")
WITH_TOOLS = (f"data.chat_template={json.dumps(TOOLS)}", "data.multiturn.enable=true")
LORA = ("model.lora_rank=4",)
TWO = ("trainer.n_gpus_per_node=2", "trainer.device=cpu")
RAY = (*TWO, "trainer.launcher=ray")
WRAP = "model.fsdp_config.wrap_policy"
HALVES = (*TWO, f"{WRAP}.transformer_layer_cls_to_wrap=[Qwen2Attention,Qwen2MLP]")
# The header of an answer ends where a special token of the tokenizer could begin.
SPLIT = TEMPLATE.replace("[assistant]", "<|im_").replace(
    "[{{ m.role }}]", "{% if m.role == 'assistant' %}<|im_{% else %}[u]{% endif %}"
)
ODD = (
    f"data.chat_template={json.dumps(SPLIT)}",
    "data.multiturn.enable=true",
    "data.multiturn.messages_key=odd_messages",
)
MORE_STEPS = ("trainer.total_training_steps=6", "optim.warmup_steps_ratio=0")


# key, value (or a file of the kit), effect to observe, other overrides
def profiles(run: Any, metrics: Any) -> list[str]:
    return sorted(path.name for path in (run.folder.path / "profile").rglob("*.gz"))


def has_shapes(run: Any, metrics: Any) -> bool:
    (path,) = (run.folder.path / "profile").rglob("*.gz")
    return b"Input Dims" in gzip.decompress(path.read_bytes())


def of_problem(kit: Kit, settings: tuple[str, ...]) -> str:
    """What a machine without a GPU says."""
    try:
        kit.run(settings)
    except UserError as error:
        return str(error)
    return ""


ROWS = [
    ("data.train_files", lambda kit: kit.path("val.jsonl"), of_run(lambda run: len(run.train_data)), ()),
    ("data.val_files", lambda kit: kit.path("val.jsonl"), of_run(lambda run: run.val_data is not None), ()),
    ("data.train_max_samples", "5", of_run(lambda run: len(run.train_data)), ()),
    ("data.val_max_samples", "2", of_run(lambda run: len(run.val_data)), ("val",)),
    ("data.train_batch_size", "2", of_run(lambda run: run.sampler.batch_size), ()),
    ("data.micro_batch_size", "1", of_run(lambda run: run.model.plan.micro_batch), ()),
    ("data.micro_batch_size_per_gpu", "2", of_run(lambda run: run.model.plan.micro_batch), ()),
    ("data.use_dynamic_bsz", "true", of_run(lambda run: run.model.plan.micro_batch), ()),
    (
        "data.max_token_len_per_gpu",
        "99",
        of_run(lambda run: run.model.plan.micro_batch),
        ("data.use_dynamic_bsz=true",),
    ),
    ("data.prompt_key", "asked", ids, ()),
    ("data.response_key", "said", ids, ()),
    ("data.prompt_dict_keys", "[in]", ids, ("data.prompt_key=nested",)),
    ("data.response_dict_keys", "[in]", ids, ("data.response_key=nested",)),
    ("data.multiturn.enable", "true", ids, CHAT[:1]),
    ("data.multiturn.messages_key", "other_messages", ids, CHAT),
    ("data.multiturn.tools_key", "other_tools", ids, WITH_TOOLS),
    ("data.multiturn.enable_thinking_key", "other_thinking", ids, WITH_TOOLS),
    ("data.max_length", "3", ids, ()),
    ("data.truncation", "left", ids, ("data.max_length=3",)),
    ("data.chat_template", json.dumps(TEMPLATE), ids, ()),
    ("data.apply_chat_template_kwargs", "{add_generation_prompt: false}", ids, CHAT[:1]),
    ("data.custom_cls.path", lambda kit: kit.path("classes.py"), ids, ("data.custom_cls.name=Doubled",)),
    ("data.custom_cls.name", "Short", ids, ("classes", "data.custom_cls.name=Doubled")),
    ("data.train_split", "test", of_run(lambda run: len(run.train_data)), ("saved",)),
    ("data.val_split", "train", of_run(lambda run: len(run.val_data)), ("saved val",)),
    ("data.apply_chat_template", "false", ids, ()),
    ("data.input_template", "'q {}'", ids, ("data.apply_chat_template=false",)),
    ("data.ignore_input_ids_mismatch", "true", ids, ODD),
    ("data.use_shm", "true", in_shm, ()),
    ("model.use_shm", "true", in_shm, ()),
    ("model.enable_gradient_checkpointing", "false", of_run(lambda run: model_of(run).is_gradient_checkpointing), ()),
    ("model.recompute.method", "auto", checkpointed, ()),
    ("model.recompute.num_layers", "1", checkpointed, ("model.recompute.method=block",)),
    ("model.attn_implementation", "eager", of_run(lambda run: model_of(run).config._attn_implementation), ()),
    ("model.load_in_4bit", "true", dtypes, LORA),
    ("model.lora_rank", "2", trained, ()),
    ("model.lora_alpha", "64", scaling, LORA),
    ("model.lora_dropout", "0.5", of_run(lambda run: has_dropout(model_of(run))), LORA),
    ("model.target_modules", "[q_proj]", trained, LORA),
    ("model.exclude_modules", "[q_proj]", trained, LORA),
    ("model.lora_adapter_path", lambda kit: kit.adapter(), trained, ()),
    ("model.lora.type", "dora", trained, LORA),
    ("model.lora.rank", "2", trained, ()),
    ("model.lora.alpha", "64", scaling, LORA),
    ("model.lora.dropout", "0.5", of_run(lambda run: has_dropout(model_of(run))), LORA),
    ("model.lora.target_modules", "[q_proj]", trained, LORA),
    ("model.lora.exclude_modules", "[q_proj]", trained, LORA),
    ("model.lora.lora_A_init_method", "normal", first_adapter, LORA),
    ("model.lora.lora_B_init_method", "normal", losses, LORA),
    ("model.lora.dtype", "float16", dtypes, LORA),
    ("model.lora.adapter_path", lambda kit: kit.adapter(), trained, ()),
    ("model.fsdp_config.model_dtype", "bfloat16", dtypes, ()),
    (
        "model.fsdp_config.mixed_precision.param_dtype",
        "bfloat16",
        of_run(lambda run: run.model.backend.compute_dtype),
        (),
    ),
    ("model.fsdp_config.mixed_precision.buffer_dtype", "bfloat16", buffers, ()),
    ("model.enable_activation_offload", "true", moved, ()),
    ("model.fsdp_config.param_offload", "true", moved, ()),
    ("model.fsdp_config.optimizer_offload", "true", moved, ()),
    ("model.fsdp_config.offload_policy", "true", moved, ()),
    ("model.fsdp_config.cpu_offload", "true", moved, ()),
    ("model.external_lib", "sft_key_library", library_loaded, ()),
    ("model.trust_remote_code", "true", of_source(lambda source: source.trust_remote_code), ()),
    ("model.use_liger", "true", ids, ()),
    ("trainer.default_hdfs_dir", lambda kit: kit.path("mirror"), of_run(lambda run: run.mirror is not None), ()),
    ("trainer.resume_mode", "disable", resumed, ("begun",)),
    ("trainer.resume_changes", "accept", resumes, ("begun", "optim.lr=0.5")),
    ("trainer.save_final", "false", after(files), ()),
    ("trainer.resume_from_path", lambda kit: kit.checkpoint(1), resumed, ("from", "trainer.resume_mode=resume_path")),
    ("trainer.checkpoint.load_contents", "[model]", resumed, ("begun",)),
    ("trainer.checkpoint.async_save", "true", saved_by_main_thread, ()),
    ("trainer.device", "cuda", ids, ("trainer.device=cpu",)),
    ("model.partial_pretrain", lambda kit: kit.path("other"), losses, ()),
    ("model.override_config", "{attention_dropout: 0.5}", losses, ()),
    ("optim.lr", "1e-3", after(rates), ()),
    ("optim.betas", "[0.5,0.5]", of_run(lambda run: run.model.optimizer.inner.defaults["betas"]), ()),
    (
        "optim.weight_decay",
        "0.5",
        of_run(lambda run: run.model.optimizer.inner.param_groups[0]["weight_decay"]),
        (),
    ),
    (
        "optim.decay_matrices_only",
        "true",
        of_run(lambda run: [group["weight_decay"] for group in run.model.optimizer.inner.param_groups]),
        (),
    ),
    ("optim.warmup_steps_ratio", "0.9", after(rates), ()),
    ("optim.lr_warmup_steps", "2", after(rates), ()),
    ("optim.clip_grad", "0.01", losses, ()),
    ("optim.lr_scheduler", "constant", after(rates), MORE_STEPS),
    ("optim.min_lr_ratio", "0.5", after(rates), MORE_STEPS),
    ("optim.num_cycles", "1.0", after(rates), MORE_STEPS),
    ("trainer.seed", "7", losses, ()),
    ("trainer.total_epochs", "1", of_run(lambda run: run.total_steps), ("trainer.total_training_steps=null",)),
    ("trainer.total_training_steps", "1", of_run(lambda run: run.total_steps), ()),
    ("trainer.project_name", "mine", of_run(lambda run: run.folder.path.name), ("named",)),
    ("trainer.experiment_name", "mine", of_run(lambda run: run.folder.path.name), ("named",)),
    ("trainer.logger", "[console]", after(lambda run, metrics: len(metrics)), ()),
    ("trainer.default_local_dir", lambda kit: kit.path("elsewhere"), of_run(lambda run: run.folder.path.name), ()),
    ("trainer.log_freq", "2", after(lambda run, metrics: sorted(metrics)), ()),
    ("trainer.export_dir", lambda kit: kit.path("exported"), exported, ()),
    ("trainer.save_freq", "1", after(files), ()),
    ("trainer.test_freq", "1", after(lambda run, metrics: ["val/loss" in metrics[s] for s in metrics]), ("val",)),
    ("trainer.max_ckpt_to_keep", "1", after(files), ("trainer.save_freq=1",)),
    ("trainer.checkpoint.save_contents", "[model,hf_model]", after(files), ()),
    (f"{WRAP}.min_num_params", "1000", sharded(ranks.units), TWO),
    (f"{WRAP}.transformer_layer_cls_to_wrap", "Qwen2MLP", sharded(ranks.units), TWO),
    ("model.fsdp_config.reshard_after_forward", "false", sharded(ranks.freed), TWO),
    ("model.fsdp_config.fsdp_size", "1", sharded(ranks.mesh), TWO),
    ("model.fsdp_config.forward_prefetch", "true", sharded(ranks.gathered_ahead), HALVES),
    ("model.fsdp_config.mixed_precision.reduce_dtype", "bf16", sharded(ranks.summed_in), TWO),
    ("ulysses_sequence_parallel_size", "2", sharded(sequence_ranks), TWO),
    ("trainer.nnodes", "2", launched(ranks.nodes), RAY),
    ("trainer.n_gpus_per_node", "4", launched(ranks.seats), TWO),
    ("trainer.launcher", "processes", launched(ranks.starter), RAY),
    ("trainer.ray_wait_register_center_timeout", "7", launched(ranks.patience), RAY),
    ("trainer.max_restarts", "1", attempts, ()),
    ("trainer.hang_timeout", "0", is_watched, ()),
    ("ray_init.num_cpus", "5", launched(ranks.ray_start), RAY),
    ("ray_init.options", "{address: auto}", launched(ranks.ray_start), RAY),
    ("ray_init.timeline_json_file", "timeline.json", launched(ranks.timelines), RAY),
    ("trainer.profile_steps", "[2]", after(profiles), ()),
    ("profiler.contents", "[cpu,shapes]", after(has_shapes), ("trainer.profile_steps=[2]",)),
    ("profiler.save_path", lambda kit: kit.path("recordings"), after(profiles), ("trainer.profile_steps=[2]",)),
    ("profiler.tool", "torch_memory", of_problem, ("trainer.profile_steps=[2]",)),
]


# Keys that need a vision-language model: tests/jobs/test_pictures.py.
SHOWN_WITH_PICTURES = {"data.image_key", "data.video_key", "data.mm_processor_kwargs", "data.invalid_media"}
SHOWN_WITH_PICTURES |= {"model.freeze_vision_tower"}


def test_every_acting_key_has_one_row():
    keys = [row[0] for row in ROWS]
    acting = {key for key in tree("sft").leaves if status_of(key, job="sft").kind == "acts"}
    assert acting - set(keys) == SHOWN_WITH_PICTURES and set(keys) - acting == set()
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_key_acts(kit, row):
    key, value, observe, settings = row
    known = {
        "saved": f"data.train_files={kit.path('saved')}",
        "saved val": f"data.val_files={kit.path('saved')}",
        "begun": f"trainer.default_local_dir={kit.begun}",
        "from": f"trainer.resume_from_path={kit.checkpoint(2)}",
        "val": f"data.val_files={kit.path('val.jsonl')}",
        "classes": f"data.custom_cls.path={kit.path('classes.py')}",
        "named": f"trainer.default_local_dir={kit.folder}/${{trainer.project_name}}-${{trainer.experiment_name}}",
    }
    settings = tuple(known.get(text, text) for text in settings)
    written = value if isinstance(value, str) else value(kit)
    assert observe(kit, settings) != observe(kit, (*settings, f"{key}={written}")), f"{key}={written} changes nothing"
