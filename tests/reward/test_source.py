import pickle
import subprocess
import sys
import threading

import pytest

from burnish.errors import UserError
from burnish.reward.call import ARGUMENTS
from burnish.reward.source import FromCallable, FromFile, FromRules

VALUES = dict(zip(ARGUMENTS, ("burnish/sums", "42", "42", {}), strict=True))
BONUS = 3.0


def module_level(solution_str):
    return BONUS + len(solution_str)


def test_a_file_is_imported_in_the_worker(reward_file):
    source = FromFile(
        reward_file("def compute_score(solution_str, bonus=0): return len(solution_str) + bonus"), "compute_score"
    )
    assert source.label("any") == "my_reward.py:compute_score"
    assert pickle.loads(pickle.dumps(source)).callers({"bonus": 1})("any")(VALUES) == 3


def test_a_callable_that_is_not_importable_is_pickled_by_value():
    factor = 7
    for function, expected in ((lambda solution_str: factor * len(solution_str), 14), (module_level, 5.0)):
        payload = pickle.dumps(FromCallable(function))
        code = f"import pickle; print(pickle.loads({payload!r}).callers({{}})('x')({VALUES!r}))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout.strip() == str(expected), done.stderr


def test_an_importable_callable_is_pickled_by_name():
    from burnish.reward.exact import exact

    assert len(pickle.dumps(FromCallable(exact))) < 300
    assert FromCallable(exact).label("any") == "exact.py:exact"


def test_a_callable_that_cannot_be_pickled_is_refused():
    lock = threading.Lock()
    with pytest.raises(UserError, match=r"cannot be sent to a worker process.*custom_reward_function.path="):
        pickle.dumps(FromCallable(lambda solution_str: lock.locked()))


def test_unknown_data_sources_are_refused():
    FromRules().check_sources(["openai/gsm8k", "burnish/sums"], {})
    with pytest.raises(UserError) as caught:
        FromRules().check_sources(["burnish/sums", "openai/gsm8"], {})
    assert "data_source='openai/gsm8'" in str(caught.value)
    assert "Did you mean 'openai/gsm8k'?" in str(caught.value)
    assert "lighteval/MATH" in str(caught.value)
    assert "custom_reward_function.path=" in str(caught.value)


def test_a_data_source_never_names_code_to_run(reward_file):
    path = reward_file("raise SystemExit('was run')")
    with pytest.raises(UserError, match="no built-in rule"):
        FromRules().check_sources([f"{path}:compute_score"], {})


def test_rules_get_the_kwargs_they_accept():
    rules = FromRules()
    rules.check_sources(["openai/gsm8k", "burnish/sums"], {"method": "flexible"})
    values = VALUES | {"solution_str": "it is 42", "data_source": "openai/gsm8k"}
    assert rules.callers({"method": "flexible"})("openai/gsm8k")(values) == 1.0
    assert rules.callers({"method": "flexible"})("burnish/sums")(VALUES) == 1.0
    with pytest.raises(UserError, match=r"reward_kwargs.method='flexible'"):
        rules.check_sources(["burnish/sums"], {"method": "flexible"})
    with pytest.raises(UserError, match="strict, flexible"):
        rules.check_sources(["openai/gsm8k"], {"method": "loose"})
