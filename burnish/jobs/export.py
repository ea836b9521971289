"""burnish export: convert a checkpoint to a Hugging Face model folder."""

from __future__ import annotations

from burnish.training.export import ExportOptions, export, role_folder

__all__ = ["ExportOptions", "export", "role_folder"]
