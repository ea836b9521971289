"""Reward functions and a reward manager of a user, for the keys that say how they are called. Workers import it."""

import os
import socket


def writes():
    """Leaves a file beside this one, and takes it away again."""
    path = os.path.join(os.path.dirname(__file__), f"written_{os.getpid()}")
    with open(path, "w") as file:
        file.write("x")
    os.unlink(path)
    return 1.0


def connects():
    """To a port where nobody listens: refused where there is a network, unreachable where there is none."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1)
    except ConnectionRefusedError:
        return 1.0
    return 0.0


def reward_func(queries, prompts, labels):
    return {"rewards": [0.125], "scores": [1.0]}


def scaled(settings, reward=None, factor=1.0):
    """A reward manager with an argument."""
    from burnish.reward.score import Scorer

    class Scaled(Scorer):
        def _finish(self, job, outcome):
            super()._finish(job, outcome._replace(value=outcome.value * factor))

    return Scaled(settings, reward)
