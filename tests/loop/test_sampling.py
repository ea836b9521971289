"""From the config's keys to what the engine is asked."""

import json

import pytest

from burnish.errors import UserError
from burnish.loop.api import guarantees
from burnish.loop.sampling import decoder, word_ids
from burnish.rollout.engine import Sampling

ROLLOUT = "actor_rollout_ref.rollout"


def test_the_defaults_ask_for_nothing_special(make_run):
    run = make_run()
    assert run.rollout.sampling == Sampling(5) and run.rollout.val_sampling == Sampling(
        5, temperature=0.0, do_sample=False
    )


def test_where_a_response_ends_holds_for_validation_too(make_run):
    ends = ("stop=['7','1+']", "stop_token_ids=[4]", "min_tokens=2", "ignore_eos=true", "bad_words=['+']", "logprobs=2")
    run = make_run(*(f"{ROLLOUT}.{end}" for end in ends))
    plus, space = run.recorder.tokenizer.encode("+ ", add_special_tokens=False)
    for sampling in (run.rollout.sampling, run.rollout.val_sampling):
        assert sampling.stop == ("7", "1+") and sampling.stop_token_ids == (4,) and sampling.min_tokens == 2
        assert sampling.ignore_eos and sampling.bad_words == ((plus,), (space, plus)) and sampling.logprobs == 2


def test_how_tokens_are_drawn_does_not(make_run):
    names = ("min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
    run = make_run(*(f"{ROLLOUT}.{name}=0.5" for name in names), f"{ROLLOUT}.use_fire_sampling=true")
    assert run.rollout.sampling.fire and [getattr(run.rollout.sampling, name) for name in names] == [0.5] * 4
    assert (
        run.rollout.val_sampling.biases == []
        and not run.rollout.val_sampling.fire
        and run.rollout.val_sampling.repetition_penalty == 1
    )
    run = make_run(*(f"{ROLLOUT}.val_kwargs.{name}=0.5" for name in names))
    assert (
        run.rollout.sampling == Sampling(5) and [getattr(run.rollout.val_sampling, name) for name in names] == [0.5] * 4
    )


def test_seeds(make_run):
    run = make_run(f"{ROLLOUT}.seed=7")
    assert (run.rollout.sampling.seed, run.rollout.val_sampling.seed) == (7, 7)
    run = make_run(f"{ROLLOUT}.val_kwargs.seed=8")
    assert (run.rollout.sampling.seed, run.rollout.val_sampling.seed) == (None, 8)


def test_rewards_see_the_text_before_a_stop_string(make_run, next_prompts):
    texts = []

    def note(solution_str):
        texts.append(solution_str)
        return 0.0

    run = make_run(f"{ROLLOUT}.stop=['7']", f"{ROLLOUT}.n=8", "data.max_response_length=20", reward=note)
    batch = run.rollout.collect(next_prompts(run), step=1)
    seven = run.recorder.tokenizer.convert_tokens_to_ids("7")
    ended = [ids for ids in batch["responses"].lists() if ids[-1] == seven]
    assert ended and not any("7" in text for text in texts)
    assert sorted(texts) == sorted(batch["response_text"])
    assert not any(seven in ids[:-1] for ids in batch["responses"].lists())
    for ids, text, reason in zip(
        batch["responses"].lists(), batch["response_text"], batch["finish_reason"], strict=True
    ):
        assert text == decoder(run.recorder.tokenizer)(ids).removesuffix("7")
        assert ids[-1] != seven or reason == "stop"


def test_the_run_says_what_biases_its_ratios(make_run):
    said = guarantees(make_run(f"{ROLLOUT}.min_p=0.1", f"{ROLLOUT}.presence_penalty=0.5"))
    assert any("biased" in line and "min_p, presence_penalty" in line for line in said)
    assert not any("biased" in line for line in guarantees(make_run(f"{ROLLOUT}.stop=['7']")))


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("stop=['']", "end every response at once"),
        ("stop_token_ids=[5000]", "no such token"),
        ("bad_words=[' ']", "no tokens for this word"),
        ("bad_words=['xyz']", "no tokens for this word"),
        ("min_tokens=6", "response_length=5"),
    ],
)
def test_what_cannot_be_is_refused_before_a_model_is_loaded(make_run, monkeypatch, override, problem):
    monkeypatch.setattr("burnish.loop.roles.build_policy", lambda *_: pytest.fail("a model was loaded"))
    with pytest.raises(UserError, match=problem) as caught:
        make_run(f"{ROLLOUT}.{override}")
    assert caught.value.key == f"{ROLLOUT}.{override.partition('=')[0]}"


def test_a_word_with_and_without_its_space():
    class Words:
        """Knows three words; a space before "so" is part of it."""

        words = {"no": [5], " no": [6, 5], "so": [7], " so": [7]}

        def encode(self, text, add_special_tokens):
            assert not add_special_tokens
            return self.words.get(text, [6])

        def decode(self, ids):
            return next((text for text, known in self.words.items() if known == list(ids)), "")

    assert word_ids("no", Words(), "key") == [(5,), (6, 5)]
    assert word_ids(" so ", Words(), "key") == [(7,)]
    with pytest.raises(UserError, match="no tokens"):
        word_ids("yes", Words(), "key")


def test_likeliest_tokens_are_dumped(launch, rollouts, tmp_path):
    launch(f"{ROLLOUT}.logprobs=2", "trainer.total_training_steps=1")
    rows = [json.loads(line) for line in rollouts(tmp_path / "run")["1.jsonl"].splitlines()]
    for row in rows:
        shown = [token["token"] for token in row["logprobs"] if not token["token"].startswith("<")]
        assert "".join(shown) == row["output"]  # which has no special tokens
        for token in row["logprobs"]:
            assert len(token["top"]) == 2 and token["logprob"] <= token["top"][0][1] <= 0
    launch("trainer.total_training_steps=1", out="plain")
    assert "logprobs" not in json.loads(rollouts(tmp_path / "plain")["1.jsonl"].splitlines()[0])
