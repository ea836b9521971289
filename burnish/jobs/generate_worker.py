"""GenerateWorker: one engine of `burnish generate`, where every device has its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnish.distributed.process_group import RankInfo
from burnish.jobs.generate import filled_engine, load_job_tokenizer, model_source
from burnish.loop.role_worker import RoleWorker
from burnish.profiling.plan import NO_PLAN
from burnish.profiling.process import ProcessProfiler

if TYPE_CHECKING:
    from burnish.config.jobs import GenerateConfig


class GenerateWorker(RoleWorker):
    """Reads the model's weights itself: nothing is sent but requests and responses."""

    def __init__(self, info: RankInfo, cfg: GenerateConfig, roles: tuple[str, ...]) -> None:
        super().__init__(info, cfg.trainer.device, roles, cfg.trainer.seed)
        source = model_source(cfg)
        self.tokenizer = load_job_tokenizer(cfg, source)
        (role,) = roles
        self.host(role, filled_engine(cfg, source, self.device, self.tokenizer, own_thread=True))
        self.profiler = ProcessProfiler(NO_PLAN, info.rank, self.device)
