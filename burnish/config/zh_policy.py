"""Chinese docs of the policy's keys: data, model, update, engine sections, rollout. Keyed by class and field."""

from __future__ import annotations

DOCS: dict[str, str] = {
    # data
    "CustomClassConfig.path": "存放自定义类的 Python 文件（或 pkg://模块）；null 使用内置实现。",
    "CustomClassConfig.name": "该文件中的类名。",
    "SamplerConfig.class_path": "存放采样器类的 Python 文件（或 pkg://模块）；null 使用内置采样器。",
    "SamplerConfig.class_name": "该文件中的采样器类名。",
    "HandlerConfig.name": "把原始数据变成提示与答案的处理器（MindSpeed RL 的 handler_name）；null 表示直接读取。",
    "HandlerConfig.map_keys": 'prompt、query、response、system 各部分对应的列；写 "" 表示不用该部分。',
    "HandlerConfig.prompt_type": "提示的形式。",
    "DataConfig.train_files": (
        "训练数据，按给定顺序读取；可写单个名称、列表，或用逗号分隔。"
        "名称可以是文件（.parquet、.jsonl、.json、.csv、.arrow）、save_to_disk 生成的目录、"
        "打包的 .bin/.idx 文件前缀，或 Hugging Face 数据集（名称或 名称@目录）。路径可以是远程的：s3://、hdfs:// 等。"
    ),
    "DataConfig.train_split": "数据集带有划分时，用于训练的划分；普通文件没有划分。",
    "DataConfig.val_split": "数据集带有划分时，用于验证的划分；普通文件没有划分。",
    "DataConfig.train_probs": ("按这些权重混合各训练数据集，直到每个都用完一遍；null 表示依次读取。"),
    "DataConfig.label_key": "没有 reward_model.ground_truth 的数据以该列为标准答案。",
    "DataConfig.additional_keys": "打包的 .bin/.idx 文件中的其他字段；labels 为答案，其余放入 extra_info。",
    "DataConfig.apply_chat_template": "用对话模板书写提示；false 表示文本提示原样使用。",
    "DataConfig.input_template": "不用对话模板时（apply_chat_template=false）的文本模板，{} 处填入提示。",
    "DataConfig.val_files": "验证文件，写法同 train_files。留空表示不做验证。",
    "DataConfig.train_max_samples": (
        "最多使用多少条训练数据；-1 为全部。开启 shuffle 时按种子抽取，否则取最前面的若干条。"
    ),
    "DataConfig.val_max_samples": "最多使用多少条验证数据；-1 为全部。",
    "DataConfig.prompt_key": "存放提示的列：由 {role, content} 消息组成的列表，或文本（视为一条用户消息）。",
    "DataConfig.reward_fn_key": (
        "标明数据来源的列；据此选择内置奖励，并对验证指标分组。没有 data_source 列时使用数据集自身的名称。"
    ),
    "DataConfig.max_prompt_length": (
        "提示的最大 token 数（含对话模板）；更长的提示由 filter_overlong_prompts 与 truncation 处理。"
    ),
    "DataConfig.max_response_length": "回答的最大 token 数。多轮对话中是提示之后整段对话的总预算。",
    "DataConfig.train_batch_size": (
        "每步的提示数；每步的回答数为它乘以 rollout.n。每个 epoch 末尾不足一批的数据会被丢弃。"
    ),
    "DataConfig.gen_batch_size": "过滤分组（algorithm.filter_groups）时同时生成的提示数；null 等于 train_batch_size。",
    "DataConfig.val_batch_size": "每个验证批次的提示数；null 表示整个验证集一次送入。",
    "DataConfig.tool_config_path": (
        "提示中展示其描述的工具的 YAML；默认跟随 rollout 的工具。单独设置时只展示、不执行，由奖励评判调用。"
    ),
    "DataConfig.return_raw_input_ids": "额外加入 raw_input_ids 列：不套对话模板的提示 token。",
    "DataConfig.return_raw_chat": "在批次中以 raw_prompt 保留提示的消息列表。",
    "DataConfig.return_full_prompt": "额外加入 full_prompts 列：套用对话模板后的提示文本。",
    "DataConfig.shuffle": "每个 epoch 重新打乱训练数据。",
    "DataConfig.seed": "训练数据顺序的种子；null 使用 trainer.seed。",
    "DataConfig.validation_shuffle": "打乱验证数据。",
    "DataConfig.dataloader_num_workers": "verl 数据加载器的工作进程数。",
    "DataConfig.filter_overlong_prompts": "丢弃套模板后超过 max_prompt_length 的数据，并报告丢弃数量。",
    "DataConfig.filter_overlong_prompts_workers": "过滤时对提示分词的进程数；null 为一个。",
    "DataConfig.truncation": "未被过滤但超过 max_prompt_length 的提示如何处理。",
    "DataConfig.image_key": "存放图片的列，依提示中 <image> 的顺序：字节、路径、URL、base64，或 Hugging Face datasets"
    " 的映射。相对路径以数据文件所在目录为起点。null 不读取。",
    "DataConfig.video_key": "存放视频的列，依提示中 <video> 的顺序：与图片同样形式的文件，或帧的列表；映射还可设置"
    " fps、nframes、max_frames、video_start、video_end 和 max_pixels。null 不读取。",
    "DataConfig.image_patch_size": "verl 的读取器使图片尺寸对齐的 patch 大小。",
    "DataConfig.return_multi_modal_inputs": "在 verl 的批次中携带处理器产生的图像与视频张量。",
    "DataConfig.mm_processor_kwargs": "模型图像与视频处理器的参数，例如 {max_pixels: 200704}。",
    "DataConfig.invalid_media": "图片或视频缺失、损坏、过大或数量与提示不符的行如何处理。",
    "DataConfig.max_images_per_prompt": "一条提示的最多图片数；超出的行按 invalid_media 处理。null 表示不限。",
    "DataConfig.tokenizer": "分词器的路径或名称；null 使用模型自带的分词器。",
    "DataConfig.trust_remote_code": "允许分词器仓库执行其自带的 Python 代码。",
    "DataConfig.use_shm": "先把数据文件复制到共享内存再读取。",
    "DataConfig.apply_chat_template_kwargs": "传给分词器对话模板的参数，例如 enable_thinking: false。",
    # model
    "FusedKernelConfig.impl_backend": "GPU 上融合对数概率输出头的实现：分块 torch，或 Triton。",
    "LoraConfig.type": "适配器的种类：lora，或 dora（还学习每行权重的长度）；canonical_lora 与 vlm_lora 在此即 lora。",
    "LoraConfig.rank": "适配器的秩；0 为关闭。同 lora_rank。",
    "LoraConfig.alpha": "适配器的缩放：输出乘以 alpha / rank。同 lora_alpha。",
    "LoraConfig.dropout": "适配器之前的 dropout。同 lora_dropout。",
    "LoraConfig.merge": "向引擎发送合并后的权重，而不是单独的适配器。",
    "LoraConfig.target_modules": "加适配器的模块，可用 Hugging Face 或 Megatron 的名称。同 target_modules。",
    "LoraConfig.exclude_modules": "不加适配器的模块。同 exclude_modules。",
    "LoraConfig.lora_A_init_method": "第一个适配器矩阵的初始化方式；null 用 peft 自己的方式（kaiming）。",
    "LoraConfig.lora_B_init_method": "第二个适配器矩阵的初始化方式；null 为全零，模型从原样开始。",
    "LoraConfig.dtype": "适配器的数据类型；null 与保存的权重相同，4 比特或 float16 权重之上为 float32。",
    "LoraConfig.adapter_path": "从哪个适配器开始训练。同 lora_adapter_path。",
    "ModelConfig.path": "模型的目录或 Hugging Face 名称。策略、参考模型与引擎都从它开始。",
    "ModelConfig.hf_config_path": "模型配置的目录或名称，仅在与 path 不同时需要。",
    "ModelConfig.tokenizer_path": "分词器的目录或名称；null 等于 path。",
    "ModelConfig.trust_remote_code": "允许模型仓库执行其自带的 Python 代码。",
    "ModelConfig.custom_chat_template": "替换分词器自带模板的对话模板（Jinja 文本，或其文件）。",
    "ModelConfig.external_lib": "构建模型之前要导入的 Python 模块，例如用来注册模型类。",
    "ModelConfig.override_config": (
        "要在模型的 Hugging Face 配置中修改的值，例如 attn_implementation 或某个 dropout。"
    ),
    "ModelConfig.torch_dtype": "加载与保存权重的数据类型；null 用各角色的 fsdp_config.model_dtype。",
    "TrainedModelConfig.enable_gradient_checkpointing": "反向传播时重算激活值而不是保留：省内存，多耗时。",
    "TrainedModelConfig.enable_activation_offload": "在前向与反向之间把激活值放到 CPU 内存。",
    "ModelConfig.use_remove_padding": "在不含填充的紧凑 token 上训练。",
    "TrainedModelConfig.lora_rank": "LoRA 适配器的秩；0 训练全部权重。",
    "TrainedModelConfig.lora_dropout": "LoRA 适配器之前的 dropout。",
    "TrainedModelConfig.load_in_4bit": (
        "以 4 比特（nf4，双重量化）加载并冻结权重；需要 LoRA。引擎得到的仍是完整权重。"
    ),
    "TrainedModelConfig.attn_implementation": (
        "训练中注意力的算子；null 取 override_config.attn_implementation，再没有则为 sdpa。"
    ),
    "RecomputeConfig.method": (
        "uniform：每 num_layers 层为一组整体保留；block：只重算最前 num_layers 层；"
        "auto：同 block，num_layers 取设备内存放得下的最小值；null：逐层。"
    ),
    "RecomputeConfig.num_layers": "每组的层数（uniform；null 为 1），或要重算的层数（block；null 为全部）。",
    "RefModelConfig.path": "另一个参考模型的目录或名称；null 与策略相同。词表必须一致。",
    "RefModelConfig.override_config": "在策略的修改之外，要在参考模型的 Hugging Face 配置中修改的值。",
    "RefModelConfig.external_lib": "在策略的模块之外，构建参考模型之前要导入的 Python 模块。",
    "RefModelConfig.trust_remote_code": "允许参考模型的仓库执行其自带的 Python 代码；跟随策略。",
    "TrainedModelConfig.lora_alpha": "LoRA 的缩放：适配器输出乘以 lora_alpha / lora_rank。",
    "TrainedModelConfig.target_modules": "加 LoRA 适配器的模块：all-linear、单个名称、名称列表或正则表达式。",
    "TrainedModelConfig.exclude_modules": "不加 LoRA 适配器的模块：正则表达式或名称列表，例如"
    " '.*visual.*'（Qwen-VL 的视觉塔）。",
    "TrainedModelConfig.lora_adapter_path": "作为起点的 LoRA 适配器目录（peft 格式）；秩、缩放与模块以它为准。",
    "ModelConfig.use_liger": (
        "用 Liger 的算子替换策略的归一化、旋转位置编码与 MLP：仅 GPU，不支持图像模型；其层不再编译。"
    ),
    "ModelConfig.use_fused_kernels": "使用融合输出头：不构造完整 logits 就得到对数概率与熵。",
    "ModelConfig.use_shm": "加载前先把权重复制到共享内存。",
    # optim
    "OptimConfig.lr": "学习率峰值。",
    "OptimConfig.lr_warmup_steps": "线性预热的步数；-1 按比例计算。第一步的学习率是峰值的 1/预热步数，而不是 0。",
    "OptimConfig.lr_warmup_steps_ratio": "lr_warmup_steps 为 -1 时，预热占总步数的比例。",
    "OptimConfig.min_lr_ratio": "衰减的下限，占 lr 的比例；null 为 0。",
    "OptimConfig.num_cycles": "整个训练中的余弦周期数；0.5 为单调下降。",
    "OptimConfig.warmup_style": "预热之后的学习率调度。",
    "OptimConfig.total_training_steps": "学习率调度覆盖的步数；-1 取训练总长。",
    "OptimConfig.lr_step_unit": "调度按什么计数：主循环的步（step），或优化器更新（update）。",
    "OptimConfig.weight_decay": (
        "权重衰减：与梯度无关（adam）或加到梯度上（sgd）；除非设置 decay_matrices_only，作用于全部参数。"
    ),
    "OptimConfig.decay_matrices_only": "偏置与归一化参数（一维参数）不做权重衰减，与 OpenRLHF 和 Megatron 相同。",
    "OptimConfig.betas": "AdamW 的两个衰减系数。",
    "OptimConfig.optimizer": (
        "adam 即 AdamW；sgd 的动量见 override_optimizer_config（strategy=megatron 时默认 0.9，否则 0）。"
    ),
    "OptimConfig.lr_warmup_init": "Megatron 预热的起始学习率。",
    "OptimConfig.lr_decay_steps": "Megatron 学习率衰减的步数；null 为全部。",
    "OptimConfig.lr_decay_style": "Megatron 预热之后的调度；constant 由 warmup_style 决定。",
    "OptimConfig.min_lr": "Megatron 的最低学习率；0 由 min_lr_ratio 决定。",
    "OptimConfig.weight_decay_incr_style": "Megatron 权重衰减的增长方式。",
    "OptimConfig.lr_wsd_decay_style": "Megatron 的预热-稳定-衰减调度中最后一段的形状。",
    "OptimConfig.lr_wsd_decay_steps": "该最后一段的步数。",
    "OptimConfig.use_checkpoint_opt_param_scheduler": "恢复训练时沿用检查点的学习率调度长度，即使总步数不同。",
    "OptimConfig.override_optimizer_config": (
        "优化器的其他参数：eps（adam）；momentum、nesterov（sgd）。strategy=megatron 时还有 Megatron 的"
        " adam_beta1、adam_beta2、adam_eps、sgd_momentum、weight_decay 与 optimizer_cpu_offload"
        "（更新之外状态在 CPU 内存）。"
    ),
    "CheckpointConfig.save_contents": (
        "保存的内容：model（权重）、optimizer（优化器）、extra（调度与随机状态）、hf_model（Hugging Face 目录）。"
    ),
    "CheckpointConfig.load_contents": "恢复时读取的内容；默认跟随 save_contents。",
    "CheckpointConfig.async_save": "先把状态复制到内存，再在训练继续的同时写检查点。任一角色开启即对所有角色生效。",
    "CheckpointConfig.mbridge_config": "Megatron 通过 mbridge 保存 Hugging Face 目录时的参数。",
    # engine sections
    "WrapPolicyConfig.min_num_params": "参数量不少于此值的模块单独成为一个 FSDP 单元；0 按模型的层划分。",
    "WrapPolicyConfig.transformer_layer_cls_to_wrap": "要单独包装的层类名；留空取模型自带的列表。",
    "MixedPrecisionConfig.param_dtype": "前向与反向的计算类型；null 在 GPU 上为 bf16，CPU 上为 float32。",
    "MixedPrecisionConfig.reduce_dtype": "跨进程累加梯度时的数据类型。",
    "MixedPrecisionConfig.buffer_dtype": "缓冲区的数据类型。",
    "FsdpConfig.param_offload": "该角色不计算时把权重放到 CPU 内存。",
    "FsdpConfig.optimizer_offload": "更新之外把优化器状态放到 CPU 内存。",
    "FsdpConfig.offload_policy": "FSDP2 自带的卸载：训练中权重、梯度与优化器状态都在 CPU 内存。",
    "FsdpConfig.reshard_after_forward": "前向后释放聚合的权重；给整数则改为在这么多进程间切分。",
    "FsdpConfig.fsdp_size": "一个切分组的进程数；-1 在全部进程间切分。",
    "FsdpConfig.forward_prefetch": "计算当前层时提前聚合下一层的权重。",
    "FsdpConfig.model_dtype": "优化器所更新的权重的数据类型。",
    "FsdpConfig.use_orig_params": "FSDP1 中保留原始参数的选项。",
    "FsdpConfig.forward_only": "只为前向计算构建模型。",
    "FsdpConfig.strategy": "新版 verl 在此处写后端；这里由角色自身的 strategy 决定。",
    "MegatronConfig.param_offload": "该角色不计算时把权重放到 CPU 内存。",
    "MegatronConfig.grad_offload": "该角色不计算时把梯度放到 CPU 内存。",
    "MegatronConfig.optimizer_offload": "更新之外把优化器状态放到 CPU 内存。",
    "MegatronConfig.tensor_model_parallel_size": "张量并行：共同持有一层矩阵的进程数。",
    "MegatronConfig.expert_model_parallel_size": "专家并行：分担各专家的进程数。",
    "MegatronConfig.expert_tensor_parallel_size": (
        "Megatron：共同持有单个专家矩阵的进程数；null 等于张量并行数。这里专家不拆分，"
        "expert_model_parallel_size 乘以该值个进程各持有不同的专家。"
    ),
    "MegatronConfig.pipeline_model_parallel_size": "流水线并行：分别持有模型不同层的进程数。",
    "MegatronConfig.virtual_pipeline_model_parallel_size": "这些进程各自的层块数，用于交错调度；null 为一块。",
    "MegatronConfig.pipeline_schedule": "前向与反向的次序：1f1b 交替进行（保留的激活少），gpipe 先做完全部前向。",
    "MegatronConfig.context_parallel_size": "上下文并行：分担一条序列的进程数。",
    "MegatronConfig.sequence_parallel": "沿序列切分张量并行层之间的激活值。",
    "MegatronConfig.use_distributed_optimizer": "在数据并行的进程间切分优化器状态。",
    "MegatronConfig.use_dist_checkpointing": "以 Megatron 的分布式检查点格式读写。",
    "MegatronConfig.dist_checkpointing_path": "分布式检查点的目录。",
    "MegatronConfig.dist_checkpointing_prefix": "该检查点中名称的前缀。",
    "MegatronConfig.seed": "Megatron 自身随机状态的种子。",
    "MegatronConfig.override_ddp_config": "Megatron DDP 的其他参数。",
    "MegatronConfig.override_transformer_config": "Megatron transformer 配置的其他字段，例如 recompute_granularity。",
    "MegatronConfig.override_mcore_model_config": "Megatron 模型的其他参数。",
    "MegatronConfig.use_mbridge": "通过 mbridge 与 Hugging Face 格式互转权重。",
    "MegatronConfig.vanilla_mbridge": "使用 mbridge 本身而不是 Megatron-Bridge。",
    "MegatronConfig.forward_only": "只为前向计算构建模型。",
    "MegatronConfig.dtype": "前向与反向的计算类型；null 由 fsdp_config.mixed_precision.param_dtype 决定。",
    # actor
    "PolicyLossConfig.loss_mode": "策略损失：名称，或 path/to/file.py:function。",
    "PolicyLossConfig.clip_cov_ratio": "clip_cov：移出损失的 token 比例。",
    "PolicyLossConfig.clip_cov_lb": "clip_cov：可被移出的 token 的协方差下限。",
    "PolicyLossConfig.clip_cov_ub": "clip_cov：可被移出的 token 的协方差上限。",
    "PolicyLossConfig.kl_cov_ratio": "kl_cov：协方差最高、要加惩罚的 token 比例。",
    "PolicyLossConfig.ppo_kl_coef": "kl_cov：该惩罚的权重。",
    "RouterReplayConfig.mode": (
        "更新时重放哪一次的专家选择：计算旧对数概率的前向（R2）；引擎（R3，旧对数概率的前向也重放，"
        "需要 rollout.enable_rollout_routing_replay）；或不重放。"
    ),
    "RouterReplayConfig.record_file": "verl：记录专家选择的文件。无效果。",
    "RouterReplayConfig.replay_file": "verl：读取专家选择的文件。无效果。",
    "ActorConfig.strategy": "训练后端；其他角色跟随策略的设置。",
    "ActorConfig.ppo_mini_batch_size": (
        "每次更新的提示数（全部进程合计），每个提示带 rollout.n 个回答。最后一个 mini-batch 可以不满。"
    ),
    "ActorConfig.ppo_micro_batch_size": "全部进程一次前向反向的回答数；ppo_micro_batch_size_per_gpu 的旧写法。",
    "ActorConfig.ppo_micro_batch_size_per_gpu": (
        "单个进程一次前向反向的回答数；null 按 ppo_max_token_len_per_gpu 打包。它不会改变梯度。"
    ),
    "ActorConfig.use_dynamic_bsz": "按 token 数（ppo_max_token_len_per_gpu）而不是回答数切分 micro-batch。",
    "ActorConfig.ppo_max_token_len_per_gpu": "单个进程一个 micro-batch 的 token 预算；超出预算的单个回答自成一批。",
    "ActorConfig.grad_clip": "一次更新的最大梯度范数；0 不裁剪。范数非有限的更新会被跳过。",
    "ActorConfig.clip_ratio": "概率比的截断范围，在 clip_ratio_low 或 clip_ratio_high 为 null 时使用。",
    "ActorConfig.clip_ratio_low": "比率最多可低于 1 多少；null 等于 clip_ratio。",
    "ActorConfig.clip_ratio_high": (
        "比率最多可高于 1 多少；null 等于 clip_ratio。大于 clip_ratio_low 即 DAPO 的 clip-higher。"
    ),
    "ActorConfig.clip_ratio_c": "dual-clip：优势为负时比率最多按此值计；null 为关闭。",
    "ActorConfig.tau_pos": "sapo：优势为正时门函数的陡度。",
    "ActorConfig.tau_neg": "sapo：优势为负时门函数的陡度。",
    "ActorConfig.loss_agg_mode": "如何把逐 token 损失聚合成一个数，范围是全部进程上的整个 mini-batch。",
    "ActorConfig.loss_scale_factor": "seq-mean-token-sum-norm 所除的长度；null 等于 data.max_response_length。",
    "ActorConfig.entropy_coeff": "熵奖励的权重。",
    "ActorConfig.calculate_entropy": "即使 entropy_coeff 为 0 也在每一步记录 actor/entropy。",
    "ActorConfig.calculate_sum_pi_squared": "计算最优 token 基线所需的概率平方和。",
    "ActorConfig.sum_pi_squared_checkpointing": "反向时重算该平方和，而不保留中间值。",
    "ActorConfig.use_kl_loss": "把与参考策略的 KL 加入损失（GRPO）。不可与 algorithm.use_kl_in_reward 同用。",
    "ActorConfig.kl_loss_coef": "损失中 KL 的权重。",
    "ActorConfig.kl_loss_type": "损失中 KL 的估计方式；带 + 表示取其值、用 k2 的梯度。",
    "ActorConfig.ppo_epochs": "对每步的回答训练几遍。",
    "ActorConfig.shuffle": "每遍之前打乱回答；否则保持提示的顺序。",
    "ActorConfig.shuffle_mini_batches": "打乱一步内各 mini-batch 的次序，其内容不变（MindSpeed RL 同名键）。",
    "ActorConfig.data_loader_seed": "两种打乱的种子；null 使用 trainer.seed。",
    "ActorConfig.kl_loss_clamp": "把损失中每个 token 的 KL 限制在正负此值内（OpenRLHF：10）；null 不限。",
    "ActorConfig.tis_imp_ratio_cap": (
        "引擎与训练之间逐 token 重要性权重的上限，"
        "即 rollout_correction.rollout_is=token 与 rollout_is_threshold 的旧写法；null 或 -1 为关闭。"
    ),
    "ActorConfig.ema_beta": (
        "保存权重的滑动平均，每次更新后 平均 = beta 平均 + (1 - beta) 权重（OpenRLHF：0.992）；"
        "随模型保存，也是 hf_model 写出的权重；null 不保存。"
    ),
    "ActorConfig.aux_loss_coef": "混合专家模型路由负载均衡损失的权重，按 micro-batch 计算。",
    "ActorConfig.aux_loss_scope": (
        "该损失的范围：所有层合在一起、每层（各层损失相加），或每层中的每条序列。"
        "aux_loss 与 seq_aux_loss 即 layer 与 sequence 再除以每个 token 的专家数，与 Megatron 同名损失一致。"
    ),
    "ActorConfig.use_torch_compile": "在单个 GPU 上编译稠密模型的解码层与非 Triton 的输出头：更新更快，首次多花几秒。"
    "单进程 CPU 上则用 C 算子计算归一化、MLP 门控与 RoPE。",
    "ActorConfig.entropy_from_logits_with_chunking": "分块计算熵以节省内存。",
    "ActorConfig.entropy_checkpointing": "反向时重算熵，而不保留中间值。",
    "ActorConfig.use_fused_kernels": "跟随 model.use_fused_kernels。",
    "ActorConfig.use_remove_padding": "跟随 model.use_remove_padding。",
    "ActorConfig.use_prefix_grouper": "计算 log-prob 与更新时，同组回答的 prompt 只计算一次，而非每个回答各一次；"
    "同一 prompt 的回答留在同一 micro-batch。除舍入与 dropout 外结果不变。",
    "ActorConfig.ulysses_sequence_parallel_size": "分担一条序列的进程数：可整除注意力头则用 Ulysses，否则环形。",
    "ActorConfig.freeze_vision_tower": "不训练模型的视觉塔及其投影层。",
    "ActorConfig.load_weight": "从模型目录加载权重；关闭则随机初始化。",
    "RefConfig.strategy": "参考模型的后端；跟随策略。",
    "RefConfig.log_prob_micro_batch_size": "全部进程一次前向的回答数；log_prob_micro_batch_size_per_gpu 的旧写法。",
    "RefConfig.log_prob_micro_batch_size_per_gpu": (
        "单个进程一次前向的回答数；null 按 log_prob_max_token_len_per_gpu 打包。"
    ),
    "RefConfig.log_prob_use_dynamic_bsz": "按 token 数而不是回答数切分前向；跟随策略。",
    "RefConfig.log_prob_max_token_len_per_gpu": "单个进程一次前向的 token 预算；跟随策略。",
    "RefConfig.use_prefix_grouper": "同组回答的 prompt 只计算一次；跟随策略。",
    "RefConfig.ulysses_sequence_parallel_size": "分担一条序列的进程数，方式与策略相同；跟随策略。",
    "RefConfig.use_torch_compile": "编译参考模型的解码层与输出头；跟随策略。",
    "RefConfig.entropy_from_logits_with_chunking": "分块计算熵。",
    "RefConfig.entropy_checkpointing": "反向时重算熵；参考模型没有反向。",
    "RefConfig.load_weight": "从模型目录加载参考模型的权重；关闭则随机初始化，与策略的随机权重相同。",
    # rollout
    "ValKwargsConfig.temperature": "验证时的采样温度；0 为贪心。",
    "ValKwargsConfig.top_k": "验证时只在概率最高的若干 token 中采样；-1、0 或 null 为关闭。",
    "ValKwargsConfig.top_p": "验证时只在累计概率达到此值的 token 中采样；1 为关闭。",
    "ValKwargsConfig.n": "每个验证提示的回答数。",
    "ValKwargsConfig.do_sample": "验证时采样；关闭则无论温度如何都用贪心。",
    "ValKwargsConfig.min_p": "验证时舍去概率低于最高概率乘以此比例的 token；0 为关闭。",
    "ValKwargsConfig.repetition_penalty": "验证时对提示或回答中已有 token 的惩罚；1 为关闭。",
    "ValKwargsConfig.presence_penalty": "验证时从回答中已有 token 的 logit 减去的值；0 为关闭。",
    "ValKwargsConfig.frequency_penalty": "验证时 token 在回答中每出现一次就从其 logit 减去的值；0 为关闭。",
    "ValKwargsConfig.seed": "验证采样的随机种子；null 跟随 rollout 的种子，再跟随运行的种子。",
    "EngineKwargsConfig.builtin": (
        "内置引擎在 GPU 上的解码循环的参数：kv_cache_dtype、shared_prefix、few_rows、block_size、sync_interval、"
        "compiled、triton（见 docs/engines.md）。"
    ),
    "EngineKwargsConfig.vllm": (
        "原样传给 vLLM 的参数，值为 null 的会被略去；另有 Burnish 自己的 base_url、python、weight_dir、start_timeout"
        "（见 docs/engines.md）。"
    ),
    "EngineKwargsConfig.sglang": (
        "原样传给 SGLang 服务的参数；另有 Burnish 自己的 base_url、python、weight_sync、weight_dir、start_timeout"
        "（见 docs/engines.md）。"
    ),
    "EngineKwargsConfig.trtllm": "原样传给 TensorRT-LLM 的参数。",
    "SamplingConfig.name": "推理引擎。",
    "SamplingConfig.mode": "vLLM 在本进程内（sync），或作为 HTTP 服务（async）；其他引擎只有一种方式。",
    "SamplingConfig.temperature": "采样温度。策略与参考模型的对数概率也在同一温度下计算。",
    "SamplingConfig.top_k": (
        "只在概率最高的若干 token 中采样；-1、0 或 null 为关闭。限制采样会使比率有偏，运行时会提示。"
    ),
    "SamplingConfig.top_p": "只在累计概率达到此值的 token 中采样；1 为关闭。",
    "SamplingConfig.do_sample": "进行采样；关闭则无论温度如何都用贪心。",
    "SamplingConfig.n": "每个提示的回答数，即组大小。",
    "SamplingConfig.ignore_eos": "遇到结束符后继续生成，直到 response_length。",
    "SamplingConfig.min_p": "舍去概率低于最高概率乘以此比例的 token；0 为关闭。",
    "SamplingConfig.min_tokens": "在生成这么多 token 之前不出现结束符、停止 token 或停止字符串。验证时同样有效。",
    "SamplingConfig.stop": "回答文本中出现其中之一即结束；奖励只看到它之前的文本。验证时同样有效。",
    "SamplingConfig.stop_token_ids": "除模型自带结束符外还会结束回答的 token；不受 ignore_eos 影响。验证时同样有效。",
    "SamplingConfig.repetition_penalty": "对提示或回答中已有的 token，正 logit 除以此值，负 logit 乘以此值；1 为关闭。",
    "SamplingConfig.presence_penalty": "从回答中已有 token 的 logit 减去的值；0 为关闭。",
    "SamplingConfig.frequency_penalty": "token 在回答中每出现一次就从其 logit 减去的值；0 为关闭。",
    "SamplingConfig.bad_words": "模型永远不会完整生成的词。验证时同样有效。",
    "SamplingConfig.seed": "采样的随机种子；null 跟随运行的种子。",
    "SamplingConfig.logprobs": "在导出的 rollout 中为每个 token 附上这么多个最可能 token 的对数概率；null 不附。",
    "SamplingConfig.detokenize": "生成回答的文本。",
    "SamplingConfig.prompt_length": "引擎的最大提示长度；跟随 data.max_prompt_length。",
    "SamplingConfig.response_length": "引擎的最大回答长度；跟随 data.max_response_length。",
    "SamplingConfig.dtype": "引擎权重的数据类型；null 在 CPU 上为 float32，在 GPU 上为 bfloat16。",
    "SamplingConfig.gpu_memory_utilization": "引擎的权重与缓存可占的显存比例。在 CPU 上：缓存可占的空闲内存比例。",
    "SamplingConfig.free_cache_engine": "每次生成后释放引擎缓存，留给训练。",
    "SamplingConfig.max_model_len": (
        "提示与回答的最大总长；null 等于 prompt_length + response_length。更小时，回答只能用完提示剩下的长度。"
    ),
    "SamplingConfig.max_num_seqs": "引擎同时生成的最大回答数。",
    "SamplingConfig.max_num_batched_tokens": "引擎一步处理的最大 token 数（含提示）。",
    "SamplingConfig.disable_log_stats": "不报告引擎统计（运行中、等待中、缓存占用）。",
    "SamplingConfig.invariant": (
        "使回答不受同批其他请求影响，速度略降。在 GPU 上（内置引擎；Llama、Qwen2、Qwen3、Mistral），"
        "训练使用相同的内核，使生成与训练的对数概率逐位相等。null：CPU 上开启，GPU 上关闭。"
    ),
    "SpeculativeConfig.enable": (
        "在一个解码步中验证每个回答的多个草稿 token，仅在按实测步时与接受率能提高速度时进行；采样结果与不用草稿时相同。"
        "未启用 rollout.invariant 时，多算几行会改变最后几位。"
    ),
    "SpeculativeConfig.num_speculative_tokens": "一个解码步中每个回答的最大草稿 token 数；GPU 解码循环中最多 7 个。",
    "SpeculativeConfig.max_num_seqs": "允许验证草稿的最大并发回答数：草稿用于 rollout 的尾部。",
    "SamplingConfig.tensor_model_parallel_size": (
        "张量并行：共同持有一份引擎模型的设备数。多进程时每个引擎占用相邻的这么多进程；内置引擎此时不用 CUDA graph。"
    ),
    "SamplingConfig.data_parallel_size": "单个引擎内部的数据并行数（以服务运行的 vLLM、SGLang）。",
    "SamplingConfig.expert_parallel_size": "单个引擎内分担专家的进程数（SGLang；vLLM 为 1 或张量数乘数据数）。",
    "SamplingConfig.pipeline_model_parallel_size": "单个引擎的流水线级数（vLLM、SGLang）。",
    "SamplingConfig.enforce_eager": "不使用 CUDA graph；null 表示在 GPU 上使用，休眠后仍然有效。",
    "SamplingConfig.cudagraph_capture_sizes": "要捕获 CUDA graph 的批大小；null 由引擎选择。",
    "SamplingConfig.enable_chunked_prefill": "把提示按 256 个 token 拆到多个引擎步；关闭则拒绝超过 token 预算的提示。",
    "SamplingConfig.enable_prefix_caching": "为开头相同的其他提示保留完整的缓存块（256 个 token），直到权重更新。",
    "SamplingConfig.load_format": "引擎初始权重的来源：dummy* 为随机，其他从模型目录读取。",
    "SamplingConfig.use_fire_sampling": (
        "以温度 30 在最可能的 top_k（关闭时为 16）个 token 中采样第一个 token（FIRE，arXiv 2410.21236）。"
    ),
    "SamplingConfig.trust_remote_code": "允许引擎执行模型仓库自带的 Python 代码。",
    "RolloutConfig.log_prob_micro_batch_size": "策略重算旧对数概率时全部进程一次前向的回答数；下一个键的旧写法。",
    "RolloutConfig.log_prob_micro_batch_size_per_gpu": (
        "策略重算旧对数概率时单个进程一次前向的回答数；null 按 token 打包。"
    ),
    "RolloutConfig.log_prob_use_dynamic_bsz": "这些前向按 token 数而不是回答数切分；跟随策略。",
    "RolloutConfig.log_prob_max_token_len_per_gpu": "单个进程一次这种前向的 token 预算；跟随策略。",
    "RolloutConfig.calculate_log_probs": "要求引擎返回所采样 token 的对数概率。",
    "RolloutConfig.over_sample_rate": "每步丢弃的样本比例：采样 token 最多的那些，足够多的其他样本完成后即中止。"
    "这偏向短回答，分组可能因此缺样本（docs/gathering.md）。",
    "RolloutConfig.multi_stage_wake_up": "唤醒引擎时先恢复权重，同步后再恢复缓存，以降低显存峰值。",
    "RolloutConfig.enable_sleep_mode": "训练期间允许引擎释放内存。",
    "RolloutConfig.enable_rollout_routing_replay": (
        "记录引擎为每个 token 选择的专家，供 actor.router_replay.mode=R3 使用（内置引擎和 hf 引擎）。"
    ),
    "RolloutConfig.update_weights_bucket_megabytes": "每次发送给引擎的权重大小（MB）。",
    "RolloutConfig.layered_summon": "逐层聚合 LoRA 权重给引擎。",
    "RolloutConfig.layer_name_map": "Megatron 权重中融合层的名称。",
    "RolloutConfig.quantization": (
        "每次权重同步时把引擎的权重舍入到 8 位（内置引擎；GPU 上的 vllm）。除非另行设置 "
        "algorithm.rollout_correction，其偏差由重要性权重修正。null 保持 rollout.dtype。"
    ),
    "RolloutConfig.use_block_quant_rollout": "量化时每个 128 x 128 的块有一个缩放系数；false 为每个矩阵一个。",
    "RolloutConfig.verify_weights": "每次传输后，将引擎持有的每个权重的摘要与策略的比较。",
    "RolloutConfig.skip_rollout": "从 skip_dump_dir 读取回答而不生成；首次运行时写入。",
    "RolloutConfig.skip_dump_dir": "存放这些回答的目录。",
    "RolloutConfig.skip_tokenizer_init": "启动引擎时不加载分词器。",
    # turns
    "MultiTurnConfig.enable": "让一个回答跨越多轮，可使用工具或模拟用户。",
    "MultiTurnConfig.max_assistant_turns": "模型的最多轮数；null 不限。",
    "MultiTurnConfig.max_user_turns": "用户轮的最大数目，工具结果与模拟用户的回复合计；null 不限。",
    "MultiTurnConfig.max_turn_length": "助手一轮的最大 token 数；null 仅受 data.max_response_length 限制，"
    "后者限制所有轮次与工具结果之和。达到上限的一轮结束对话；用户自己的智能体（agent loop、OpenRLHF 智能体）"
    "得到被截断的一轮，由其自行决定。",
    "MultiTurnConfig.max_interaction_turns": "模拟用户回复的最大数目，不计工具结果；null 不限。",
    "MultiTurnConfig.max_parallel_calls": "一轮中同时执行的工具调用数；null 为不限。超出的调用以错误信息回复并计数"
    "（tools/over_limit）。",
    "MultiTurnConfig.max_tool_response_length": "工具返回文本的最大字符数；超出部分被截断；null 为不限。",
    "MultiTurnConfig.tool_response_truncate_side": "删去过长工具文本的哪一部分：left 为开头，与 verl 0.8 起一致。"
    "更早的 verl 和 MindSpeed RL 中 left 是保留的部分，其命令会自动换算。",
    "MultiTurnConfig.function_tool_path": "Python 文件，其中带 @function_tool 装饰器（verl.tools.function_tool）的函数"
    "即为工具；类型标注和文档字符串给出其描述。",
    "MultiTurnConfig.tool_config_path": "工具的 YAML 文件，格式同 verl：`tools: [{class_name, config, tool_schema}]`。"
    "内置工具和全部设置见 docs/tools.md。",
    "MultiTurnConfig.interaction_config_path": "模拟用户（verl 的 interaction）的 YAML 文件，"
    "interaction: [{name, class_name, config}]；每行用 extra_info.interaction_kwargs.name 选择。",
    "MultiTurnConfig.completion_callback": "类（点分名称或 path/to/file.py:Class）：其实例在每轮之后被调用，"
    "可以追加消息并再次提交请求，同 verl 0.4 的 CompletionCallback。",
    "MultiTurnConfig.history": "每轮采样所依据的上文：append 在已采样的 token 之后追加，保留思考内容；"
    "faithful 像聊天服务那样重新渲染对话，并在该上文中训练这一轮。",
    "MultiTurnConfig.use_inference_chat_template": "verl 中对应 history=faithful 的键；"
    "与 verl 不同，训练也使用渲染出的上文。",
    "MultiTurnConfig.tokenization_sanity_check_mode": "结束时把对话文本与按消息重新渲染的结果比较："
    "指标 rollout/tokenization_drift 为不一致的比例，并报告首处差异。",
    "MultiTurnConfig.format": "模型书写工具调用的格式；名称与 vLLM、SGLang、verl 一致。",
    "MultiTurnConfig.num_repeat_rollouts": "对话首轮之后模拟的后续数（CollabLLM）：只训练首轮，其得分是各后续的平均；"
    "null 让对话继续，训练所有轮次。",
    "AgentConfig.num_workers": "智能体工作进程数。",
    "AgentConfig.default_agent_loop": "没有 agent_name 的数据使用的智能体：single_turn_agent、tool_agent、"
    "agent_loop_config_path 或 @register 中的名称，或 path/to/file.py:Class。"
    "null 取其他键所需的智能体，否则为 single_turn_agent。",
    "AgentConfig.agent_loop_config_path": "自定义智能体循环的 YAML 文件：{name, _target_, 参数} 的列表。",
    "AgentConfig.agent_func_path": "OpenRLHF 方式的智能体 Python 文件（AgentExecutor 或函数 step）："
    "由它与引擎对话并给出奖励。",
    "AgentConfig.environment": "每个对话所处的环境：gymnasium、textarena、reasoning_gym、skyrl_gym、verifiers、"
    "verifiers_v1、openenv、package.module:Class 或 path/to/file.py:Class；其奖励即各轮的奖励。",
    "AgentConfig.environment_kwargs": "环境的参数。",
    "AgentConfig.timeout": "智能体或环境在模型的两轮之间最多可用的秒数，超过则该对话失败；null 不限。",
    "AgentConfig.agent_loop_manager_class": "verl：替换其智能体循环管理器的类（点分名称）。不支持：请编写智能体循环。",
    "TraceConfig.backend": "对话轨迹（各轮、工具调用、奖励的时间段）写到哪里；null 不记录。",
    "TraceConfig.token2text": "在轨迹中附上 token 的文本。",
    "TraceConfig.max_samples_per_step_per_worker": "每步和每个验证批次中记录的样本数（取最前的）；null 记录全部。",
    "PrometheusConfig.enable": "向 Prometheus 提供运行与引擎的指标（trainer.metrics_port；null 为任一空闲端口）。",
    "PrometheusConfig.port": "本机 Prometheus 服务的端口；会请它重新加载配置。",
    "PrometheusConfig.file": "为它写出的配置文件，含指标地址；相对于运行目录。",
    "PrometheusConfig.served_model_name": "引擎指标中的模型名；null 为模型路径。",
    "CheckpointEngineConfig.backend": "引擎独占设备时权重的传输方式；naive 在 GPU 间为 nccl，否则为 gloo。",
    "CheckpointEngineConfig.engine_kwargs": "传输方式的其他参数。",
    "ActorRolloutRefConfig.hybrid_engine": (
        "策略与引擎共用设备；false 时引擎另有 rollout.nnodes x rollout.n_gpus_per_node 个设备。"
        "单进程运行只有 async_training 允许 false，且仍共用设备。"
    ),
    "ActorRolloutRefConfig.nccl_timeout": "集合通信的超时秒数。",
}
