"""Tools over HTTP, with a stand-in for the service: search and SandboxFusion. And BM25, which needs no service."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from burnish.errors import UserError
from burnish.rollout.tools.builtin import http

from .conftest import use


class Service(BaseHTTPRequestHandler):
    """Answers with what the test has put into `answers`: a status and a body, or a function that writes it."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append(json.loads(body))
        status, answer = self.server.answers.pop(0) if len(self.server.answers) > 1 else self.server.answers[0]
        self.send_response(status)
        self.end_headers()
        if callable(answer):
            answer(self.wfile)
        else:
            self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

    def log_message(self, *arguments):
        pass


@pytest.fixture
def service(monkeypatch):
    monkeypatch.setattr(http, "PAUSE", 0.001)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    server.requests, server.answers = [], []
    server.url = f"http://127.0.0.1:{server.server_address[1]}/retrieve"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def search_yaml(url, more=""):
    return f"""
        tools:
          - class_name: verl.tools.search_tool.SearchTool
            config:
              retrieval_service_url: {url}
              num_workers: 120
              rate_limit: 60
              timeout: 30
              topk: 2
              type: native
              {more}
            tool_schema:
              type: function
              function:
                name: search
                description: Searches the web.
                parameters:
                  type: object
                  properties:
                    query_list:
                      type: array
                      item:
                        type: string
                      description: A list of queries.
                  required: [query_list]
    """


PASSAGES = {"result": [[{"document": {"contents": "Paris\nis a city"}, "score": 1.0}, {"document": {"contents": "X"}}]]}


def test_search_asks_the_service(service, load):
    tools = load(search_yaml(service.url))
    service.answers[:] = [(503, b""), (200, PASSAGES)]
    used = use(tools, ("search", {"query_list": ["capital of France"]}))
    text = "Doc 1 (Title: Paris)\nis a city\n\nDoc 2 (Title: X)"
    assert used.texts == [json.dumps({"result": text})]
    assert service.requests == [{"queries": ["capital of France"], "topk": 2, "return_scores": True}] * 2
    assert used.counts.metrics == {"search_queries": 1.0, "search_results": 2.0}
    assert tools[0].limits.max_concurrency == 60 and tools[0].limits.rate_limit is None
    assert load.notices == []


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        ([(404, b"")], "HTTP status 404"),
        ([(500, b"")], "HTTP status 500 (4 attempts)"),
        ([(200, b"<html>")], "the answer is not JSON"),
        ([(200, {"results": []})], "no list 'result'"),
        ([(200, lambda file: file.write(b"x" * (http.MAX_BYTES + 2**17)))], "longer than 8 MiB"),
        ([(302, b"")], "HTTP status 302"),
    ],
)
def test_a_service_that_fails_is_reported_to_the_model(service, load, answers, text):
    service.answers[:] = answers
    used = use(load(search_yaml(service.url)), ("search", {"query_list": ["x"]}))
    assert text in used.texts[0] and used.counts.failed == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"query_list": "x"}, "must be of type array, not string"),
        ({"query_list": []}, "must be a list of texts"),
        ({"query_list": [1]}, "must be a list of texts"),
        ({"query_list": ["x"] * 17}, "at most 16 queries"),
        ({}, "missing argument query_list"),
    ],
)
def test_arguments_of_search(service, load, arguments, text):
    used = use(load(search_yaml(service.url)), ("search", arguments))
    assert text in used.texts[0] and service.requests == []


def test_an_unreachable_service(load, service):
    service.shutdown()
    service.server_close()
    used = use(load(search_yaml(service.url)), ("search", {"query_list": ["x"]}))
    assert "ConnectionRefusedError" in used.texts[0] and used.counts.failed == 1


