"""The names of every table, each with one line in English and in Chinese. A law compares them with the tables."""

from __future__ import annotations

from typing import NamedTuple


class Line(NamedTuple):
    """What a name means, in one line."""

    en: str
    zh: str


ADVANTAGES = {
    "gae": Line("generalised advantage estimation with a critic (PPO)", "使用 critic 的广义优势估计（PPO）"),
    "grpo": Line("score minus the group's mean, over its std (GRPO)", "组内得分减均值再除以标准差（GRPO）"),
    "grpo_vectorized": Line("the same numbers as grpo", "与 grpo 数值相同"),
    "dr_grpo": Line(
        "score minus the group's mean, never over its std (Dr. GRPO)", "得分减组均值，不除以标准差（Dr. GRPO）"
    ),
    "grpo_passk": Line(
        "only the best of a group, by its lead over the second", "仅组内最优样本按其领先次优的幅度得到优势"
    ),
    "reinforce_plus_plus": Line("discounted returns, whitened over the batch", "折扣回报，在整个批次上白化"),
    "reinforce_plus_plus_baseline": Line(
        "score minus the group's mean, whitened over the batch", "得分减组均值后在批次上白化"
    ),
    "rloo": Line("score minus the mean of the group's others (leave one out)", "得分减去组内其余样本的均值（留一法）"),
    "rloo_vectorized": Line("rloo; a group of one gets 0", "同 rloo；单样本组的优势为 0"),
    "opo": Line("score minus the length-weighted mean of the group", "得分减去按长度加权的组均值"),
    "gpg": Line(
        "score minus the group's mean, scaled by the share of non-zero scores", "得分减组均值，并按非零得分比例缩放"
    ),
    "remax": Line("score minus that of a greedy response (ReMax)", "得分减去贪心回答的得分（ReMax）"),
    "reward": Line("every response token gets the sequence's score", "每个回答 token 都取整条序列的得分"),
    "none": Line("the token rewards as they are", "直接使用逐 token 奖励"),
}

# Estimators that read a critic's values, and those that compare the responses of one prompt.
VALUE_ADVANTAGES = frozenset({"gae"})
PAIRED_ADVANTAGES = frozenset({"grpo_passk"})
GROUPED_ADVANTAGES = frozenset(
    {
        "grpo",
        "grpo_vectorized",
        "dr_grpo",
        "grpo_passk",
        "reinforce_plus_plus_baseline",
        "rloo",
        "rloo_vectorized",
        "opo",
        "gpg",
    }
)

LOSSES = {
    "vanilla": Line("PPO's clipped ratio, with dual clip", "PPO 截断比率损失，含 dual-clip"),
    "gpg": Line("log-prob times advantage, no ratio", "对数概率乘优势，不含比率"),
    "gspo": Line("one ratio per sequence, clipped", "每条序列一个比率并截断"),
    "sapo": Line("a soft sigmoid gate instead of clipping", "用平滑的 sigmoid 门代替硬截断"),
    "cispo": Line("clipped, detached ratio times log-prob", "截断并停止梯度的比率乘对数概率"),
    "geo_mean": Line("geometric mean of the token ratios (GMPO)", "逐 token 比率的几何平均（GMPO）"),
    "gmpo": Line("same as geo_mean", "同 geo_mean"),
    "clip_cov": Line("drops a few tokens of high covariance from the loss", "将少量高协方差 token 移出损失"),
    "kl_cov": Line("adds a KL penalty to the tokens of highest covariance", "对协方差最高的 token 加 KL 惩罚"),
}

KL_ESTIMATORS = {
    "kl": Line("log-ratio (k1)", "对数比（k1）"),
    "k1": Line("same as kl", "同 kl"),
    "abs": Line("absolute log-ratio", "对数比的绝对值"),
    "mse": Line("half the squared log-ratio (k2)", "对数比平方的一半（k2）"),
    "k2": Line("same as mse", "同 mse"),
    "low_var_kl": Line("exp(-x) + x - 1, clamped (k3)", "exp(-x)+x-1 并截断（k3）"),
    "k3": Line("same as low_var_kl", "同 low_var_kl"),
    "full": Line("exact KL over the vocabulary", "在整个词表上精确计算的 KL"),
    "full+": Line("value of full, gradient of k2", "取 full 的值、k2 的梯度"),
    "kl+": Line("value of kl, gradient of k2", "取 kl 的值、k2 的梯度"),
    "k1+": Line("same as kl+", "同 kl+"),
    "abs+": Line("value of abs, gradient of k2", "取 abs 的值、k2 的梯度"),
    "mse+": Line("same as mse", "同 mse"),
    "k2+": Line("same as mse", "同 mse"),
    "low_var_kl+": Line("value of k3, gradient of k2", "取 k3 的值、k2 的梯度"),
    "k3+": Line("same as low_var_kl+", "同 low_var_kl+"),
}

LOSS_AGGREGATIONS = {
    "token-mean": Line("mean over all tokens of the mini-batch", "对 mini-batch 的全部 token 求平均"),
    "seq-mean-token-sum": Line("sum per sequence, mean over sequences", "序列内求和，序列间求平均"),
    "seq-mean-token-mean": Line("mean per sequence, mean over sequences", "序列内求平均，序列间再求平均"),
    "seq-mean-token-sum-norm": Line(
        "sum per sequence over a fixed length, mean over sequences", "序列内求和后除以固定长度，序列间求平均"
    ),
    "token-sum": Line("plain sum over all tokens", "对全部 token 直接求和"),
}

