import logging
import os
import random

import pytest

from burnish.errors import UserError
from burnish.reward.managers import make_scorer
from burnish.reward.output import OutputLog
from burnish.reward.sample import Sample
from burnish.reward.score import Scorer, choose_source
from burnish.reward.settings import RewardSettings


def test_order_is_kept(scorer, sample):
    one = scorer(lambda solution_str: float(solution_str), num_workers=2)
    assert [score.value for score in one.score([sample(str(i)) for i in range(500)])] == [float(i) for i in range(500)]
    assert one.problems == {}


def test_rules_by_data_source(scorer, sample):
    one = scorer(reward_kwargs={"method": "flexible"})
    one.check_sources(["openai/gsm8k", "burnish/sums"])
    scores = one.score(
        [sample("is 42", source="openai/gsm8k"), sample("is 42"), sample(r"\boxed{42}", source="lighteval/MATH")]
    )
    assert [score.value for score in scores] == [1.0, 0.0, 1.0]


def test_an_unknown_source_is_an_error(scorer, sample):
    one = scorer()
    with pytest.raises(UserError, match="no built-in rule for this data source"):
        one.check_sources(["mine/own"])
    with pytest.raises(UserError, match="no built-in rule for this data source"):
        one.submit(sample(source="mine/own")).result()


def test_a_users_file_with_kwargs_and_extras(scorer, sample, reward_file):
    path = reward_file(
        """
        def compute_score(data_source, solution_str, ground_truth, extra_info=None, bonus=0.0):
            seen = [data_source, extra_info["index"]]
            return {"score": (solution_str == ground_truth) + bonus, "acc": True, "seen": seen}
        """
    )
    one = scorer(path=path, reward_kwargs={"bonus": 0.5})
    one.check_sources(["any/thing"])
    score = one.score([sample(source="any/thing", extra={"index": 9})])[0]
    assert score.value == 1.5
    assert score.extras == {"acc": True, "seen": ["any/thing", 9]}
    assert score.problem is None


def test_the_example_file_works(scorer, sample):
    from pathlib import Path

    path = str(Path(__file__).parents[2] / "examples" / "reward_function.py")
    score = scorer(path=path, reward_kwargs={"explanation_bonus": 0.1}).score([sample("I add them up to get 42")])[0]
    assert score.value == pytest.approx(1.1)
    assert score.extras == {"acc": True, "pred": "42", "explained": True}


@pytest.mark.parametrize(
    ("code", "settings", "text"),
    [
        ("x = 1", {}, r"has no 'compute_score'"),
        ("def compute_score(:", {}, r"raised SyntaxError on import"),
        ("import absent_module_xyz", {}, r"raised ModuleNotFoundError on import"),
        ("compute_score = 3", {}, r"is a int, not a function"),
        ("def compute_score(answer): return 1", {}, r"requires 'answer', which is not available"),
        ("def compute_score(solution_str): return 1", {"reward_kwargs": {"b": 1}}, r"does not accept 'b'"),
        ("import os; os._exit(4)", {}, r"died \(exit status 4\) while loading"),
    ],
)
def test_a_bad_file_is_refused_when_the_scorer_is_built(scorer, reward_file, code, settings, text):
    with pytest.raises(UserError, match=text):
        scorer(path=reward_file(code), **settings)


def test_a_missing_file_is_refused(scorer):
    with pytest.raises(UserError, match=r"custom_reward_function.path='/no/such.py': no such file"):
        scorer(path="/no/such.py")


def test_problems_are_counted_and_drained(scorer, sample):
    def fussy(solution_str):
        if solution_str == "nan":
            return float("nan")
        return int(solution_str)

    one = scorer(fussy, fallback_score=-1.0)
    scores = one.score([sample("nan", uid="n"), sample("x", uid="first"), sample("x", uid="second"), sample("7")])
    assert [score.value for score in scores] == [-1.0, -1.0, -1.0, 7.0]
    assert scores[0].problem == "returned nan instead of a finite number in test_score.py:fussy"
    assert scores[1].problem.startswith(
        "raised ValueError: invalid literal for int() with base 10: 'x' in test_score.py:fussy"
    )
    assert "return int(solution_str)" in scores[1].problem
    assert one.problems == {"raised": 2, "invalid result": 1}
    drained = one.drain_problems()
    assert [(problem.count, problem.first.uid) for problem in drained] == [(2, "first"), (1, "n")]
    assert one.drain_problems() == []


