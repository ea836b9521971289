"""Names of the registries of conversations, each with a description in English and Chinese."""

from __future__ import annotations

from burnish.config.line import Line


def _by_name(formats: dict[str, Line]) -> dict[str, Line]:
    """A line for each of several names of the same thing."""
    return {name: line for names, line in formats.items() for name in names.split()}


TOOL_PARSERS = _by_name(
    {
        "hermes qwen qwen25": Line(
            "JSON between <tool_call> and </tool_call> (Qwen2.5, Qwen3, Hermes)",
            "<tool_call> 与 </tool_call> 之间的 JSON（Qwen2.5、Qwen3、Hermes）",
        ),
        "qwen3_coder qwen3_xml": Line(
            "<function=name><parameter=key>value</parameter></function> (Qwen3-Coder, Qwen3.5 and later, Nemotron 3)",
            "<function=名称><parameter=键>值</parameter></function>（Qwen3-Coder、Qwen3.5 及以后、Nemotron 3）",
        ),
        "gpt-oss openai": Line(
            "harmony messages to functions.name (gpt-oss)", "发往 functions.名称 的 harmony 消息（gpt-oss）"
        ),
        "llama3_json llama3 llama4_json": Line(
            'a turn that is {"name": ..., "parameters": ...} (Llama 3.1 and later)',
            '整轮为 {"name": ..., "parameters": ...}（Llama 3.1 及以后）',
        ),
        "glm glm45 glm47": Line(
            "<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call> (GLM-4.5 and later)",
            "<tool_call>名称<arg_key>键</arg_key><arg_value>值</arg_value></tool_call>（GLM-4.5 及以后）",
        ),
        "kimi kimi_k2": Line(
            "calls between special tokens, with ids (Kimi K2)", "特殊 token 之间的调用，带编号（Kimi K2）"
        ),
        "deepseek_v3 deepseekv3 deepseek_v31 deepseekv31": Line(
            "calls between special tokens (DeepSeek V3, R1, V3.1)", "特殊 token 之间的调用（DeepSeek V3、R1、V3.1）"
        ),
        "gemma4": Line(
            "<|tool_call>call:name{key:value}<tool_call|> (Gemma 4)",
            "<|tool_call>call:名称{键:值}<tool_call|>（Gemma 4）",
        ),
        "mistral": Line(
            "[TOOL_CALLS] before a JSON list, or before each name[ARGS]{...} (Mistral)",
            "[TOOL_CALLS] 后为 JSON 列表，或各个 名称[ARGS]{...}（Mistral）",
        ),
        "pythonic llama4_pythonic lfm2": Line(
            "[name(key=value), ...] (Llama 4, LFM2, Gemma 3, ToolACE)",
            "[名称(键=值), ...]（Llama 4、LFM2、Gemma 3、ToolACE）",
        ),
    }
)

HISTORIES = {
    "append": Line(
        "tokens are appended to what was sampled, thinking included", "在已采样的 token 之后追加，保留思考内容"
    ),
    "faithful": Line(
        "the conversation is rendered anew for every turn, as a chat server would; one row per unchanged stretch",
        "像聊天服务那样每轮重新渲染对话；渲染不变的每一段各成一行训练数据",
    ),
}

TOKENIZATION_CHECKS = {
    "disable": Line("no comparison", "不比较"),
    "strict": Line("every character counts", "逐字符比较"),
    "ignore_strippable": Line("white space may differ", "忽略空白字符的差异"),
}
