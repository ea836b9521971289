"""Reward servers that behave, and servers that do not. They are real ones, on this machine."""

import socket
import time

import numpy as np
import pytest

from burnish.errors import UserError
from burnish.reward.sample import Sample

from .server import Server


@pytest.fixture
def server():
    """server(answer) starts one; stopped after the test."""
    made = []

    def start(answer=lambda asked, number: {"rewards": [0.5]}):
        made.append(Server(answer))
        return made[-1]

    yield start
    for one in made:
        one.shutdown()
        one.server_close()


@pytest.fixture
def remote(scorer):
    """remote(*urls, **settings): impatient unless told otherwise."""

    def make(*urls, **settings):
        quick = {"remote_timeout": 0.5, "remote_retries": 2, "remote_wait": 0.01}
        return scorer(remote_url=urls, **(quick | settings))

    return make


def asked(number=0, truth="42"):
    return Sample("any/thing", "r", truth, {}, f"row-{number}", 0, prompt="<s>p", query=f"<s>pr{number}</s>")


def refused_port():
    """An address where nobody listens."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{closed.getsockname()[1]}/"


def test_one_sample_is_one_request_in_openrlhfs_words(server, remote):
    given = {"rewards": [0.5], "scores": [0.0], "extra_logs": {"len": [3]}}
    one = server(lambda asked, number: given)
    scorer = remote(one.url)
    scorer.check_sources(["any/thing"])
    assert scorer.reads_prompts
    score = scorer.score([asked()])[0]
    assert one.asked == [{"query": ["<s>pr0</s>"], "prompts": ["<s>p"], "labels": ["42"]}]
    assert (score.value, score.extras, score.problem) == (0.5, {"scores": 0.0, "len": 3}, None)


def test_labels_of_parquet_files_travel(server, remote):
    one = server()
    remote(one.url).score([asked(truth={"target": np.array(["a", "b"])})])
    assert one.asked[0]["labels"] == [{"target": ["a", "b"]}]


def test_servers_take_turns(server, remote):
    first, second = server(), server(lambda asked, number: {"rewards": [0.25]})
    scores = remote(first.url, second.url).score([asked(i) for i in range(6)])
    assert [score.value for score in scores] == [0.5, 0.25] * 3
    assert len(first.asked) == len(second.asked) == 3


def test_samples_are_asked_about_side_by_side(server, remote):
    def slow(asked, number):
        time.sleep(0.2)
        return {"rewards": [1.0]}

    started = time.perf_counter()
    assert {score.value for score in remote(server(slow).url, remote_timeout=5.0).score([asked()] * 20)} == {1.0}
    assert time.perf_counter() - started < 2  # one after the other would take 4 s


def test_a_server_that_fails_is_followed_by_the_next(server, remote):
    broken, good = server(lambda asked, number: (500, b"down")), server()
    scores = remote(broken.url, good.url, refused_port(), remote_retries=3).score([asked(i) for i in range(3)])
    assert [score.value for score in scores] == [0.5] * 3


def test_a_server_that_fails_once_is_asked_again_after_a_while(server, remote):
    one = server(lambda asked, number: (503, b"") if number == 1 else {"rewards": [1.0]})
    started = time.perf_counter()
    assert remote(one.url, remote_wait=0.3).score([asked()])[0].value == 1.0
    assert time.perf_counter() - started > 0.3


def drip(asked, number):
    def pieces():
        for _ in range(100):
            time.sleep(0.1)
            yield b" "

    return 200, pieces()


def hang(asked, number):
    time.sleep(1.5)
    return {"rewards": [1.0]}


BAD = {
    "error": (lambda asked, number: (500, b"out of memory"), "raised", "HTTP 500 out of memory"),
    "not found": (lambda asked, number: (404, b""), "raised", "HTTP 404"),
    "hangs": (hang, "timed out", "no answer within 0.5 s"),
    "drips": (drip, "timed out", "no answer within 0.5 s"),
    "no JSON": (lambda asked, number: (200, b"<html>"), "raised", "JSONDecodeError"),
    "empty": (lambda asked, number: (200, b""), "raised", "JSONDecodeError"),
    "no text": (lambda asked, number: (200, b"\xff\xfe\x00"), "raised", "Error"),
    "huge": (lambda asked, number: (200, [b"[" * 2**16] * 40), "raised", "an answer of more than 1 MiB"),
    "deep": (lambda asked, number: (200, b"[" * 200_000), "raised", "RecursionError"),
    "no rewards": (lambda asked, number: {"score": 1}, "invalid result", "gave no 'rewards' (keys: 'score')"),
    "null": (lambda asked, number: {"rewards": None}, "invalid result", "gave no 'rewards'"),
    "two rewards": (lambda asked, number: {"rewards": [1, 2]}, "invalid result", "returned list instead of a number"),
    "nan": (lambda asked, number: (200, b'{"rewards": [NaN]}'), "invalid result", "returned nan"),
    "text": (lambda asked, number: {"rewards": ["good"]}, "invalid result", "returned str instead of a number"),
}


@pytest.mark.parametrize(("answer", "kind", "text"), BAD.values(), ids=BAD.keys())
def test_a_bad_answer_is_a_problem_that_names_the_server(server, remote, answer, kind, text):
    one = server(answer)
    scorer = remote(one.url, fallback_score=-1.0)
    score = scorer.score([asked()])[0]
    assert score.value == -1.0
    assert text in score.problem
    assert one.url in score.problem
    assert "(after 2 tries)" in score.problem
    assert len(one.asked) == 2
    assert scorer.problems == {kind: 1}


def test_nobody_listens(remote):
    url = refused_port()
    score = remote(url).score([asked()])[0]
    assert "refused" in score.problem
    assert url in score.problem


def test_stop_stops_and_names_the_server(remote):
    url = refused_port()
    with pytest.raises(UserError, match=f"reward.remote_url='{url}'.*refused"):
        remote(url, on_error="stop").score([asked()])


def test_closing_waits_for_no_server(server, remote):
    one = server(hang)
    scorer = remote(one.url, remote_timeout=60.0)
    futures = [scorer.submit(asked()) for _ in range(3)]
    time.sleep(0.2)
    started = time.perf_counter()
    scorer.close()
    assert time.perf_counter() - started < 0.5
    for future in futures:
        assert future.cancelled() or isinstance(future.exception(), RuntimeError)
    with pytest.raises(RuntimeError, match="closed"):
        scorer.submit(asked())


def test_what_is_no_address_is_refused(remote):
    for urls in (("ftp://host/",), ("localhost:5000",), ("http://host/", "reward.py")):
        with pytest.raises(UserError, match="is neither a Python file nor an address"):
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
    score = scorer.score([asked(7, truth="7")])[0]
    assert (score.value, score.extras) == (1.5, {"scores": 1.0, "p": "<s>p"})


def test_a_python_file_is_checked_when_it_is_loaded(remote, reward_file):
    with pytest.raises(UserError, match=r"reward.remote_url=.*has no 'reward_func'"):
        remote(reward_file("def compute_score(solution_str): return 1.0"))
    with pytest.raises(UserError, match="no such file"):
        remote("nowhere.py")


@pytest.mark.parametrize("returned", ["None", "{'rewards': None}", "[]", "1 / 0"])
def test_a_python_file_that_gives_no_reward_is_a_problem(remote, reward_file, returned):
    scorer = remote(reward_file(f"def reward_func(queries, prompts, labels):\n    return {returned}"))
    assert scorer.score([asked()])[0].problem is not None
