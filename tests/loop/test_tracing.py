"""Traces of conversations: what backends get of every sample, with real libraries where they work without a server."""

import json
from types import SimpleNamespace

import pytest

from burnish.errors import UserError
from burnish.log.logger import RunInfo
from burnish.log.opentelemetry import OpenTelemetryTraces
from burnish.log.traces import TRACE_BACKENDS, Span, Traces
from burnish.registry import Entry

TRACE = "actor_rollout_ref.rollout.trace"


@pytest.fixture
def exported(monkeypatch):
    """Spans that OpenTelemetry's exporter to memory gets."""
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    entry = TRACE_BACKENDS["opentelemetry"]
    in_memory = Entry(entry.name, lambda: OpenTelemetryTraces(exporter), metadata=entry.metadata)
    monkeypatch.setitem(TRACE_BACKENDS.entries, "opentelemetry", in_memory)
    return exporter


def episode():
    turn = Span("generate", "generation", 1.0, 2.0, {"prompt_ids": [1]}, {"response_ids": [2]})
    tool = Span("observe", "tool", 2.0, 3.0, {}, {"text": "4"})
    reward = Span("reward", "reward", 3.0, 4.0, {}, {"score": 0.5})
    messages = [{"role": "user", "content": "2+2"}]
    attributes = {"uid": "u", "step": 3}
    return Span(
        "episode", "episode", 1.0, 4.0, {"messages": messages}, {"score": 0.5}, attributes, [turn, tool, reward]
    )


def test_every_sample_is_an_episode_with_its_turn_and_reward(launch, exported):
    launch(f"{TRACE}.backend=opentelemetry", f"{TRACE}.token2text=true", "trainer.total_training_steps=1")
    spans = exported.get_finished_spans()
    episodes = [span for span in spans if span.name == "episode"]
    assert len(episodes) == 8  # four prompts, two samples
    assert {span.name for span in spans} == {"episode", "generate", "reward"}
    first = episodes[0]
    children = [span for span in spans if span.parent is not None and span.parent.span_id == first.context.span_id]
    assert [span.name for span in children] == ["generate", "reward"]
    assert first.start_time <= children[0].start_time <= children[0].end_time <= first.end_time
    output, turn = json.loads(first.attributes["output.value"]), json.loads(children[0].attributes["output.value"])
    assert output["turns"][0]["role"] == "assistant" and isinstance(output["score"], float)
    assert turn["response_text"].startswith(output["response"]) and len(turn["response_ids"]) <= 5
    assert first.attributes["step"] == 1
    assert first.resource.attributes["run"] == "default"


def test_a_backend_that_fails_is_reported_once(monkeypatch, tmp_path):
    def fail(episodes):
        raise OSError("gone")

    broken = SimpleNamespace(start=lambda run: None, write=fail, close=lambda: None)
    metadata = {"library": "json"}
    monkeypatch.setitem(TRACE_BACKENDS.entries, "weave", Entry("weave", lambda: broken, metadata=metadata))
    notes = []
    traces = Traces("weave", RunInfo("p", "n", tmp_path), notes.append)
    for _ in range(2):
        traces.write([episode()])
    assert len(notes) == 1 and "gone" in notes[0]


def test_a_missing_library_names_the_extra(monkeypatch, tmp_path):
    entry = TRACE_BACKENDS["weave"]
    monkeypatch.setitem(TRACE_BACKENDS.entries, "weave", Entry("weave", entry.value, metadata={"library": "not_there"}))
    with pytest.raises(UserError, match="not_there is not installed") as caught:
        Traces("weave", RunInfo("p", "n", tmp_path), print)
    assert caught.value.key == f"{TRACE}.backend"


def test_traces_and_oversampling_exclude_one_another(make_run, exported):
    with pytest.raises(UserError, match="over_sample_rate"):
        make_run(f"{TRACE}.backend=opentelemetry", "actor_rollout_ref.rollout.over_sample_rate=0.5")


@pytest.mark.long
def test_mlflow_keeps_the_spans(tmp_path, monkeypatch):
    import mlflow

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    before = mlflow.get_tracking_uri()
    traces = Traces("mlflow", RunInfo("p", "n", tmp_path), pytest.fail)
    traces.write([episode()])
    client = traces._thread.tracker.client
    mlflow.flush_trace_async_logging()
    (found,) = client.search_traces(locations=[traces._thread.tracker.experiment_id])
    spans = {span.name: span for span in found.data.spans}
    assert set(spans) == {"episode", "generate", "observe", "reward"}
    assert spans["observe"].parent_id == spans["episode"].span_id
    assert spans["reward"].outputs == {"score": 0.5} and spans["generate"].span_type == "LLM"
    assert spans["generate"].end_time_ns - spans["generate"].start_time_ns == 10**9
    traces.close()
    assert mlflow.get_tracking_uri() == before


@pytest.mark.long
def test_trackio_keeps_the_spans(tmp_path, monkeypatch):
    monkeypatch.delenv("TRACKIO_SPACE_ID", raising=False)
    traces = Traces("trackio", RunInfo("traced", "n", tmp_path), pytest.fail)
    traces.write([episode()])
    traces.close()
    from trackio.sqlite_storage import SQLiteStorage

    rows = SQLiteStorage.get_traces("traced", "n-traces")
    assert "observe" in json.dumps(rows, default=str)


@pytest.mark.long
def test_weave_gets_the_calls(monkeypatch, tmp_path):
    """Its service cannot be reached here: a stand-in for the client checks calls against the real signatures."""
    import inspect

    import weave
    from weave.trace.weave_client import WeaveClient

    calls = []

    class ClientStandIn:
        def create_call(self, *arguments, **named):
            bound = inspect.signature(WeaveClient.create_call).bind(self, *arguments, **named).arguments
            calls.append(bound)
            return f"call {len(calls)}"

        def finish_call(self, *arguments, **named):
            calls.append(inspect.signature(WeaveClient.finish_call).bind(self, *arguments, **named).arguments)

        def finish(self):
            inspect.signature(WeaveClient.finish).bind(self)
            calls.append("finished")

    def init(*arguments, **named):
        inspect.signature(real).bind(*arguments, **named)
        return ClientStandIn()

    real = weave.init
    monkeypatch.setattr(weave, "init", init)
    traces = Traces("weave", RunInfo("p", "n", tmp_path), pytest.fail)
    traces.write([episode()])
    traces.close()
    opened = [call for call in calls if "op" in call and "inputs" in call]
    assert [call["op"] for call in opened] == ["episode", "generate", "observe", "reward"]
    assert [call.get("parent") for call in opened] == [None, "call 1", "call 1", "call 1"]
    assert calls[-1] == "finished" and calls[-2]["output"] == {"score": 0.5}
