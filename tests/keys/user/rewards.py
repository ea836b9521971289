"""Reward functions of a user: what custom_reward_function.path names. Light, because worker processes import it."""

import asyncio
import os
import sys


def compute_score(solution_str, bonus=0.0):
    return len(solution_str.replace("7", "")) + bonus


def twice(solution_str):
    return 2.0 * len(solution_str)


def which_process():
    return {"score": 1.0, "parent": os.getppid(), "process": os.getpid()}


async def slow():
    await asyncio.sleep(0.2)
    return 1.0


def greedy():
    """Takes a lot of memory where the system can limit it; elsewhere it runs out of it by itself."""
    if not sys.platform.startswith("linux"):
        raise MemoryError
    return float(len(bytearray(400 * 2**20)))


def broken():
    raise ValueError("no idea")


def secret():
    return {"score": 1.0, "seen": os.environ.get("KEYS_ROW_TOKEN")}
