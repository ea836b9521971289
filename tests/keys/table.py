"""All rows: one for every key of `burnish train` that acts."""

from . import (
    actor,
    algorithm,
    credit,
    critic,
    data,
    data_more,
    gathering,
    model,
    models_more,
    reward,
    reward_model,
    rollout,
    sampling,
    sandbox,
    scoring,
    trainer,
)

SECTIONS = (
    data,
    data_more,
    model,
    models_more,
    actor,
    critic,
    rollout,
    reward,
    reward_model,
    sandbox,
    algorithm,
    credit,
    trainer,
    gathering,
    sampling,
    scoring,
)
ROWS = [row for section in SECTIONS for row in section.ROWS]
