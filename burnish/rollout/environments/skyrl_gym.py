"""skyrl-gym: environments over rows of data, which have the answers.

environment=skyrl_gym environment_kwargs.id=gsm8k
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from burnish.errors import UserError, nearest
from burnish.rollout.agents.failure import EpisodeFailed
from burnish.rollout.environments.environment import KEY, StepResult, WholePrompt, import_library, numbers, required


@import_library
def skyrl_gym() -> Any:
    import skyrl_gym

    return skyrl_gym


class SkyRLGymEnvironment:
    """`extras` and `env_config` are passed on; the row's ground truth and extra_info are among the extras."""

    def __init__(
        self, id: str, env_config: Any = None, extras: Mapping[str, Any] | None = None, max_turns: int | None = None
    ) -> None:
        self.id = id
        self.env_config = {} if env_config is None else env_config
        self.extras = {**(extras or {}), **({} if max_turns is None else {"max_turns": max_turns})}
        self.env: Any = None

    @staticmethod
    def check(kwargs: Mapping[str, Any]) -> None:
        id, known = required(kwargs, "id", "gsm8k"), list(skyrl_gym().registry)
        if id not in known and ":" not in str(id):
            closest = nearest(id, known)
            problem = "no such environment." + (f" Did you mean {closest!r}?" if closest else "")
            raise UserError(problem, key=f"{KEY}_kwargs.id", value=id, allowed=sorted(known))

    @staticmethod
    def rows(kwargs: Mapping[str, Any], size: int, seed: int) -> Iterator[dict[str, Any]]:
        raise UserError(
            "skyrl-gym scores rows of your own data and has none itself",
            key="NAME",
            value="skyrl_gym",
            hint="burnish data gsm8k openai/gsm8k train.parquet",
        )

    def reset(self, seed: int, row: Mapping[str, Any]) -> WholePrompt:
        extra, columns = dict(row.get("extra_info") or {}), row.get("dataset_row", (None, {}))[1]
        extras = {
            **columns,
            "reward_spec": {"method": "rule", "ground_truth": row.get("ground_truth")},
            "extra_info": extra,
            "data_source": row.get("data_source"),
            **self.extras,
        }
        self.env = skyrl_gym().make(self.id, env_config=self.env_config, extras=extras)
        messages = row.get("raw_prompt")
        if messages is None:
            raise EpisodeFailed("skyrl-gym needs prompts that are messages")
        prompt, _ = self.env.init([dict(message) for message in messages])
        return WholePrompt(prompt)

    def step(self, action: str) -> StepResult:
        output = self.env.step(action)
        metrics = numbers(self.env.get_metrics()) if output["done"] else {}
        return StepResult(output["observations"], float(output["reward"]), bool(output["done"]), metrics)

    def close(self) -> None:
        if self.env is not None:
            self.env.close()