def test_settings_of_services_are_checked(load):
    with pytest.raises(UserError, match=r"config\.retrieval_service_url.*the address of its service"):
        load("tools: [{class_name: search}]")
    with pytest.raises(UserError, match=r"config\.topk='many'.*must be a whole number above 0"):
        load("tools: [{class_name: search, config: {retrieval_service_url: 'http://x/y', topk: many}}]")
    with pytest.raises(UserError, match="has the argument query_list"):
        load("tools: [{class_name: search, config: {retrieval_service_url: 'http://x/y'}, tool_schema: {name: s}}]")
    load("tools: [{class_name: search, config: {retrieval_service_url: 'http://x/y', colour: red}}]")
    assert "config.colour has no effect" in load.notices[0]


FUSION = """
    tools:
      - class_name: verl.tools.sandbox_fusion_tools.SandboxFusionTool
        config:
          sandbox_fusion_url: URL
          num_workers: 10
          enable_global_rate_limit: true
          rate_limit: 5
          default_timeout: 3
          default_language: python
          memory_limit_mb: 512
          type: native
        tool_schema:
          type: function
          function:
            name: code_interpreter
            description: A tool for executing code.
            parameters:
              type: object
              properties:
                code: {type: string, description: The code to execute.}
              required: [code]
"""


@pytest.mark.parametrize(
    ("answer", "text", "failed", "errors"),
    [
        ({"status": "Finished", "stdout": "42\n", "stderr": "", "return_code": 0}, "42\n", False, 0),
        ({"status": "Finished", "stdout": "a", "stderr": "Trace", "return_code": 1}, "aTrace", False, 1),
        ({"status": "TimeLimitExceeded", "stdout": "a"}, "aError: the program did not end within 3 s", True, None),
    ],
)
def test_sandbox_fusion(service, load, answer, text, failed, errors):
    tools = load(FUSION.replace("URL", service.url))
    service.answers[:] = [(200, {"status": "Success", "run_result": answer, "compile_result": None})]
    used = use(tools, ("code_interpreter", {"code": "print(42)"}))
    assert used.texts == [text] and used.results[0].failed == failed
    assert used.counts.metrics.get("code_errors") == errors
    (request,) = service.requests
    assert (request["code"], request["language"], request["run_timeout"]) == ("print(42)", "python", 3)
    assert request["memory_limit_MB"] == 512 and tools[0].limits.max_concurrency == 5


def test_a_sandbox_service_that_fails(service, load):
    service.answers[:] = [(200, {"status": "SandboxError", "message": "no workers"})]
    used = use(load(FUSION.replace("URL", service.url)), ("code_interpreter", {"code": "1"}))
    assert used.texts == ["Error: the sandbox service failed: no workers"] and used.counts.failed == 1


CORPUS = """\
{"title": "Paris", "text": "Paris is the capital of France."}
{"title": "Berlin", "text": "Berlin is the capital of Germany."}

{"contents": "Rust\\nA programming language"}
"""


def test_bm25_searches_a_corpus(write, load):
    write("corpus.jsonl", CORPUS)
    tools = load("tools: [{class_name: bm25, config: {corpus_path: corpus.jsonl, topk: 1}}]")  # beside the YAML file
    queries = (["Germany's capital", "language"], ["zzz"])
    used = use(tools, *(("search", {"query_list": query}) for query in queries))
    first = "Doc 1 (Title: Berlin)\nBerlin is the capital of Germany.\n---\nDoc 1 (Title: Rust)\nA programming language"
    assert json.loads(used.texts[0]) == {"result": first}
    assert json.loads(used.texts[1]) == {"result": "No search results found."}


@pytest.mark.parametrize(
    ("corpus", "problem"),
    [(None, "no such file"), ("", "the corpus is empty"), ('{"title": "x"}', "line 1 is not"), ("x", "1 is")],
)
def test_a_corpus_that_cannot_be_used(write, load, corpus, problem):
    if corpus is not None:
        write("corpus.jsonl", corpus)
    with pytest.raises(UserError, match=problem):
        load("tools: [{class_name: bm25, config: {corpus_path: corpus.jsonl}}]")
