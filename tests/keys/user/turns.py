"""A tool, and a format in which every turn of a random model is a call of it."""

from verl.tools.function_tool import function_tool
from verl.workers.rollout.chat_scheduler import CompletionCallback

from burnish.rollout.chat.tool_calls import ParsedTurn, ToolCall


@function_tool
def look() -> str:
    """Look."""
    return "4"


class EveryTurnCalls:
    def __init__(self, schemas):
        self.stop_tokens = tuple("123456")  # so that turns are short

    def parse(self, text):
        return ParsedTurn(text, [ToolCall("look")])


class SayMore(CompletionCallback):
    """Asks for one more turn."""

    async def __call__(self, messages, completions, info):
        messages.append(completions.choices[0].message.model_dump(exclude_none=True))
        info["asked"] = info.get("asked", 0) + 1
        if info["asked"] == 1:
            messages.append({"role": "user", "content": "2"})
            self.scheduler.submit_chat_completions(messages=messages, request_id=completions.id, info=info)
