"""sandbox.*: how programs that a model wrote are run."""

from __future__ import annotations

from dataclasses import dataclass

from burnish.config.fields import above, at_least


@dataclass
class ProgramsConfig:
    """How programs that a model wrote are run on this machine."""

    allow_weak: bool = False
    """Run programs even where the system cannot isolate them: they then have resource limits, but may see what the user
    who trains may see."""

    timeout: float = above(10.0, 0)
    """Seconds one test case may take, on this machine or at a sandbox service."""

    memory_mb: int = at_least(1024, 64)
    """Memory one program may use with its children, in MiB."""

    output_kb: int = at_least(64, 1)
    """Most a program may print, in KiB; one that prints more is ended."""

    max_cases: int = at_least(10, 1)
    """Test cases to run of an answer: the first so many. The score is the share of them that it passes."""

    max_parallel: int | None = at_least(None, 1)
    """Programs to run at once on this machine; null is one per processor."""