ENGINES = {
    "builtin": Line(
        "our engine: paged KV cache, continuous batching, CPU and GPU",
        "内置引擎：分页 KV 缓存与连续批处理，支持 CPU 和 GPU",
    ),
    "hf": Line("transformers' generate, slow and simple", "transformers 的 generate，简单但较慢"),
    "vllm": Line("vLLM", "vLLM"),
    "sglang": Line("SGLang", "SGLang"),
    "trtllm": Line("TensorRT-LLM", "TensorRT-LLM"),
}

REWARD_MANAGERS = {
    "naive": Line("one call of the reward function per response", "每个回答调用一次奖励函数"),
    "batch": Line("one call of the reward function per batch", "每个批次调用一次奖励函数"),
    "prime": Line("as naive, with positional arguments", "同 naive，按位置传参"),
    "dapo": Line("as naive, minus a penalty for overlong responses", "同 naive，并对过长回答扣分"),
}

LOGGERS = {
    "console": Line("a readable line per step in the terminal", "在终端为每步打印一行"),
    "file": Line("JSON lines in the run folder", "在运行目录写 JSON Lines"),
    "tensorboard": Line("TensorBoard event files", "TensorBoard 事件文件"),
    "wandb": Line("Weights & Biases", "Weights & Biases"),
    "swanlab": Line("SwanLab", "SwanLab"),
    "mlflow": Line("MLflow", "MLflow"),
    "trackio": Line("Trackio", "Trackio"),
}

SCHEDULES = {
    "constant": Line("stays at the peak after warm-up", "预热后保持峰值"),
    "cosine": Line("cosine down to the floor", "按余弦降到下限"),
    "linear": Line("straight line down to the floor", "线性降到下限"),
    "wsd": Line("stable for nine tenths, then half a cosine down", "前九成保持稳定，之后以半余弦下降"),
}

TRUNCATIONS = {
    "error": Line("stop and name the row", "报错并指出是哪一行"),
    "left": Line("keep the end", "保留末尾"),
    "right": Line("keep the beginning", "保留开头"),
    "middle": Line("keep beginning and end", "保留开头和末尾"),
}

RESUME_MODES = {
    "auto": Line("go on from the newest good checkpoint, if any", "若有可用检查点，则从最新的一个继续"),
    "disable": Line("start from scratch", "从头开始"),
    "resume_path": Line("go on from trainer.resume_from_path", "从 trainer.resume_from_path 继续"),
}

KL_CONTROLLERS = {
    "fixed": Line("the coefficient never changes", "系数保持不变"),
    "adaptive": Line("the coefficient follows target_kl", "系数随 target_kl 自适应"),
}

STRATEGIES = {
    "fsdp": Line("PyTorch FSDP", "PyTorch FSDP"),
    "fsdp2": Line("PyTorch FSDP2 (the same backend here)", "PyTorch FSDP2（此处与 fsdp 为同一后端）"),
    "megatron": Line("Megatron-Core", "Megatron-Core"),
}

DTYPES = {
    "float32": Line("32-bit float", "32 位浮点"),
    "fp32": Line("same as float32", "同 float32"),
    "bfloat16": Line("16-bit brain float", "16 位 brain float"),
    "bf16": Line("same as bfloat16", "同 bfloat16"),
    "float16": Line("16-bit float", "16 位浮点"),
    "fp16": Line("same as float16", "同 float16"),
}

CHECKPOINT_CONTENTS = {
    "model": Line("the weights", "权重"),
    "optimizer": Line("the optimizer's state", "优化器状态"),
    "extra": Line("schedule and random state", "学习率调度与随机状态"),
    "hf_model": Line("the weights once more, as a Hugging Face folder", "另存一份 Hugging Face 格式的权重"),
}

DEVICES = {
    "auto": Line("cuda where there is one, else cpu", "有 cuda 则用 cuda，否则用 cpu"),
    "cpu": Line("the processor", "处理器"),
    "cuda": Line("NVIDIA or AMD GPUs", "NVIDIA 或 AMD 显卡"),
    "npu": Line("Ascend NPUs", "昇腾 NPU"),
}

REWEIGHT_METHODS = {
    "pow": Line("weight |score| to the power weight_pow", "权重为 |得分| 的 weight_pow 次幂"),
    "max_min": Line("only the best and the worst scores", "只保留最高和最低得分"),
    "max_random": Line("0.4 for the best score, 0.1 for the others", "最高得分权重 0.4，其余 0.1"),
}

ROLLOUT_MODES = {
    "sync": Line("the engine lives in the training process", "引擎与训练在同一进程"),
    "async": Line("the engine runs as a server", "引擎以服务方式运行"),
}

# Every table of names, under the words that its Table uses.
TABLES = {
    "advantage estimator": ADVANTAGES,
    "policy loss": LOSSES,
    "KL estimator": KL_ESTIMATORS,
    "loss aggregation": LOSS_AGGREGATIONS,
    "engine": ENGINES,
    "reward manager": REWARD_MANAGERS,
    "logger": LOGGERS,
    "schedule": SCHEDULES,
    "truncation": TRUNCATIONS,
    "resume mode": RESUME_MODES,
    "KL controller": KL_CONTROLLERS,
    "strategy": STRATEGIES,
    "dtype": DTYPES,
    "checkpoint content": CHECKPOINT_CONTENTS,
    "device": DEVICES,
    "reweight method": REWEIGHT_METHODS,
    "rollout mode": ROLLOUT_MODES,
}