def test_distinct_problems_are_bounded(scorer, sample):
    def raises(solution_str):
        raise ValueError(solution_str)

    one = scorer(raises)
    one.score([sample(str(i)) for i in range(150)])
    drained = one.drain_problems()
    assert len(drained) == 101
    assert sum(problem.count for problem in drained) == 150


def test_stop_names_function_and_sample(scorer, sample):
    one = scorer(lambda solution_str: None, on_error="stop")
    with pytest.raises(UserError) as caught:
        one.submit(sample("r" * 500, uid="row-7", number=3, source="mine/own")).result()
    text = str(caught.value)
    assert "returned NoneType instead of a number in test_score.py:" in text
    assert "Sample 3 of uid 'row-7', data_source 'mine/own'" in text
    assert "r" * 200 + "..." in text
    assert "r" * 201 not in text
    assert "reward.on_error=fallback" in text


def test_an_unknown_on_error_is_refused(scorer):
    with pytest.raises(UserError, match=r"reward.on_error='ignore'.*fallback, stop"):
        scorer(on_error="ignore")


def test_secrets_are_not_visible(scorer, sample, monkeypatch):
    monkeypatch.setenv("BURNISH_TEST_TOKEN", "hunter2")
    monkeypatch.setenv("BURNISH_TEST_PLAIN", "fine")
    names = ("BURNISH_TEST_TOKEN", "BURNISH_TEST_PLAIN")

    def look(solution_str):
        if solution_str == "insist":
            return float(os.environ[names[0]])
        return {"score": 1.0, "seen": [os.environ.get(name) for name in names]}

    scores = scorer(look).score([sample(), sample("insist")])
    assert scores[0].extras == {"seen": [None, "fine"]}
    assert "BURNISH_TEST_TOKEN looks like a secret and is withheld" in scores[1].problem
    passed = scorer(look, pass_env=(names[0],)).score([sample()])[0]
    assert passed.extras == {"seen": ["hunter2", "fine"]}


def test_prints_are_logged_without_a_file_for_them(scorer, sample, caplog):
    caplog.set_level(logging.DEBUG, logger="burnish.reward")
    one = scorer(lambda solution_str: print("thinking about", solution_str) or 1.0)
    one.score([sample("a"), sample("b")])
    lines = [record.getMessage() for record in caplog.records if "printed" in record.getMessage()]
    assert len(lines) == 2
    assert lines[0].endswith("printed: thinking about a")


def test_randomness_follows_the_sample_not_the_worker(scorer, sample):
    samples = [sample(uid=f"row-{i}", number=i % 3) for i in range(20)]
    once, again = (
        [score.value for score in scorer(lambda solution_str: random.random(), num_workers=n).score(samples)]
        for n in (1, 2)
    )
    assert once == again
    assert len(set(once)) == 20


def test_a_function_from_a_notebook_cell(scorer, sample):
    cell = {"__name__": "__main__"}
    exec("weights = {'a': 2.0}\ndef reward(solution_str, ground_truth):\n    return weights[solution_str]", cell)
    assert scorer(cell["reward"]).score([sample("a")])[0].value == 2.0


def test_a_sample_that_cannot_be_pickled_is_named(scorer, sample):
    with pytest.raises(UserError, match="extra_info of uid 'row-0' cannot be sent to a worker"):
        scorer().submit(sample(extra={"generator": (i for i in ())})).result()


def test_precedence(reward_file, caplog):
    path = reward_file("def compute_score(solution_str): return 2.0")
    settings = RewardSettings(path=path)
    assert choose_source(RewardSettings(), None).label("burnish/sums") == "exact.py:exact"
    assert choose_source(settings, None).label("any") == "my_reward.py:compute_score"
    assert choose_source(settings, lambda solution_str: 3.0).key == "reward"
    assert f"custom_reward_function.path={path} is ignored" in caplog.text


def broken(solution_str):
    if solution_str.startswith("bad"):
        raise ValueError(f"cannot read {solution_str}")
    return 1.0


def test_failures_of_all_samples_are_an_error_with_the_first_cause(scorer, sample):
    one = scorer(broken)
    one.check_failures("step 1")
    one.score([sample("bad 1"), sample("bad 2"), sample("bad 1")])
    with pytest.raises(UserError) as caught:
        one.check_failures("step 3")
    text = str(caught.value)
    for part in (
        "the reward failed on all 3 samples of step 3. First cause: raised ValueError: cannot read bad 1",
        "test_score.py:broken",
        'test_score.py", line ',
        "sample 0 of uid 'row-0', response 'bad 1'",
        "reward.failure_threshold=null",
    ):
        assert part in text
    one.score([sample("good")])
    one.check_failures("step 3")
    report = one.drain()
    assert (report.num_samples, report.num_failed) == (4, 3)
    assert one.drain().num_samples == 0


