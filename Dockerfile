# Two images, neither of which runs as root:
#
#   docker build --target cpu --tag burnish:cpu .      # PyTorch's CPU build
#   docker build --target cuda --tag burnish:cuda .    # with CUDA, vLLM and Ray
#   docker run --rm burnish:cpu                        # the demo
#   docker run --rm --gpus all --ipc host --volume "$PWD:/workspace" burnish:cuda burnish train ...
#
# The wheels of PyTorch bring the CUDA libraries; the host needs the driver and the NVIDIA container toolkit.
FROM python:3.12-slim AS base
# The CPU kernels and Triton compile at run time.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 1000 burnish && install --directory --owner burnish /workspace
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /burnish

# torch has a layer of its own, which changes of the sources leave as it is.
FROM base AS cpu
COPY constraints.txt ./
RUN pip install --no-deps --extra-index-url https://download.pytorch.org/whl/cpu -c constraints.txt torch
COPY pyproject.toml README.md LICENSE ./
COPY burnish burnish
RUN pip install -c constraints.txt ".[datasets,math,peft,remote,tensorboard]"
USER burnish
WORKDIR /workspace
CMD ["burnish", "demo"]

FROM base AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
# KubeRay's probes of a pod call wget.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends wget \
    && rm -rf /var/lib/apt/lists/*
# The requirement of pyproject.toml's extra. vLLM pins the torch it was built for.
RUN pip install "vllm>=0.26,<0.33"
COPY pyproject.toml README.md LICENSE ./
COPY burnish burnish
RUN pip install ".[datasets,math,peft,ray,remote,tensorboard,vllm,wandb]"
USER burnish
WORKDIR /workspace
CMD ["burnish", "demo"]
