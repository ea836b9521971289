"""sandbox.*: execution of model-generated programs."""

from __future__ import annotations

from dataclasses import dataclass

from burnish.config.fields import above, at_least


@dataclass
class ProgramsConfig:
    """Execution of model-generated programs on this machine."""

    allow_weak: bool = False
    """Run programs even if the system cannot isolate them: with resource limits, but with all permissions of the
    training user."""

    timeout: float = above(10.0, 0)
    """Timeout in seconds of one test case, on this machine or in a sandbox service."""

    memory_mb: int = at_least(1024, 64)
    """Memory limit of a program and its children in MiB."""

    output_kb: int = at_least(64, 1)
    """Output limit of a program in KiB; programs that exceed it are killed."""

    max_cases: int = at_least(10, 1)
    """Number of test cases to run, taken from the start. The score is the fraction that passes."""

    max_parallel: int | None = at_least(None, 1)
    """Programs to run concurrently on this machine; null means one per CPU core."""
