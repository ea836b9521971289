"""SftWorker: one rank of `burnish sft`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnish.distributed.process_group import RankInfo
from burnish.jobs.sft.build import build_model, load_job_tokenizer, model_source, profile_plan
from burnish.loop.role_worker import RoleWorker
from burnish.profiling.process import ProcessProfiler

if TYPE_CHECKING:
    from burnish.config.sft import SftConfig


class SftWorker(RoleWorker):
    """Holds the model."""

    def __init__(self, info: RankInfo, cfg: SftConfig, roles: tuple[str, ...], total_steps: int) -> None:
        super().__init__(info, cfg.trainer.device, roles, cfg.trainer.seed)
        source = model_source(cfg)
        self.tokenizer = load_job_tokenizer(cfg, source)
        parallel = self.parallel_context(
            fsdp_size=cfg.model.fsdp_config.fsdp_size, sequence_size=cfg.ulysses_sequence_parallel_size
        )
        (role,) = roles
        self.host(role, build_model(cfg, source, self.device, total_steps, parallel))
        self.profiler = ProcessProfiler(profile_plan(cfg).for_rank(roles, info.rank), info.rank, self.device)
