"""SlowWorker: what Burnish adds to vLLM's workers, and a pause before each token, for tests that must be in time."""

from __future__ import annotations

import time

from burnish.rollout.engines.vllm.worker import WorkerExtension


class SlowWorker(WorkerExtension):
    def burnish_slowly(self, seconds: str) -> None:
        """From now on; as text, as all that a server's calls carry."""
        sampler = self.model_runner.sampler
        if not hasattr(sampler, "fast"):
            sampler.fast = sampler.forward
        fast = sampler.fast

        def forward(*given, **named):
            time.sleep(float(seconds))
            return fast(*given, **named)

        sampler.forward = forward
