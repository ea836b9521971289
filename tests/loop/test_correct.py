import pytest
import torch

from burnish.algos.correction import Rejection, Weighting
from burnish.batch import Batch, Ragged
from burnish.config import load
from burnish.loop.correct import Correction
from burnish.loop.fit import fit

from ..stepping import one_step

SECTION = "algorithm.rollout_correction"
CAP = "actor_rollout_ref.actor.tis_imp_ratio_cap"
PLAIN = (f"{SECTION}.bypass_mode=true", f"{SECTION}.loss_type=reinforce")


def asked(*overrides):
    cfg = load(list(overrides), check=False).cfg
    return Correction.of(cfg.algorithm.rollout_correction, cfg.actor_rollout_ref.actor.tis_imp_ratio_cap)


@pytest.mark.parametrize(
    ("overrides", "weighting"),
    [
        ((), None),
        (("rollout_is=token",), Weighting("token", 0.0, 2.0)),
        (("rollout_is=sequence", "rollout_is_threshold=5"), Weighting("sequence", 0.0, 5.0)),
        (("rollout_is=token", "rollout_is_threshold=0.5_5"), Weighting("token", 0.5, 5.0, drop=True)),
        (
            ("rollout_is=token", "rollout_is_threshold=5", "rollout_is_threshold_lower=0.5"),
            Weighting("token", 0.5, 5.0),
        ),
        (("rollout_is=token", "rollout_is_batch_normalize=true"), Weighting("token", normalize=True)),
        (("rollout_is=token", "bypass_mode=true"), None),
        (("rollout_is=token", "bypass_mode=true", "use_policy_gradient=true"), Weighting("token")),
    ],
)
def test_the_keys_of_weights(overrides, weighting):
    assert asked(*(f"{SECTION}.{text}" for text in overrides)).weighting == weighting


def test_the_older_cap_is_a_token_weight():
    assert asked(f"{CAP}=3").weighting == Weighting("token", high=3.0)
    assert asked(f"{CAP}=-1") == asked(f"{CAP}=null") == Correction()


def test_the_keys_of_rejection():
    found = asked(f"{SECTION}.rollout_rs=token_k1,seq_max_k2", f"{SECTION}.rollout_rs_threshold=0.6_1.6,2.5")
    assert found.rejections == (Rejection("token_k1", 0.6, 1.6), Rejection("seq_max_k2", None, 2.5))
    older = asked(
        f"{SECTION}.rollout_rs=geometric",
        f"{SECTION}.rollout_rs_threshold=1.001",
        f"{SECTION}.rollout_rs_threshold_lower=0.99",
        f"{SECTION}.rollout_token_veto_threshold=1e-4",
    )
    assert older.rejections == (Rejection("geometric", 0.99, 1.001),) and older.veto == 1e-4


def test_bypass_mode_chooses_column_and_loss():
    assert asked().old_column == "old_log_probs" and asked().loss is None
    clipped, plain = asked(f"{SECTION}.bypass_mode=true"), asked(*PLAIN)
    assert clipped.old_column == plain.old_column == "rollout_log_probs"
    assert (clipped.loss, plain.loss) == (None, "gpg")
    assert not clipped.acts and not plain.acts


def test_applying_adds_columns_and_edits_none():
    responses = Ragged.of([[1, 2, 3], [], [4]], torch.int64)
    batch = Batch(
        responses=responses,
        response_mask=Ragged.like(torch.tensor([1.0, 0.0, 1.0, 1.0]), responses),
        old_log_probs=Ragged.like(torch.tensor([-1.0, -9.0, -3.0, -1.0]), responses),
        rollout_log_probs=Ragged.like(torch.tensor([-1.5, -1.0, -1.0, -1.0]), responses),
    )
    done, metrics = Correction(Weighting(high=1.2), (Rejection("token", 0.5, 2.0),)).apply(batch)
    assert done["importance_weights"].flat.tolist() == pytest.approx([1.2, 0.0, 0.1353353, 1.0])
    assert done["loss_mask"].flat.tolist() == [1, 1, 0, 1]
    assert torch.equal(done["response_mask"].flat, batch["response_mask"].flat)
    assert metrics["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(1 / 3)
    untouched, nothing = Correction().apply(batch)
    assert untouched is batch and nothing == {}


WEIGHTS = (f"{SECTION}.rollout_is=token",)
REJECTION = (f"{SECTION}.rollout_rs=seq_mean_k3", f"{SECTION}.rollout_rs_threshold=0.001")
TWICE = ("actor_rollout_ref.actor.ppo_epochs=2",)


@pytest.mark.parametrize(
    ("overrides", "reads"),
    [
        ((), False),
        (WEIGHTS, True),
        (REJECTION, True),
        ((f"{SECTION}.rollout_token_veto_threshold=0.1",), True),
        ((f"{CAP}=2",), True),
        ((*TWICE, f"{SECTION}.bypass_mode=true"), False),
        ((*TWICE, *PLAIN), False),
        ((*PLAIN, *WEIGHTS), True),
        ((f"{SECTION}.bypass_mode=true", *REJECTION), True),
        ((f"{SECTION}.bypass_mode=true", "algorithm.use_kl_in_reward=true"), False),
    ],
)
def test_the_policy_is_read_where_a_correction_needs_it(make_run, overrides, reads):
    assert make_run(*overrides).learner.needs_old_log_probs(1, 8, current=True) is reads


@pytest.mark.parametrize(
    "overrides",
    [
        (*WEIGHTS, *REJECTION),
        (f"{SECTION}.bypass_mode=true", *TWICE),
        (*PLAIN, *WEIGHTS),
        (f"{SECTION}.bypass_mode=true", "algorithm.use_kl_in_reward=true"),
    ],
    ids=["both", "bypass", "reinforce", "bypass with KL"],
)
def test_a_step_measures_the_mismatch_whatever_is_done_about_it(make_run, next_prompts, overrides):
    run = make_run(*overrides)
    batch, metrics = one_step(run)
    assert {"old_log_probs", "entropys", "rollout_log_probs"} <= set(batch)
    # The engine and the trainer compute the same here, so a correction finds next to nothing to do.
    torch.testing.assert_close(batch["rollout_log_probs"].flat, batch["old_log_probs"].flat, rtol=0, atol=1e-4)
    if run.learner.correction.weighting is not None:
        assert metrics["rollout_corr/rollout_is_mean"] == pytest.approx(1.0, abs=1e-3)
    if run.learner.correction.rejections:
        assert metrics["rollout_corr/rollout_rs_masked_fraction"] == 0


def test_in_bypass_mode_one_update_has_the_gradient_of_recomputed_log_probs(make_run, next_prompts, weights):
    """With the engine's probabilities the trainer's own, both ways teach the same."""
    taught = []
    for name, overrides in {"plain": (), "bypass": (f"{SECTION}.bypass_mode=true",)}.items():
        run = make_run(*overrides, out=name)
        one_step(run)
        taught.append(weights(run.learner.policy))
    for name, weight in taught[0].items():
        torch.testing.assert_close(taught[1][name], weight, rtol=0, atol=1e-5)


def test_a_corrected_run_logs_its_numbers(make_run):
    run = make_run(*WEIGHTS, *REJECTION)
    metrics = fit(run).metrics
    names = {"rollout_is_mean", "rollout_is_truncated", "rollout_rs_masked_fraction", "kl", "k3_kl"}
    assert {f"rollout_corr/{name}" for name in names} <= set(metrics)
    assert metrics["training/rollout_actor_probs_pearson_corr"] > 0.999
