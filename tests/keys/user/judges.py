"""Reward models of a user: what reward_model.model.custom_cls names."""


class Eager:
    """Likes many tokens."""

    def __init__(self, path, device):
        self.device = device

    def score(self, rows):
        return [float(len(row["response_ids"])) for row in rows]


class Terse(Eager):
    """Likes few."""

    def score(self, rows):
        return [-score for score in super().score(rows)]
