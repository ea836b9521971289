"""STAND_INS: which of their modules a user's file can import here, and what of ours stands behind each name."""

from __future__ import annotations

_TOOLS = "burnish.compat.shims.tools"
_SCORES = "burnish.compat.shims.scores"
_DATASET = "burnish.compat.shims.dataset"
_AGENTS = "burnish.compat.shims.agents"
_ALGOS = "burnish.compat.verl_core_algos"

_SCHEMAS = (
    "OpenAIFunctionCallSchema",
    "OpenAIFunctionParametersSchema",
    "OpenAIFunctionPropertySchema",
    "OpenAIFunctionSchema",
    "OpenAIFunctionToolSchema",
    "ToolResponse",
)
_MATH = {
    "compute_score": "math",
    "is_equiv": "is_equiv",
    "last_boxed_only_string": "last_boxed_only_string",
    "remove_boxed": "remove_boxed",
}

# module of theirs -> (module of ours, {their name: our name}). No names at all: every public one, under its own name.
STAND_INS: dict[str, tuple[str, dict[str, str]]] = {
    "verl.tools.base_tool": (_TOOLS, {name: name for name in ("BaseTool", *_SCHEMAS)}),
    "verl.tools.schemas": (_TOOLS, {name: name for name in _SCHEMAS}),
    "verl.utils.rollout_trace": (_TOOLS, {"rollout_trace_op": "rollout_trace_op"}),
    "verl.interactions.base": (_TOOLS, {"BaseInteraction": "BaseInteraction"}),
    "verl.utils.reward_score": (
        _SCORES,
        {"default_compute_score": "default_compute_score", "_default_compute_score": "default_compute_score"},
    ),
    "verl.utils.reward_score.gsm8k": (_SCORES, {"compute_score": "gsm8k", "extract_solution": "gsm8k_answer"}),
    "verl.utils.reward_score.math": (_SCORES, _MATH),
    "verl.utils.reward_score.math_reward": (_SCORES, _MATH),
    "verl.utils.reward_score.math_verify": (_SCORES, {"compute_score": "math_verify"}),
    "verl.utils.reward_score.math_dapo": (
        _SCORES,
        {"compute_score": "math_dapo", "normalize_final_answer": "normalize_final_answer"},
    ),
    "verl.utils.reward_score.geo3k": (
        _SCORES,
        {"compute_score": "geo3k", "acc_reward": "geo3k_acc", "format_reward": "geo3k_format"},
    ),
    "verl.utils.reward_score.search_r1_like_qa_em": (
        _SCORES,
        {
            "compute_score": "search_r1",
            "extract_solution": "search_r1_answer",
            "em_check": "em_check",
            "normalize_answer": "normalize_answer",
        },
    ),
    "verl.utils.dataset": (_DATASET, {"RLHFDataset": "RLHFDataset"}),
    "verl.utils.dataset.rl_dataset": (_DATASET, {"RLHFDataset": "RLHFDataset"}),
    "verl.trainer.ppo.core_algos": (_ALGOS, {}),
    "openrlhf.utils.agent": (
        _AGENTS,
        {name: name for name in ("AgentExecutorBase", "AgentInstanceBase", "MultiTurnAgentExecutor")},
    ),
}

PACKAGES = frozenset(
    ".".join(name.split(".")[:end]) for name in STAND_INS for end in range(1, len(name.split(".")))
)  # in between: they hold nothing but their modules
ROOTS = frozenset(name.partition(".")[0] for name in STAND_INS)
