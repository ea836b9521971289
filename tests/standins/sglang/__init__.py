"""In the place of SGLang, which cannot run everywhere.

`python -m sglang.launch_server`, with the folder above this one on PYTHONPATH, starts a server that speaks SGLang's
HTTP protocol around a tiny model, and takes nothing that SGLang would not take.
"""
