"""All rows: one for every key of `burnish train` that acts."""

from . import actor, algorithm, critic, data, model, reward, rollout, trainer

ROWS = [row for section in (data, model, actor, critic, rollout, reward, algorithm, trainer) for row in section.ROWS]
