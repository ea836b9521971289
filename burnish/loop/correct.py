"""Rollout correction: importance weights and rejection for the mismatch between engine and trainer log-probs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from burnish.algos.correction import Rejection, Weighting, correct
from burnish.batch import Batch, Ragged
from burnish.config.thresholds import rejection_bounds, weight_bounds

if TYPE_CHECKING:
    from burnish.config.algorithm import RolloutCorrectionConfig

# The policy loss that replaces the configured one, by loss_type.
REPLACED_BY = {"ppo_clip": None, "reinforce": "gpg"}


@dataclass(frozen=True)
class Correction:
    """How a run corrects the mismatch between engine and trainer; by default not at all."""

    weighting: Weighting | None = None
    rejections: tuple[Rejection, ...] = ()
    veto: float | None = None
    bypass: bool = False  # ratios are taken against the engine's log-probs
    loss: str | None = None  # in place of the configured one

    @staticmethod
    def of(section: RolloutCorrectionConfig, cap: float | None) -> Correction:
        """`cap` is actor.tis_imp_ratio_cap, the older spelling of a token-level weight."""
        loss = REPLACED_BY["reinforce" if section.use_policy_gradient else section.loss_type]
        loss = loss if section.bypass_mode else None
        weighting = None
        # In bypass mode the clipped ratio already is trainer to engine; a weight would count it twice.
        if loss is not None or not section.bypass_mode:
            weighting = _weighting(section) if cap is None else Weighting("token", high=cap)
        bounds = rejection_bounds(section.rollout_rs, section.rollout_rs_threshold, section.rollout_rs_threshold_lower)
        rejections = tuple(Rejection(measure, low, high) for measure, (low, high) in bounds)
        return Correction(weighting, rejections, section.rollout_token_veto_threshold, section.bypass_mode, loss)

    @property
    def acts(self) -> bool:
        """Whether log-probs of both engine and trainer are needed."""
        return self.weighting is not None or bool(self.rejections) or self.veto is not None

    @property
    def old_column(self) -> str:
        """The column of old log-probs, for the loss and the KL in the reward."""
        return "rollout_log_probs" if self.bypass else "old_log_probs"

    def apply(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        """Add importance_weights and loss_mask, as configured."""
        if not self.acts:
            return batch, {}
        responses = batch["responses"]
        result = correct(
            batch["old_log_probs"].flat,
            batch["rollout_log_probs"].flat,
            batch["response_mask"].flat,
            responses.lengths,
            self.weighting,
            self.rejections,
            self.veto,
        )
        columns = {"importance_weights": result.weights, "loss_mask": result.kept}
        added = {name: Ragged.like(flat, responses) for name, flat in columns.items() if flat is not None}
        return batch.add(**added), result.metrics


def _weighting(section: RolloutCorrectionConfig) -> Weighting | None:
    if section.rollout_is is None:
        return None
    (low, high), drop = weight_bounds(section.rollout_is_threshold, section.rollout_is_threshold_lower)
    return Weighting(section.rollout_is, low or 0.0, high, drop, section.rollout_is_batch_normalize)
