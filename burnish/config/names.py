"""Names of every registry, each with a description in English and Chinese. A test compares them with the registries."""

from __future__ import annotations

from burnish.config.line import Line
from burnish.config.turn_names import HISTORIES, TOKENIZATION_CHECKS, TOOL_PARSERS

ADVANTAGES = {
    "gae": Line("generalized advantage estimation with a critic (PPO)", "使用 critic 的广义优势估计（PPO）"),
    "grpo": Line("score minus the group's mean, divided by its std (GRPO)", "组内得分减均值再除以标准差（GRPO）"),
    "grpo_vectorized": Line("the same numbers as grpo", "与 grpo 数值相同"),
    "dr_grpo": Line(
        "score minus the group's mean, not divided by its std (Dr. GRPO)", "得分减组均值，不除以标准差（Dr. GRPO）"
    ),
    "grpo_passk": Line(
        "only the best response of a group, by its margin over the second best",
        "仅组内最优样本按其领先次优的幅度得到优势",
    ),
    "reinforce_plus_plus": Line("discounted returns, whitened over the batch", "折扣回报，在整个批次上白化"),
    "reinforce_plus_plus_baseline": Line(
        "score minus the group's mean, whitened over the batch", "得分减组均值后在批次上白化"
    ),
    "rloo": Line(
        "score minus the mean of the group's other responses (leave one out)", "得分减去组内其余样本的均值（留一法）"
    ),
    "rloo_vectorized": Line("same as rloo; 0 for a group of one", "同 rloo；单样本组的优势为 0"),
    "opo": Line("score minus the length-weighted mean of the group", "得分减去按长度加权的组均值"),
    "gpg": Line(
        "score minus the group's mean, scaled by the fraction of non-zero scores", "得分减组均值，并按非零得分比例缩放"
    ),
    "optimal_token_baseline": Line(
        "return minus a baseline per group and position, weighted by the gradient's size (OTB)",
        "回报减去按梯度大小加权、组内逐位置的基线（OTB）",
    ),
    "tir_optimal_token_baseline": Line(
        "the same for responses with tool output: positions count sampled tokens only",
        "同上，用于含工具输出的回答：位置只计模型采样的 token",
    ),
    "remax": Line("score minus the score of a greedy response (ReMax)", "得分减去贪心回答的得分（ReMax）"),
    "reward": Line("the sequence's score for every response token", "每个回答 token 都取整条序列的得分"),
    "none": Line("the token rewards, unchanged", "直接使用逐 token 奖励"),
}

# Estimators that need a critic's values, at least two responses, or groups of responses.
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
        "optimal_token_baseline",
        "tir_optimal_token_baseline",
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
    "dppo_tv": Line(
        "trust region on the change of each token's probability instead of a clip (DPPO)",
        "以逐 token 概率变化的信任域代替截断（DPPO）",
    ),
    "dppo_kl": Line("like dppo_tv, with the binary KL as distance", "同 dppo_tv，距离为二元 KL"),
    "clip_cov": Line("removes a few tokens of high covariance from the loss", "将少量高协方差 token 移出损失"),
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
        "sum per sequence divided by a fixed length, mean over sequences", "序列内求和后除以固定长度，序列间求平均"
    ),
    "token-sum": Line("plain sum over all tokens", "对全部 token 直接求和"),
}

