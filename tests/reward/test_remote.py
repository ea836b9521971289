"""RemotePool against local reward servers, correct and broken ones."""

import socket
import time

import numpy as np
import pytest

from burnish.errors import UserError
from burnish.reward.sample import Sample

from .server import Server


@pytest.fixture
def server():
    """server(respond) starts a server, which is stopped after the test."""
    servers = []

    def start(respond=lambda request, number: {"rewards": [0.5]}):
        servers.append(Server(respond))
        return servers[-1]

    yield start
    for one in servers:
        one.shutdown()
        one.server_close()


@pytest.fixture
def remote(scorer):
    """remote(*urls, **settings): short time limits by default."""

    def make(*urls, **settings):
        quick = {"remote_timeout": 0.5, "remote_retries": 2, "remote_wait": 0.01}
        return scorer(remote_url=urls, **(quick | settings))

    return make


def make_sample(number=0, truth="42"):
    return Sample("any/thing", "r", truth, {}, f"row-{number}", 0, prompt="<s>p", query=f"<s>pr{number}</s>")


def refused_port():
    """A URL that refuses connections."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{closed.getsockname()[1]}/"


def test_one_request_per_sample_in_openrlhf_format(server, remote):
    response = {"rewards": [0.5], "scores": [0.0], "extra_logs": {"len": [3]}}
    one = server(lambda request, number: response)
    scorer = remote(one.url)
    scorer.check_sources(["any/thing"])
    assert scorer.reads_prompts
    score = scorer.score([make_sample()])[0]
    assert one.requests == [{"query": ["<s>pr0</s>"], "prompts": ["<s>p"], "labels": ["42"]}]
    assert (score.value, score.extras, score.problem) == (0.5, {"scores": 0.0, "len": 3}, None)


def test_arrays_in_labels_are_sent_as_lists(server, remote):
    one = server()
    remote(one.url).score([make_sample(truth={"target": np.array(["a", "b"])})])
    assert one.requests[0]["labels"] == [{"target": ["a", "b"]}]


def test_samples_are_distributed_round_robin(server, remote):
    first, second = server(), server(lambda request, number: {"rewards": [0.25]})
    scores = remote(first.url, second.url).score([make_sample(i) for i in range(6)])
    assert [score.value for score in scores] == [0.5, 0.25] * 3
    assert len(first.requests) == len(second.requests) == 3


def test_requests_are_concurrent(server, remote):
    def slow(request, number):
        time.sleep(0.2)
        return {"rewards": [1.0]}

    started = time.perf_counter()
    assert {score.value for score in remote(server(slow).url, remote_timeout=5.0).score([make_sample()] * 20)} == {1.0}
    assert time.perf_counter() - started < 2  # one after the other would take 4 s


def test_a_retry_goes_to_the_next_server(server, remote):
    broken, good = server(lambda request, number: (500, b"down")), server()
    scores = remote(broken.url, good.url, refused_port(), remote_retries=3).score([make_sample(i) for i in range(3)])
    assert [score.value for score in scores] == [0.5] * 3


def test_retries_wait(server, remote):
    one = server(lambda request, number: (503, b"") if number == 1 else {"rewards": [1.0]})
    started = time.perf_counter()
    assert remote(one.url, remote_wait=0.3).score([make_sample()])[0].value == 1.0
    assert time.perf_counter() - started > 0.3


def drip(request, number):
    def pieces():
        for _ in range(100):
            time.sleep(0.1)
            yield b" "

    return 200, pieces()


def hang(request, number):
    time.sleep(1.5)
    return {"rewards": [1.0]}


BAD = {
    "error": (lambda request, number: (500, b"out of memory"), "raised", "HTTP 500 out of memory"),
    "not found": (lambda request, number: (404, b""), "raised", "HTTP 404"),
    "hangs": (hang, "timed out", "no response within 0.5 s"),
    "drips": (drip, "timed out", "no response within 0.5 s"),
    "no JSON": (lambda request, number: (200, b"<html>"), "raised", "JSONDecodeError"),
    "empty": (lambda request, number: (200, b""), "raised", "JSONDecodeError"),
    "no text": (lambda request, number: (200, b"\xff\xfe\x00"), "raised", "Error"),
    "huge": (lambda request, number: (200, [b"[" * 2**16] * 40), "raised", "the response exceeds 1 MiB"),
    "deep": (lambda request, number: (200, b"[" * 200_000), "raised", "RecursionError"),
    "no rewards": (lambda request, number: {"score": 1}, "invalid result", "returned no 'rewards' (keys: 'score')"),
    "null": (lambda request, number: {"rewards": None}, "invalid result", "returned no 'rewards'"),
    "two rewards": (lambda request, number: {"rewards": [1, 2]}, "invalid result", "returned list instead of a number"),
    "nan": (lambda request, number: (200, b'{"rewards": [NaN]}'), "invalid result", "returned nan"),
    "text": (lambda request, number: {"rewards": ["good"]}, "invalid result", "returned str instead of a number"),
}


@pytest.mark.parametrize(("respond", "kind", "text"), BAD.values(), ids=BAD.keys())
def test_an_invalid_response_is_a_problem_that_names_the_server(server, remote, respond, kind, text):
    one = server(respond)
    scorer = remote(one.url, fallback_score=-1.0)
    score = scorer.score([make_sample()])[0]
    assert score.value == -1.0
    assert text in score.problem
    assert one.url in score.problem
    assert "(after 2 attempts)" in score.problem
    assert len(one.requests) == 2
    assert scorer.problems == {kind: 1}


def test_connection_refused(remote):
    url = refused_port()
    score = remote(url).score([make_sample()])[0]
    assert "refused" in score.problem
    assert url in score.problem


def test_on_error_stop_names_the_server(remote):
    url = refused_port()
    with pytest.raises(UserError, match=f"reward.remote_url='{url}'.*refused"):
        remote(url, on_error="stop").score([make_sample()])


def test_closing_does_not_wait_for_servers(server, remote):
    one = server(hang)
    scorer = remote(one.url, remote_timeout=60.0)
    futures = [scorer.submit(make_sample()) for _ in range(3)]
    time.sleep(0.2)
    started = time.perf_counter()
    scorer.close()
    assert time.perf_counter() - started < 0.5
    for future in futures:
        assert future.cancelled() or isinstance(future.exception(), RuntimeError)
    with pytest.raises(RuntimeError, match="closed"):
        scorer.submit(make_sample())


def test_urls_are_validated(remote):
    for urls in (("ftp://host/",), ("localhost:5000",), ("http://host/", "reward.py")):
        with pytest.raises(UserError, match="neither a Python file nor an http"):
            remote(*urls)


def test_a_python_file_with_reward_func(remote, reward_file):
    path = reward_file(
        """
        def reward_func(queries, prompts, labels, bonus=0.0, **kwargs):
            right = [query.endswith(label + "</s>") for query, label in zip(queries, labels)]
            return {"rewards": [float(one) + bonus for one in right], "scores": right, "extra_logs": {"p": prompts}}
        """
    )
    scorer = remote(path, reward_kwargs={"bonus": 0.5})
    assert scorer.reads_prompts
    score = scorer.score([make_sample(7, truth="7")])[0]
    assert (score.value, score.extras) == (1.5, {"scores": 1.0, "p": "<s>p"})


def test_a_python_file_is_checked_when_it_is_loaded(remote, reward_file):
    with pytest.raises(UserError, match=r"reward.remote_url=.*has no 'reward_func'"):
        remote(reward_file("def compute_score(solution_str): return 1.0"))
    with pytest.raises(UserError, match="no such file"):
        remote("nowhere.py")


@pytest.mark.parametrize("returned", ["None", "{'rewards': None}", "[]", "1 / 0"])
def test_a_python_file_that_gives_no_reward_is_a_problem(remote, reward_file, returned):
    scorer = remote(reward_file(f"def reward_func(queries, prompts, labels):\n    return {returned}"))
    assert scorer.score([make_sample()])[0].problem is not None