@pytest.mark.parametrize(
    ("threshold", "num_bad", "stops"),
    [(0.5, 1, False), (0.5, 2, True), (None, 4, False), (0.0, 1, True), (1.0, 3, False)],
)
def test_the_failure_threshold_is_a_share_of_samples(scorer, sample, threshold, num_bad, stops):
    one = scorer(broken, failure_threshold=threshold)
    one.score([sample("bad" if number < num_bad else "good") for number in range(4)])
    if not stops:
        assert one.check_failures("step 1") is None
        return
    with pytest.raises(UserError, match=f"failed on {num_bad} of 4 samples of step 1"):
        one.check_failures("step 1")


def test_failures_of_a_batch_reward_count_for_each_sample(sample):
    def fails(solution_strs):
        raise KeyError("label")

    with make_scorer("batch", {}, RewardSettings(num_workers=1), fails) as one:
        one.score([sample(), sample()])
        with pytest.raises(
            UserError, match=r"failed on all 2 samples of step 1. First cause: raised KeyError: 'label'"
        ):
            one.check_failures("step 1")


def test_failures_of_a_reward_server_stop_too(sample):
    settings = RewardSettings(remote_url=("http://127.0.0.1:9/none",), remote_retries=1)
    with Scorer(settings) as one:
        one.score([sample()])
        with pytest.raises(UserError, match=r"^reward.remote_url.*failed on all 1 samples .*127.0.0.1:9/none"):
            one.check_failures("the validation at step 0")


PRINTS = """
    import sys, os
    print("at import")
    def compute_score(solution_str):
        print("to stdout", solution_str)
        print("to stderr", file=sys.stderr)
        os.write(1, b"to the descriptor\\n")
        os.system("echo from a child")
        return 1.0
"""


def test_what_a_function_prints_goes_to_a_file(scorer, sample, reward_file, tmp_path, capfd):
    log = tmp_path / "reward.log"
    one = scorer(path=reward_file(PRINTS), log_path=str(log))
    assert one.drain().notices == ()
    assert [score.value for score in one.score([sample("a"), sample("b")])] == [1.0, 1.0]
    text = log.read_text()
    for part in ("at import", "to stdout a", "to stdout b", "to stderr", "to the descriptor", "from a child"):
        assert part in text
    assert one.drain().notices == (f"the reward function prints; its output is in {log}",)
    one.score([sample("c")])
    assert one.drain().notices == ()
    assert "to stdout" not in "".join(capfd.readouterr())


def test_a_function_that_breaks_its_output_still_scores(scorer, sample, reward_file, tmp_path):
    code = """
        import os, sys
        def compute_score(solution_str):
            print("before")
            sys.stdout.close()
            os.close(1)
            return 2.0
    """
    scores = scorer(path=reward_file(code), log_path=str(tmp_path / "reward.log")).score([sample(), sample()])
    assert scores[0].value == 2.0


def test_the_file_of_output_is_bounded(tmp_path):
    log = OutputLog(tmp_path / "reward.log", max_bytes=1000)
    for number in range(100):
        log.write(f"sample {number}", "x" * 50)
    log.write("secret", "token sk-abcdefghij0123456789klmnop")
    assert "sk-abcdefghij" not in (tmp_path / "reward.log").read_text()
    log.write("last", "y" * 5000)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["reward.log", "reward.log.1"]
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())
    assert (tmp_path / "reward.log").read_text().endswith("y\n")


def test_columns_that_a_function_requires_are_checked(scorer):
    one = scorer(lambda completions, answer, ground_truth: [1.0])
    assert one.reads_rows and not one.reads_prompts
    one.check_columns(["answer", "data_source"])
    with pytest.raises(UserError, match=r"requires 'answer', which is no column of the data.*the columns data_"):
        one.check_columns(["data_source"])


def test_conversations_that_their_environments_score():
    """No rule has their data source, and those that did not fail count among the samples."""
    with Scorer(RewardSettings(num_workers=0)) as scorer:
        sample = Sample("environment/mine", "", "", {}, uid="row-0", sample=0)
        assert scorer.fail(sample, "environment mine: step failed").problem == "environment mine: step failed"
        with pytest.raises(UserError, match=r"all 1 samples of step 1. First cause: environment mine: step failed"):
            scorer.check_failures("step 1")
        scorer.already_scored()
        scorer.check_failures("step 1")
        assert scorer.drain().num_samples == 2
