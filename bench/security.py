"""The table of docs/security.md: runs tests/security and counts, by class, the attacks tried and contained.

    python bench/security.py                        # all attacks; replaces bench/results/security.json
    python bench/security.py -k terminal            # a part of them; writes nothing

Arguments are passed to pytest. An attack is what a test's `attack` marker describes; it is contained if all tests with
that description pass.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import pytest
from tables import ROOT, add_option, save, table

COLUMNS = {"class": "{kind}", "attacks tried": "{tried}", "contained": "{contained}"}


class Attacks:
    """A pytest plugin that records whether each attack was contained."""

    def __init__(self) -> None:
        self.contained: dict[tuple[str, str], bool] = {}  # (class, description) -> all its tests passed

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item):
        report = yield
        marker = item.get_closest_marker("attack")
        if marker is not None:
            self.contained[marker.args] = self.contained.get(marker.args, True) and report.passed
        return report

    def rows(self) -> list[dict[str, Any]]:
        """One row per class, and their sum."""
        kinds = sorted({kind for kind, _ in self.contained})
        results = {kind: [held for (of, _), held in self.contained.items() if of == kind] for kind in kinds}
        results["all"] = list(self.contained.values())
        return [{"kind": kind, "tried": len(held), "contained": sum(held)} for kind, held in results.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_option(parser)
    args, options = parser.parse_known_args()
    attacks = Attacks()
    status = pytest.main([str(ROOT / "tests" / "security"), "-q", *options], plugins=[attacks])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return int(status)
    print(table(COLUMNS, attacks.rows()), end="")
    listed = [{"kind": kind, "attack": text, "contained": held} for (kind, text), held in attacks.contained.items()]
    save(args, "security", COLUMNS, attacks.rows(), full=not options, attacks=listed)
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
