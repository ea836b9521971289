"""One kit for all rows, and the surroundings in which they are observed."""

import pytest
import transformers.dynamic_module_utils

import burnish.loop.fit
from burnish.config import Loaded

from .kit import USER, Kit


@pytest.fixture(scope="session")
def kit(tmp_path_factory, tiny_folder):
    return Kit(tmp_path_factory.mktemp("keys"), tiny_folder)


@pytest.fixture(autouse=True)
def surroundings(kit, monkeypatch):
    """A secret, a module to import, a place for the code of model repositories.

    Runs draw no curves and write an empty config.yaml: both would take longer than the run, and no key is seen in them.
    """
    monkeypatch.setenv("KEYS_ROW_TOKEN", "visible")
    monkeypatch.syspath_prepend(str(USER))
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(kit.root / "remote_code"))
    monkeypatch.setattr(Loaded, "yaml", lambda loaded: "")
    monkeypatch.setattr(burnish.loop.fit, "draw_curves", lambda metrics, picture: None)
