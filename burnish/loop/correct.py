"""Between reading and teaching: weights and rejection for what the engine's probabilities were not the trainer's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from burnish.algos.correction import Rejection, Weighting, correct
from burnish.batch import Batch, Ragged
from burnish.config.thresholds import rejection_bounds, weight_bounds

if TYPE_CHECKING:
    from burnish.config import TrainConfig
    from burnish.config.algorithm import RolloutCorrectionConfig

# The policy loss that stands in for the configured one, by loss_type.
STANDS_IN = {"ppo_clip": None, "reinforce": "gpg"}


@dataclass(frozen=True)
class Correction:
    """What a run does about the gap between engine and trainer; by default nothing."""

    weighting: Weighting | None = None
    rejections: tuple[Rejection, ...] = ()
    veto: float | None = None
    bypass: bool = False  # ratios are taken against the engine's log-probs
    loss: str | None = None  # in place of the configured one

    @staticmethod
    def of(cfg: TrainConfig) -> Correction:
        section, cap = cfg.algorithm.rollout_correction, cfg.actor_rollout_ref.actor.tis_imp_ratio_cap
        loss = STANDS_IN["reinforce" if section.use_policy_gradient else section.loss_type]
        loss = loss if section.bypass_mode else None
        weighting = None
        # In bypass mode a clipped loss holds the whole ratio of trainer to engine; a weight would count it twice.
        if loss is not None or not section.bypass_mode:
            weighting = _weighting(section) if cap is None else Weighting("token", high=cap)
        bounds = rejection_bounds(section.rollout_rs, section.rollout_rs_threshold, section.rollout_rs_threshold_lower)
        rejections = tuple(Rejection(measure, low, high) for measure, (low, high) in bounds)
        return Correction(weighting, rejections, section.rollout_token_veto_threshold, section.bypass_mode, loss)

    @property
    def acts(self) -> bool:
        """Is there anything to compute from both probabilities?"""
        return self.weighting is not None or bool(self.rejections) or self.veto is not None

    @property
    def old_column(self) -> str:
        """The log-probs that the loss and the KL in the reward count as the old policy's."""
        return "rollout_log_probs" if self.bypass else "old_log_probs"

    def apply(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        """Adds importance_weights and loss_mask, as far as asked for; nothing later in the step changes them."""
        if not self.acts:
            return batch, {}
        responses = batch["responses"]
        names = ("old_log_probs", "rollout_log_probs", "response_mask")
        found = correct(
            *(batch[name].flat for name in names), responses.lengths, self.weighting, self.rejections, self.veto
        )
        columns = {"importance_weights": found.weights, "loss_mask": found.kept}
        added = {name: Ragged.like(flat, responses) for name, flat in columns.items() if flat is not None}
        return batch.add(**added), found.metrics


def _weighting(section: RolloutCorrectionConfig) -> Weighting | None:
    if section.rollout_is is None:
        return None
    (low, high), drop = weight_bounds(section.rollout_is_threshold, section.rollout_is_threshold_lower)
    return Weighting(section.rollout_is, low or 0.0, high, drop, section.rollout_is_batch_normalize)
