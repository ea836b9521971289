"""Rows of ranks that share one sequence, for every role."""

from __future__ import annotations

from .megatron import ACTOR, CRITIC, JUDGE, REF, SEQUENCE_PARALLEL, sharing
from .models_more import GAE, JUDGED, KL
from .row import Row, Text

GIVEN: dict[str, tuple[Text, ...]] = {ACTOR: (), REF: KL, CRITIC: GAE, JUDGE: JUDGED}
ROWS = [
    Row(
        f"{section}.ulysses_sequence_parallel_size",
        "2",
        sharing(section),
        (*given, "trainer.n_gpus_per_node=2"),
        expected=SEQUENCE_PARALLEL,
    )
    for section, given in GIVEN.items()
]
