"""An engine whose every draft is verified, and drafts that are known to be right or wrong."""

from __future__ import annotations

from burnish.rollout.engines.builtin.draft_index import MIN_CHANCE, Acceptance, Drafts


class EveryDraft:
    """A policy that verifies every draft in every step, whatever that costs."""

    pays, least_chance = False, MIN_CHANCE

    def wants_drafts(self):
        return True

    def choose(self, chances, seconds):
        return [len(row) for row in chances]

    def add_step(self, num_sequences, rows, tokens, seconds, drafting, steps=1):
        pass


class Scripted:
    """An index whose drafts come from a function of a sequence."""

    def __init__(self, script):
        self.script = script
        self.acceptance = Acceptance()

    def restart(self):
        pass

    def update(self, sequences):
        return True

    def prepare(self, sequences, count):
        pass

    def draft(self, sequence, count, least):
        tokens = self.script(sequence)[:count]
        return Drafts(tokens, [0] * len(tokens), [1.0] * len(tokens))

    def record(self, sequence):
        pass


def verify_all(engine, script=None):
    """Let the engine verify every draft it has, by default those of its own index."""
    engine.decoder.drafter.policy = EveryDraft()
    if script is not None:
        engine.decoder.drafter.index = Scripted(script)
    return engine


def right_drafts(completions, seeds, wrong_at=()):
    """A script of what is known to come next, with a wrong token at some places of the response."""
    ids = {seed: completion.ids for seed, completion in zip(seeds, completions, strict=True)}

    def script(sequence):
        known = ids[sequence.request.seed]
        return [
            known[place] if place not in wrong_at else (known[place] + 1) % 20
            for place in range(len(sequence.tokens), len(known))
        ]

    return script
