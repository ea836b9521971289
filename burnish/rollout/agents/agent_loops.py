"""verl's agent loops: users' classes with `run`, which call server_manager.generate with token ids."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from burnish.errors import UserError
from burnish.models.model_input import ModelInput
from burnish.rollout.agents.agent import AgentContext
from burnish.rollout.agents.failure import EpisodeFailed, failed
from burnish.rollout.agents.processor import Processor
from burnish.rollout.agents.recorded import RecordedCalls, failed_trajectory
from burnish.rollout.agents.sampling_params import sampling_fields, sampling_params
from burnish.rollout.agents.tool_agent import first_messages
from burnish.rollout.agents.user_files import accepted, load_class, read_entries, with_ids_by_default
from burnish.rollout.chat.forms import Message
from burnish.rollout.chat.history import originals
from burnish.rollout.chat.pictures import read_pictures
from burnish.rollout.engine import Completion
from burnish.rollout.episode import Episode, Prompt, Sampler
from burnish.rollout.trajectory import Trajectory

EXAMPLE = "- {name: my_agent, _target_: my_package.my_module.MyAgentLoop}"
REGISTRY_MODULE = "verl.experimental.agent_loop.agent_loop"  # of an installed verl, or the stand-in


class TokenOutput(list):
    """Sampled tokens: a list of ids, as verl 0.5 returns it, with the fields of newer versions."""

    def __init__(self, completion: Completion) -> None:
        super().__init__(completion.ids)
        self.token_ids = completion.ids
        self.log_probs = completion.log_probs
        self.stop_reason = "aborted" if completion.finish_reason == "abort" else "completed"
        self.routed_experts = completion.routed_experts
        self.num_preempted = 0
        self.extra_fields: dict[str, Any] = {}


class ServerManager:
    """What an agent loop samples with. Requests with one request_id are one dialogue and keep its KV."""

    def __init__(self, calls: RecordedCalls, what: str, prompt: ModelInput) -> None:
        self.calls = calls
        self.what = what
        self.prompt = prompt

    async def generate(
        self,
        request_id: Any,
        *,
        prompt_ids: Sequence[int],
        sampling_params: Mapping[str, Any] | None = None,
        image_data: Any = None,
        video_data: Any = None,
        **options: Any,
    ) -> TokenOutput:
        where = f"agent loop {self.what}"
        pictures = (read_pictures(image_data, "image", where), read_pictures(videos_of(video_data), "video", where))
        if not any(pictures) and tuple(prompt_ids[: len(self.prompt)]) == self.prompt.ids:
            pictures = originals(self.prompt)  # of a loop that does not pass them on
        fields = sampling_fields(dict(sampling_params or {}), where)
        return TokenOutput(await self.calls.generate(str(request_id), list(prompt_ids), fields, pictures))


class ConfigWrap:
    """verl gives its config to agent loops inside an object."""

    def __init__(self, config: Any) -> None:
        self.config = config


class VerlAgentLoop:
    """An agent loop as an episode. The class is instantiated once per conversation."""

    uses_session = True
    scores = True  # where it returns reward_score; otherwise the reward function is called

    def __init__(self, context: AgentContext, name: str, cls: Any, kwargs: Mapping[str, Any]) -> None:
        self.context = context
        self.name = name
        self.cls = cls
        self.kwargs = kwargs
        self.takes_messages = "messages" in inspect.signature(cls.run).parameters  # verl 0.5
        self.tokenizer = with_ids_by_default(context.tokenizer)
        vision = context.template.vision
        self.processor = None if vision is None else Processor(self.tokenizer, vision)
        self._config: Any = None

    async def run(self, prompt: Prompt, sampler: Sampler) -> Trajectory | list[Trajectory]:
        vision = self.context.template.vision
        calls = RecordedCalls(sampler, turn=self.context.limits.of_turn(prompt.sampling), vision=vision)
        try:
            output = await calls.run(self._start(prompt, calls), self.context.timeout, f"agent loop {self.name!r}")
            outputs = list(output) if isinstance(output, list | tuple) else [output]
            if not outputs:
                raise EpisodeFailed(f"agent loop {self.name!r} returned an empty list")
            return [self._trajectory(calls, entry) for entry in outputs]
        except UserError:
            raise
        except EpisodeFailed as failure:
            return failed_trajectory(prompt.input, str(failure))
        except Exception as error:  # an agent loop is the user's program and may raise anything
            return failed_trajectory(prompt.input, str(failed(f"agent loop {self.name!r}", error)))

    async def _start(self, prompt: Prompt, calls: RecordedCalls) -> Any:
        loop = self._instance(ServerManager(calls, self.name, prompt.input))
        params = sampling_params(prompt.sampling)
        row = row_fields(prompt, self.context.decode, self.name)
        if not self.takes_messages:
            return await loop.run(params, **accepted(loop.run, row))
        return await loop.run(**accepted(loop.run, {"messages": row["raw_prompt"], "sampling_params": params} | row))

    def _instance(self, server: ServerManager) -> Any:
        arguments = {
            "trainer_config": ConfigWrap(self.config),
            "server_manager": server,
            "tokenizer": self.tokenizer,
            "processor": self.processor,
            "dataset_cls": None,
            "data_config": ConfigWrap(self.config.data),
            "dataset_config": self.config.data,
            **self.kwargs,
        }
        if "config" in inspect.signature(self.cls.__init__).parameters:  # the first releases of verl 0.5
            arguments["config"] = self.config
        return self.cls(**accepted(self.cls.__init__, arguments))

    @property
    def config(self) -> Any:
        if self._config is None:
            from omegaconf import OmegaConf

            self._config = OmegaConf.create(dict(self.context.config))
        return self._config

    def _trajectory(self, calls: RecordedCalls, output: Any) -> Trajectory:
        what = f"agent loop {self.name!r}"
        missing = [name for name in ("prompt_ids", "response_ids", "response_mask") if not hasattr(output, name)]
        if missing:
            raise EpisodeFailed(f"{what} must return an AgentLoopOutput, not {type(output).__name__}")
        reward, extra = getattr(output, "reward_score", None), dict(getattr(output, "extra_fields", None) or {})
        extras = dict(extra.pop("reward_extra_info", None) or {}) | extra
        if reward is None:
            extras["num_turns"] = getattr(output, "num_turns", 0)
        return calls.trajectory(
            output.prompt_ids,
            output.response_ids,
            output.response_mask,
            what,
            score=None if reward is None else float(reward),
            extras=extras,
        )


def multi_modal_data(input: ModelInput) -> dict[str, list[Any]]:
    """The images and videos of a prompt under verl's names."""
    images, videos = originals(input)
    return {name: shown for name, shown in (("image", images), ("video", videos)) if shown}