ENGINES = {
    "builtin": Line(
        "built-in engine: paged KV cache, continuous batching, CPU and GPU",
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
    "prime": Line("like naive, with positional arguments", "同 naive，按位置传参"),
    "dapo": Line("like naive, minus a penalty for overlong responses", "同 naive，并对过长回答扣分"),
}

VERIFIERS = {
    "acc": Line("1 if right, -0.5 if wrong, -1 without a boxed answer", "答对 1，答错 -0.5，没有 boxed 答案 -1"),
    "strict_format": Line(
        "1 for exactly one pair of think and answer tags each and one boxed answer, else -0.5",
        "think 与 answer 标签各一次且恰有一个 boxed 答案得 1，否则 -0.5",
    ),
    "format": Line("1 for <think>...</think><answer>...</answer>, else 0", "符合 think、answer 格式得 1，否则 0"),
    "step": Line("1/3 for each step marker, at most 1", "每个步骤标记得三分之一，最多 1"),
    "base_acc": Line("1 for the right boxed answer in that format, else 0", "格式正确且 boxed 答案正确得 1，否则 0"),
    "math_17k_acc": Line("1 if the last boxed answer is right, else 0", "最后一个 boxed 答案正确得 1，否则 0"),
    "acc_for_ppo": Line("same as math_17k_acc", "同 math_17k_acc"),
    "acc_for_dapo": Line('1 if the last "Answer:" line is right, else -1', "最后一行 Answer: 正确得 1，否则 -1"),
    "math_verify_reward": Line("same as base_acc", "同 base_acc"),
    "retool_reward": Line(
        "1 if right; else -1 plus 0.1 per tool call, at most 0", "答对 1；否则 -1，每次工具调用加 0.1，最高到 0"
    ),
}

LOGGERS = {
    "console": Line("one line per step in the terminal", "在终端为每步打印一行"),
    "file": Line("JSON lines in the run folder", "在运行目录写 JSON Lines"),
    "tensorboard": Line("TensorBoard event files", "TensorBoard 事件文件"),
    "wandb": Line("Weights & Biases", "Weights & Biases"),
    "swanlab": Line("SwanLab", "SwanLab"),
    "mlflow": Line("MLflow", "MLflow"),
    "trackio": Line("Trackio", "Trackio"),
}

SCHEDULES = {
    "constant": Line("constant after warm-up", "预热后保持峰值"),
    "cosine": Line("cosine decay to the minimum", "按余弦降到下限"),
    "linear": Line("linear decay to the minimum", "线性降到下限"),
    "wsd": Line("constant for 90% of the steps, then half a cosine", "前九成保持稳定，之后以半余弦下降"),
    "inverse_square_root": Line("inverse square root of the step", "按步数平方根的倒数下降"),
}

TRUNCATIONS = {
    "error": Line("stop with an error that names the row", "报错并指出是哪一行"),
    "left": Line("keep the end", "保留末尾"),
    "right": Line("keep the beginning", "保留开头"),
    "middle": Line("keep beginning and end", "保留开头和末尾"),
}

INVALID_MEDIA = {
    "error": Line("stop with an error that names the first such row", "报错并指出首个此类行"),
    "drop": Line("drop such rows and report how many", "丢弃此类行并报告数量"),
}

HANDLERS = {
    "AlpacaStyleInstructionHandler": Line(
        "prompt from instruction and input, answer from output", "指令与输入组成问题，输出为答案"
    ),
    "R1AlpacaStyleInstructionHandler": Line("the same, for reasoning data", "同上，用于推理数据"),
    "Math17kAlpacaStyleInstructionHandler": Line(
        "prompt from a chat, answer from an object with ground_truth", "对话为问题，带 ground_truth 的对象为答案"
    ),
}

PROMPT_TYPES = {
    "empty": Line("no template", "不使用模板"),
    **dict.fromkeys(
        ("default", "qwen", "qwen3", "llama3", "deepseek3"),
        Line("the tokenizer's own chat template", "使用分词器自带的对话模板"),
    ),
    **dict.fromkeys(
        ("qwen_r1", "qwen_math_r1", "llama3_r1"),
        Line(
            "the same, with a system message that requests <think>, <answer> and \\boxed",
            "同上，并加入要求 <think>、<answer> 与 \\boxed 的系统消息",
        ),
    ),
}

RESUME_MODES = {
    "auto": Line("resume from the newest valid checkpoint, if any", "若有可用检查点，则从最新的一个继续"),
    "disable": Line("start from scratch", "从头开始"),
    "resume_path": Line("resume from trainer.resume_from_path", "从 trainer.resume_from_path 继续"),
}

RESUME_CHANGES = {
    "refuse": Line("stop and list the differences", "停止并列出差异"),
    "accept": Line("resume with the new settings", "以新设置续训"),
}

LAUNCHERS = {
    "auto": Line(
        "torchrun if started by it, else Ray if installed, else processes",
        "若由 torchrun 启动则沿用，否则优先 Ray，未安装则用本机进程",
    ),
    "ray": Line("Ray actors, on a running or a local cluster", "Ray actor，使用已有集群或本机集群"),
    "processes": Line("local processes", "本机进程"),
    "torchrun": Line("the processes started by torchrun", "torchrun 启动的进程"),
}

KL_CONTROLLERS = {
    "fixed": Line("constant coefficient", "系数保持不变"),
    "adaptive": Line("coefficient adapts to target_kl", "系数随 target_kl 自适应"),
}

STRATEGIES = {
    "fsdp": Line("PyTorch FSDP", "PyTorch FSDP"),
    "fsdp2": Line("PyTorch FSDP2 (same backend as fsdp)", "PyTorch FSDP2（此处与 fsdp 为同一后端）"),
    "megatron": Line(
        "the same backend with tensor parallelism, configured by Megatron's keys",
        "同一后端加张量并行，由 Megatron 的配置项设置",
    ),
}

DTYPES = {
    "float32": Line("32-bit float", "32 位浮点"),
    "fp32": Line("same as float32", "同 float32"),
    "bfloat16": Line("16-bit brain float", "16 位 brain float"),
    "bf16": Line("same as bfloat16", "同 bfloat16"),
    "float16": Line("16-bit float", "16 位浮点"),
    "fp16": Line("same as float16", "同 float16"),
}

ATTENTIONS = {
    "sdpa": Line("PyTorch's fused attention", "PyTorch 自带的融合注意力"),
    "eager": Line("plain matrix products and softmax, slow", "普通矩阵乘与 softmax，较慢"),
    "flash_attention_2": Line("flash-attn 2 on packed sequences, GPU only", "flash-attn 2，处理紧凑序列，仅 GPU"),
    "flash_attention_3": Line("flash-attn 3 on packed sequences, GPU only", "flash-attn 3，处理紧凑序列，仅 GPU"),
    "flex_attention": Line("PyTorch's flex attention; not supported", "PyTorch 的 flex attention；不支持"),
}

RECOMPUTE_METHODS = {
    "uniform": Line(
        "equal groups of layers; only the input of each group is stored", "各层均分成组，每组只保留入口激活"
    ),
    "block": Line("only the first layers", "只重算最前面的若干层"),
    "auto": Line(
        "as few of the first layers as fit into the memory, by the plan of `burnish doctor`",
        "按 `burnish doctor` 的内存规划，重算放得下的最少层数",
    ),
}

CHECKPOINT_CONTENTS = {
    "model": Line("the weights", "权重"),
    "optimizer": Line("the optimizer state", "优化器状态"),
    "extra": Line("schedule and random state", "学习率调度与随机状态"),
    "hf_model": Line("the weights in Hugging Face format as well", "另存一份 Hugging Face 格式的权重"),
}

DEVICES = {
    "auto": Line("cuda if available, else cpu", "有 cuda 则用 cuda，否则用 cpu"),
    "cpu": Line("the CPU", "处理器"),
    "cuda": Line("NVIDIA or AMD GPUs", "NVIDIA 或 AMD 显卡"),
    "npu": Line("Ascend NPUs", "昇腾 NPU"),
}

SCORE_NORMALIZERS = {
    "batch": Line("statistics of the step's scores", "按当前步的得分"),
    "running": Line("running statistics of all scores so far", "按至今所有得分"),
}

REWEIGHT_METHODS = {
    "pow": Line("weight |score| ** weight_pow", "权重为 |得分| 的 weight_pow 次幂"),
    "max_min": Line("only the best and the worst scores", "只保留最高和最低得分"),
    "max_random": Line("weight 0.4 for the best score, 0.1 for the others", "最高得分权重 0.4，其余 0.1"),
}

IS_LEVELS = {
    "token": Line("each token by its own ratio", "每个 token 按自身的比率"),
    "sequence": Line("all tokens by the product of the sequence's ratios", "整条序列按各 token 比率之积"),
}

REJECTIONS = {
    "token_k1": Line("token: ratio of engine to trainer", "逐 token：引擎与训练的概率比"),
    "token_k2": Line("token: half the squared log-ratio", "逐 token：对数比平方的一半"),
    "token_k3": Line("token: ratio - 1 - log-ratio", "逐 token：比率 - 1 - 对数比"),
    "seq_sum_k1": Line("sequence: product of the ratios", "整条序列：比率之积"),
    "seq_sum_k2": Line("sequence: sum of k2", "整条序列：k2 之和"),
    "seq_sum_k3": Line("sequence: sum of k3", "整条序列：k3 之和"),
    "seq_mean_k1": Line("sequence: geometric mean of the ratios", "整条序列：比率的几何平均"),
    "seq_mean_k2": Line("sequence: mean of k2", "整条序列：k2 的平均"),
    "seq_mean_k3": Line("sequence: mean of k3", "整条序列：k3 的平均"),
    "seq_max_k2": Line("sequence: largest k2", "整条序列：最大的 k2"),
    "seq_max_k3": Line("sequence: largest k3", "整条序列：最大的 k3"),
    "token": Line("older form: token, ratio of trainer to engine", "旧写法：逐 token，训练与引擎的概率比"),
    "sequence": Line("older form: product of those ratios", "旧写法：上述比率之积"),
    "geometric": Line("older form: geometric mean of those ratios", "旧写法：上述比率的几何平均"),
}

BYPASS_LOSSES = {
    "ppo_clip": Line("the loss of actor.policy_loss.loss_mode", "actor.policy_loss.loss_mode 指定的损失"),
    "reinforce": Line("log-prob times advantage, no ratio", "对数概率乘优势，不含比率"),
}

KL_ORDERS = {
    "before": Line("the KL is part of the compared score", "KL 先并入得分，再参与组内比较"),
    "after": Line(
        "scores are compared first; then the KL from each token on is subtracted",
        "先比较得分；之后每个 token 扣除自其起的 KL",
    ),
}

WHITENINGS = {
    "unbiased": Line(
        "mean 0 and variance 1, with the unbiased variance (n - 1)", "均值 0、方差 1，使用无偏方差（n-1）"
    ),
    "biased": Line(
        "mean 0 and variance 1, with the biased variance (n, OpenRLHF)", "均值 0、方差 1，使用有偏方差（n，OpenRLHF）"
    ),
    "mean": Line("mean 0 only", "只减均值"),
}

OBSERVATIONS = {
    "skip": Line(
        "observations are skipped: the model's next token follows its last one",
        "跳过观测，模型的下一个 token 紧接上一个",
    ),
    "walk": Line("observations count as steps with value 0 (OpenRLHF)", "观测也算一步，价值为 0（OpenRLHF）"),
}

TURN_CREDITS = {
    "trajectory": Line("the estimator sees the sum of all rewards of a conversation", "估计器使用整段对话的奖励之和"),
    "outcome": Line("only what the last turn earned counts", "只计最后一轮所得的奖励"),
    "return_to_go": Line(
        "rewards from a turn on, minus the mean of the group's other conversations that reached it",
        "某一轮起的奖励之和，减去组内其他到达该轮的对话的均值",
    ),
    "gae": Line("generalized advantage estimation over turns, with a critic", "以轮为步的 GAE，需要 critic"),
    "gigpo": Line(
        "GRPO's advantage plus that of the turn among turns from the same state",
        "GRPO 的优势，加上该轮在相同状态的各轮中的优势",
    ),
    "per_turn": Line(
        "MT-GRPO: rewards normalized per turn number; biased if the policy decides when to stop",
        "MT-GRPO：按轮次归一化；若由策略决定何时结束则有偏",
    ),
}

ROLLOUT_MODES = {
    "sync": Line("the engine runs in the training process", "引擎与训练在同一进程"),
    "async": Line("the engine runs as a server", "引擎以服务方式运行"),
}

ASYNC_MODES = {
    "sync": Line("generation and training alternate", "生成与训练交替进行"),
    "one_step_off": Line(
        "the next batch is generated with the previous weights while this one is trained on; reproducible",
        "训练本批次的同时用之前的权重生成下一批次；结果可复现",
    ),
    "queue": Line(
        "batches are generated ahead within queue_size and staleness_threshold",
        "在 queue_size 与 staleness_threshold 允许的范围内提前生成批次",
    ),
}


# All of the above, by the title of their registry.
TABLES = {
    "advantage estimator": ADVANTAGES,
    "policy loss": LOSSES,
    "KL estimator": KL_ESTIMATORS,
    "loss aggregation": LOSS_AGGREGATIONS,
    "engine": ENGINES,
    "reward manager": REWARD_MANAGERS,
    "verifier": VERIFIERS,
    "logger": LOGGERS,
    "schedule": SCHEDULES,
    "truncation": TRUNCATIONS,
    "treatment of invalid media": INVALID_MEDIA,
    "data handler": HANDLERS,
    "prompt type": PROMPT_TYPES,
    "resume mode": RESUME_MODES,
    "resume changes": RESUME_CHANGES,
    "launcher": LAUNCHERS,
    "KL controller": KL_CONTROLLERS,
    "strategy": STRATEGIES,
    "dtype": DTYPES,
    "attention": ATTENTIONS,
    "recompute method": RECOMPUTE_METHODS,
    "checkpoint content": CHECKPOINT_CONTENTS,
    "device": DEVICES,
    "reweight method": REWEIGHT_METHODS,
    "importance-weight level": IS_LEVELS,
    "rejection measure": REJECTIONS,
    "loss in bypass mode": BYPASS_LOSSES,
    "KL order": KL_ORDERS,
    "whitening": WHITENINGS,
    "treatment of observations": OBSERVATIONS,
    "turn credit": TURN_CREDITS,
    "score normalizer": SCORE_NORMALIZERS,
    "rollout mode": ROLLOUT_MODES,
    "way to generate and learn": ASYNC_MODES,
    "tool-call format": TOOL_PARSERS,
    "history": HISTORIES,
    "tokenization check": TOKENIZATION_CHECKS,
}
