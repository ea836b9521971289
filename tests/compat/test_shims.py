"""Users' files may import from verl and OpenRLHF: stand-ins are found where the real packages are not installed."""

import asyncio
import importlib
import pickle
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest

from burnish.config.data import CustomClassConfig, DataConfig
from burnish.data.files import write_parquet
from burnish.data.load import load_train
from burnish.demo.tiny import make_tokenizer
from burnish.errors import UserError
from burnish.reward.sample import Sample
from burnish.reward.score import Scorer
from burnish.reward.settings import RewardSettings
from burnish.user_code import STAND_INS, load_user_attribute, load_user_module, stand_in_modules

ROOTS = ("verl", "openrlhf")


@pytest.fixture(autouse=True)
def fresh_imports(monkeypatch):
    """Each test starts and ends without stand-ins."""

    def forget():
        for name in [name for name in sys.modules if name.partition(".")[0] in ROOTS]:
            del sys.modules[name]

    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(STAND_INS)])
    forget()
    yield
    forget()


@pytest.fixture
def user_file(tmp_path):
    """user_file(code, name) -> path."""

    def write(code, name="mine.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(code))
        return str(path)

    return write


def load(path):
    return load_user_module(path, key="custom_reward_function.path")


def scores(path, responses, truth="42", source="openai/gsm8k", **settings):
    samples = [Sample(source, text, truth, {}, f"row-{n}", 0) for n, text in enumerate(responses)]
    with Scorer(RewardSettings(num_workers=1, path=path, **settings)) as scorer:
        return scorer.score(samples)


def test_a_reward_file_works_in_a_worker(user_file):
    path = user_file(
        """
        from verl.utils.reward_score import default_compute_score, gsm8k

        def compute_score(data_source, solution_str, ground_truth, extra_info=None):
            from verl.utils.reward_score import math_dapo as dapo  # when it is called, long after the file was loaded
            import verl.utils.reward_score.math as math
            base = default_compute_score(data_source, solution_str, ground_truth)
            soft = gsm8k.compute_score(solution_str, ground_truth, method="flexible", format_score=0.1)
            return {"score": base + soft, "dapo": dapo.compute_score(solution_str, ground_truth)["score"],
                    "boxed": math.compute_score(r"\\boxed{42}", ground_truth)}
        """
    )
    found = scores(path, ["#### 42", "Answer: 42", "41"])
    assert [score.problem for score in found] == [None] * 3
    assert [score.value for score in found] == [2.0, 1.0, 0.1]
    assert [score.extras for score in found] == [
        {"dapo": -1.0, "boxed": 1.0}, {"dapo": 1.0, "boxed": 1.0}, {"dapo": -1.0, "boxed": 1.0}
    ]  # fmt: skip


def test_stand_ins_are_found_only_once_a_user_file_is_loaded(user_file):
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'verl'$"):
        import verl  # noqa: F401
    load(user_file("import verl.utils.reward_score\nfrom verl.tools.base_tool import BaseTool\n"))
    assert sys.path[-1] == str(STAND_INS) and sys.path.count(str(STAND_INS)) == 1
    load(user_file("import openrlhf.utils.agent\n", "second.py"))
    assert sys.path.count(str(STAND_INS)) == 1


def test_importing_burnish_leaves_sys_path_and_builtins_alone():
    modules = "burnish, burnish.registry, burnish.user_code, burnish.compat.shims.tools, burnish.reward.score"
    code = (
        "import builtins, sys\nbefore = list(sys.path), list(sys.meta_path), builtins.__import__\n"
        f"import {modules}\nprint(before == (sys.path, sys.meta_path, builtins.__import__))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "True", done.stderr


def test_a_file_beside_is_a_users_file_too(user_file, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    user_file(
        """
        from verl.utils.reward_score.gsm8k import extract_solution
        def later():
            from verl.tools.schemas import ToolResponse
            return ToolResponse(text=extract_solution("#### 1,000"))
        """,
        "burnish_test_beside.py",
    )
    module = load(user_file("import json\nfrom burnish_test_beside import later\n"))
    assert module.later().text == "1000"
    assert module.json.dumps([1]) == "[1]"
    assert load_user_attribute("pkg://burnish_test_beside", "later", key="k")().text == "1000"


def test_pkg_is_a_users_file(user_file, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    user_file("from verl.interactions.base import BaseInteraction\n", "burnish_test_named.py")
    assert load_user_attribute("pkg://burnish_test_named", "BaseInteraction", key="k")({}).name == "interaction_agent"


def test_a_real_package_wins(user_file, tmp_path, monkeypatch):
    real = tmp_path / "real"
    (real / "verl").mkdir(parents=True)
    (real / "verl" / "__init__.py").write_text("here = 'the real one'\n")
    monkeypatch.syspath_prepend(str(real))
    assert load(user_file("import verl\n")).verl.here == "the real one"
    with pytest.raises(UserError, match=r"No module named 'verl\.tools'") as raised:
        load(user_file("import verl.tools.base_tool\n", "other.py"))
    assert "stand-in" not in str(raised.value)


def test_a_mere_folder_is_no_package(user_file, tmp_path, monkeypatch):
    (tmp_path / "verl" / "checkpoints").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load(user_file("from verl.tools.base_tool import BaseTool\n")).BaseTool.__name__ == "BaseTool"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("import verl.utils.reward_scores", "Did you mean verl.utils.reward_score"),
        ("from verl import DataProto", "no stand-in for it. Available: .*verl.tools.base_tool"),
        ("from verl.utils.reward_score import prime_code", "verl is not installed"),
        ("import openrlhf.trainer.ray_launcher_of_all", "Did you mean openrlhf.utils.agent"),
    ],
)
def test_an_unknown_module_names_the_stand_ins(user_file, line, said):
    with pytest.raises(UserError, match=said):
        load(user_file(line))


def test_an_unknown_module_of_a_module_beside(user_file, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    user_file("import verl.tools.base_tools\n", "burnish_test_broken.py")
    with pytest.raises(UserError, match=r"Did you mean verl\.tools\.base_tool"):
        load_user_module("pkg://burnish_test_broken", key="k")


def test_every_stand_in_holds_what_it_names(user_file):
    names = [name for root in ROOTS for name in stand_in_modules(root)]
    assert len(names) == 27 and "verl.utils.reward_score" in names and "verl.utils" not in names
    load(user_file(""))
    for name in names:
        module = importlib.import_module(name)
        public = getattr(module, "__all__", None) or [one for one in vars(module) if not one.startswith("_")]
        assert any(callable(getattr(module, one)) for one in public), name
        assert all(hasattr(module, one) for one in public), name


def test_no_torch_for_a_reward(user_file):
    path = user_file("from verl.utils.reward_score import gsm8k, math_dapo, geo3k, search_r1_like_qa_em\n")
    code = f"import sys; from burnish.user_code import load_user_module; load_user_module({path!r}, key='k')"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print('torch' in sys.modules)"], capture_output=True, text=True
    )
    assert done.stdout.strip() == "False", done.stderr


def test_scores_by_their_arguments(user_file):
    module = load(
        user_file(
            """
            from verl.utils.reward_score import default_compute_score, geo3k, gsm8k, math, math_dapo, math_reward
            from verl.utils.reward_score import math_verify, search_r1_like_qa_em as search
            """
        )
    )
    assert module.gsm8k.compute_score("#### 3", "4", format_score=0.2, score=5.0) == 0.2
    assert module.gsm8k.compute_score("no number", "4", format_score=0.2) == 0.0
    assert module.math.compute_score(r"so \boxed{\frac12}", r"\frac{1}{2}") == 1.0
    assert module.math.remove_boxed(module.math.last_boxed_only_string(r"a \boxed{7} b")) == "7"
    assert module.math_reward.is_equiv("0.5", r"\frac{1}{2}") and not module.math.is_equiv("1", None)
    assert module.math_verify.compute_score(r"\boxed{x^2+2x+1}", "(x+1)^2") == 1.0
    assert module.math_dapo.compute_score(r"Answer: 5 \boxed{5}", "5", strict_box_verify=True)["acc"] is True
    assert module.geo3k.compute_score(r"<think>a</think>\boxed{2}", "2") == pytest.approx(1.0)
    assert module.search.compute_score("<answer>The Cat.</answer>", {"target": ["cat"]}, score=2.0) == 2.0
    assert module.search.em_check("a dog", ["Dog"]) == 1
    assert module.default_compute_score("hiyouga/geometry3k", r"\boxed{3}", "3") == pytest.approx(0.9)
    with pytest.raises(NotImplementedError, match="mine/own"):
        module.default_compute_score("mine/own", "", "")


def test_a_tool_and_an_interaction(user_file):
    module = load(
        user_file(
            """
            from typing import Any
            from verl.interactions.base import BaseInteraction
            from verl.tools.base_tool import BaseTool
            from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
            from verl.utils.rollout_trace import rollout_trace_op

            class Adder(BaseTool):
                def __init__(self, config: dict, tool_schema: OpenAIFunctionToolSchema):
                    super().__init__(config, tool_schema)
                    self.sums = {}
                @rollout_trace_op
                async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs):
                    self.sums[instance_id] = parameters["a"] + parameters["b"]
                    return ToolResponse(text=str(self.sums[instance_id])), 0.5, {}
                async def calc_reward(self, instance_id, **kwargs):
                    return float(self.sums[instance_id])

            class Judge(BaseInteraction):
                async def generate_response(self, instance_id, messages, **kwargs):
                    return True, "well done", 1.0, {}
            """
        )
    )
    number = {"type": "number", "description": "one of two"}
    schema = {
        "type": "function",
        "function": {
            "name": "add",
            "description": "adds",
            "parameters": {"type": "object", "properties": {"a": number}},
        },
    }
    tool = module.Adder({}, module.OpenAIFunctionToolSchema.model_validate(schema))
    assert tool.name == "add" and tool.tool_schema.function.parameters.properties["a"].type == "number"
    dumped = tool.get_openai_tool_schema().model_dump(exclude_unset=True, exclude_none=True)
    assert dumped["function"]["parameters"]["properties"] == {"a": number}
    with pytest.raises(ValueError, match="OpenAIFunctionToolSchema needs function"):
        module.OpenAIFunctionToolSchema.model_validate({"type": "function"})

    async def use():
        name, first = await tool.create()
        assert first.is_empty()
        said, reward, _ = await tool.execute(name, {"a": 2, "b": 3})
        judged = await module.Judge({"name": "judge"}).generate_response(name, [])
        return said.text, reward, await tool.calc_reward(name), await tool.release(name), judged[1]

    assert asyncio.run(use()) == ("5", 0.5, 5.0, None, "well done")
    response = module.ToolResponse(text="x")
    assert pickle.loads(pickle.dumps(response)) == response


def test_a_dataset_class(user_file, tmp_path):
    rows = [
        {"prompt": [{"role": "user", "content": f"{n}+1="}], "data_source": "burnish/sums",
         "reward_model": {"ground_truth": str(n + 1)}, "extra_info": {"index": n}}
        for n in range(4)
    ]  # fmt: skip
    write_parquet(rows, tmp_path / "rows.parquet")
    path = user_file(
        """
        from verl.utils.dataset.rl_dataset import RLHFDataset

        class Odd(RLHFDataset):
            def maybe_filter_out_long_prompts(self, dataframe=None):
                return dataframe.filter(lambda row: row["extra_info"]["index"] % 2, num_proc=4)
            def _build_messages(self, example):
                messages = super()._build_messages(example)
                return [{**messages[0], "content": messages[0]["content"] + "?"}]
        """
    )
    cfg = DataConfig(
        train_files=[str(tmp_path / "rows.parquet")],
        custom_cls=CustomClassConfig(path=path, name="Odd"),
        train_batch_size=2,
        max_prompt_length=64,
    )
    dataset = load_train(cfg, make_tokenizer("0123456789+=?"), run_seed=0)
    assert len(dataset) == 2
    batch = dataset.batch([0, 1], 0)
    assert [truth for truth in batch["ground_truth"]] == ["2", "4"]
    assert [dataset[number]["prompt"][0]["content"] for number in (0, 1)] == ["1+1=?", "3+1=?"]


def test_an_agent(user_file):
    module = load(
        user_file(
            """
            from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

            class Twice(AgentInstanceBase):
                async def reset(self, states, **kwargs):
                    self.turns = 0
                    return {"observation": states["observation"] + "!"}
                async def step(self, states, **kwargs):
                    self.turns += 1
                    assert states["label"] == "L" and states["action_text"] == "ab"
                    return {"rewards": 0.5, "scores": self.turns, "environment_feedback": "go", "done": self.turns == 2}

            class AgentExecutor(MultiTurnAgentExecutor):
                def __init__(self):
                    super().__init__(Twice)
            """
        )
    )

    class Engine:
        async def generate(self, ids, params):
            logprobs = [{7: SimpleNamespace(logprob=-1.0)}, {8: SimpleNamespace(logprob=-2.0)}]
            return SimpleNamespace(outputs=[SimpleNamespace(token_ids=[7, 8], logprobs=logprobs, text="ab")])

    def tokenizer(text, add_special_tokens):
        return {"input_ids": [ord(letter) for letter in text]}

    params = SimpleNamespace(max_tokens=100)
    ran = asyncio.run(module.AgentExecutor().execute("q", "L", params, 50, tokenizer, Engine()))
    assert ran["observation_tokens"] == [113, 33, 7, 8, 103, 111, 7, 8, 103, 111]
    assert ran["action_ranges"] == [(2, 4), (6, 8)]
    assert ran["rollout_log_probs"] == [0, 0, -1, -2, 0, 0, -1, -2, 0, 0]
    assert (ran["reward"], ran["scores"], ran["truncated"], params.max_tokens) == (1.0, 2.0, False, 100)