def with_originals(messages: Sequence[Message], input: ModelInput) -> list[Message]:
    """Messages whose parts for images and videos have them."""
    remaining = dict(zip(("image", "video"), map(iter, originals(input)), strict=True))

    def filled(part: Any) -> Any:
        kind = part.get("type") if isinstance(part, Mapping) else None
        picture = next(remaining[kind], None) if kind in remaining else None
        return part if picture is None else {**part, kind: picture}

    return [
        {**message, "content": [filled(part) for part in message["content"]]}
        if isinstance(message.get("content"), list)
        else message
        for message in messages
    ]


def videos_of(value: Any) -> list[Any]:
    """verl passes videos with their metadata, or alone."""
    given = list(value) if isinstance(value, list | tuple) else [] if value is None else [value]
    return [entry[0] if isinstance(entry, tuple) else entry for entry in given]


def row_fields(prompt: Prompt, decode: Any, agent_name: str) -> dict[str, Any]:
    """The row of the data as verl passes it to `run`."""
    row = dict(prompt.row)
    columns = row.pop("dataset_row", (None, {}))[1]
    extra = dict(row.get("extra_info") or {})
    return {
        **columns,
        **row,
        "raw_prompt": with_originals(first_messages(prompt, decode), prompt.input),
        "reward_model": {**(columns.get("reward_model") or {}), "ground_truth": row.get("ground_truth")},
        "extra_info": extra,
        "index": extra.get("index"),
        "tools_kwargs": extra.get("tools_kwargs") or {},
        "interaction_kwargs": extra.get("interaction_kwargs") or {},
        "multi_modal_data": multi_modal_data(prompt.input),
        "uid": prompt.uid,
        "agent_name": agent_name,
    }


def load_agent_loops(path: str, key: str, context: AgentContext) -> dict[str, VerlAgentLoop]:
    """The agent loops of a YAML file: a list of {name, _target_, further arguments of the class}."""
    loops: dict[str, VerlAgentLoop] = {}
    for number, entry in enumerate(read_entries(path, None, key=key, example=EXAMPLE)):
        where = f"{path}: entry {number}"
        name, target = entry.pop("name", None), entry.pop("_target_", None)
        if not name or not target:
            raise UserError(f"{where} needs `name` and `_target_`", key=key, allowed=EXAMPLE)
        if name in loops:
            raise UserError(f"{where}: the name is used twice; names must differ", key=key, value=name)
        loops[str(name)] = agent_loop(context, str(name), load_class(target, key=key, where=where), entry, key)
    return loops


def agent_of(value: Any, name: str, context: AgentContext, key: str) -> Episode:
    """A user's agent: a class of an Episode, `run(prompt, sampler)`, or one of verl's agent loops."""
    run = getattr(value, "run", None)
    if inspect.isclass(value) and run is not None and {"prompt", "sampler"} <= inspect.signature(run).parameters.keys():
        episode: Any = value
        return episode(context)
    return agent_loop(context, name, value, {}, key)


def agent_loop(context: AgentContext, name: str, cls: Any, kwargs: Mapping[str, Any], key: str) -> VerlAgentLoop:
    if not inspect.isclass(cls) or not inspect.iscoroutinefunction(getattr(cls, "run", None)):
        raise UserError(
            "an agent loop is a class with `async def run(self, sampling_params, **row)`", key=key, value=name
        )
    return VerlAgentLoop(context, name, cls, kwargs)


def registered_agent_loops(context: AgentContext, key: str) -> dict[str, VerlAgentLoop]:
    """Agent loops that users' modules have registered with verl's @register so far."""
    registry = getattr(sys.modules.get(REGISTRY_MODULE), "_agent_loop_registry", {})
    loops = {}
    for name, entry in registry.items():
        kwargs = {key: value for key, value in dict(entry).items() if key not in ("_target_", "name")}
        target = entry["_target_"]
        cls = target if inspect.isclass(target) else load_class(target, key=key, where=f"agent loop {name!r}")
        if not cls.__module__.startswith("verl."):  # verl's own single_turn_agent and tool_agent are built in here
            loops[name] = agent_loop(context, name, cls, kwargs, key)
    return loops
