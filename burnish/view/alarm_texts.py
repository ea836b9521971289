"""What alarms mean and what to try, in English and Chinese."""

from __future__ import annotations


def _texts(english: tuple[str, str, str], chinese: tuple[str, str, str]) -> dict[str, str]:
    parts = ("title", "meaning", "remedy")
    return {
        **{f"{part}_en": text for part, text in zip(parts, english, strict=True)},
        **{f"{part}_zh": text for part, text in zip(parts, chinese, strict=True)},
    }


TEXTS = {
    "zero_variance": _texts(
        (
            "Groups with equal scores",
            "All responses of these groups have the same score, so that a group-relative advantage is zero: the step"
            " spends its tokens without a gradient.",
            "Use prompts the model solves sometimes (filter the data by pass rate), raise rollout.n, or set"
            " algorithm.filter_groups.enable=true. Look at a few groups on the Samples page: a reward that never"
            " fires looks the same.",
        ),
        (
            "组内得分全部相同",
            "这些组的所有回答得分相同，组内相对优势为零：这一步花费了 token，却没有梯度。",
            "换用模型有时能答对的题目（按通过率筛选数据），增大 rollout.n，或设置 algorithm.filter_groups.enable=true。"
            "在“样本”页查看几个组：从不生效的奖励函数也是这种现象。",
        ),
    ),
    "truncation": _texts(
        (
            "Responses cut at the length limit",
            "Many responses reach data.max_response_length before they end. Their answers are missing, and scores"
            " punish length instead of mistakes.",
            "Raise data.max_response_length, penalize length early (reward_model.overlong_buffer), or mask truncated"
            " responses. A growing share of repeated text on the Samples page means that the policy degenerates.",
        ),
        (
            "回答达到长度上限被截断",
            "许多回答在结束之前达到 data.max_response_length。答案缺失，得分惩罚的是长度而不是错误。",
            "增大 data.max_response_length，尽早惩罚过长回答（reward_model.overlong_buffer），或屏蔽被截断的回答。"
            "如果“样本”页上重复文本越来越多，说明策略正在退化。",
        ),
    ),
    "kl_spike": _texts(
        (
            "KL divergence jumped",
            "The policy moved much further in one step than in the steps before: the update was too large, or a few"
            " tokens have extreme ratios.",
            "Lower the learning rate, lower actor.grad_clip, use fewer updates per batch (larger mini-batches, one"
            " epoch), or raise the KL coefficient. The Tokens page shows which tokens have large ratios.",
        ),
        (
            "KL 散度突增",
            "策略在一步中的移动远大于之前各步：更新过大，或少数 token 的概率比极端。",
            "降低学习率，减小 actor.grad_clip，减少每批更新次数（更大的小批量、一个 epoch），或增大 KL 系数。"
            "“Token”页可查看概率比大的 token。",
        ),
    ),
    "gradient_spike": _texts(
        (
            "Gradient norm jumped",
            "One batch has a far larger gradient than the ones before. Clipping limits the step, but its direction is"
            " that of the outlier.",
            "Open the step's samples: look for extreme advantages, very long responses or broken rewards. Lower"
            " actor.grad_clip or the learning rate if it repeats.",
        ),
        (
            "梯度范数突增",
            "某一批的梯度远大于之前各批。裁剪限制了步长，但方向由异常样本决定。",
            "打开该步的样本：检查极端优势、过长回答或出错的奖励。若反复出现，减小 actor.grad_clip 或学习率。",
        ),
    ),
    "mismatch": _texts(
        (
            "Engine and trainer disagree",
            "The engine that sampled and the model that trains assign different probabilities to the same tokens."
            " Importance ratios are biased, and training can collapse late.",
            "Check that weights are synced (tied embeddings, adapters), use the same dtype in both, and turn on"
            " algorithm.rollout_correction. On the Tokens page, color by ratio to see where they differ.",
        ),
        (
            "推理引擎与训练器不一致",
            "采样引擎与训练模型对同一 token 给出不同概率。重要性比有偏，训练后期可能崩溃。",
            "检查权重同步（共享嵌入、适配器），两边使用相同的 dtype，"
            "并开启 algorithm.rollout_correction。在“Token”页按概率比着色查看差异位置。",
        ),
    ),
    "clipping": _texts(
        (
            "Many ratios are clipped",
            "A large share of tokens moved beyond the clip range: later mini-batches learn from stale data.",
            "Use fewer epochs or mini-batches per step, or a lower learning rate.",
        ),
        (
            "大量概率比被裁剪",
            "大量 token 超出裁剪范围：靠后的小批量在用过期数据学习。",
            "减少每步的 epoch 或小批量数，或降低学习率。",
        ),
    ),
    "reward_failures": _texts(
        (
            "The reward failed",
            "The reward function raised, timed out or returned no number for some responses; reward.on_error decides"
            " what they score.",
            "Read the run's notes: they name the first failures. Filter the Samples page by problem, and fix the"
            " reward or raise reward.timeout.",
        ),
        (
            "奖励计算失败",
            "奖励函数对部分回答抛出异常、超时或未返回数字；它们的得分由 reward.on_error 决定。",
            "查看运行笔记，其中列出最初的失败。在“样本”页筛选有问题的样本，修正奖励函数或增大 reward.timeout。",
        ),
    ),
    "tools": _texts(
        (
            "Tool calls fail",
            "A large share of tool calls ends with an error or a timeout. The model learns from error messages.",
            "Open conversations with tools on the Samples page: errors are in the tool turns. Check the service behind"
            " the tool, its rate limit and its timeout.",
        ),
        (
            "工具调用失败",
            "大量工具调用以错误或超时结束，模型在从错误信息中学习。",
            "在“样本”页打开使用工具的对话：错误在工具轮次中。检查工具背后的服务、限流与超时设置。",
        ),
    ),
    "stale": _texts(
        (
            "Training on stale data",
            "Tokens are trained several weight versions after they were sampled.",
            "Lower async_training.staleness_threshold or queue_size, sync weights more often"
            " (trigger_parameter_sync_step), or turn on algorithm.rollout_correction.",
        ),
        (
            "训练数据过期",
            "token 在采样之后经过多个权重版本才被训练。",
            "减小 async_training.staleness_threshold 或 queue_size，更频繁地同步权重（trigger_parameter_sync_step），"
            "或开启 algorithm.rollout_correction。",
        ),
    ),
    "skipped_updates": _texts(
        (
            "Updates were skipped",
            "The gradient was not finite, so the optimizer did not step.",
            "With fp16, a few skips at the start are normal (loss scaling). Otherwise look for infinite log-probs or"
            " rewards in that step, use bf16 or float32, and lower the learning rate.",
        ),
        (
            "更新被跳过",
            "梯度不是有限数，优化器没有更新。",
            "使用 fp16 时开头出现几次是正常的（损失缩放）。"
            "否则检查该步是否有无穷的对数概率或奖励，改用 bf16 或 float32，并降低学习率。",
        ),
    ),
    "non_finite": _texts(
        (
            "A metric is not a number",
            "A value became NaN or infinite. What depends on it is meaningless from there on.",
            "Find the first step where it happened, and resume from a checkpoint before it with a lower learning rate.",
        ),
        (
            "指标不是有限数",
            "某个值变成 NaN 或无穷，此后依赖它的一切都没有意义。",
            "找到最早出现的步，降低学习率并从之前的检查点恢复。",
        ),
    ),
    "entropy": _texts(
        (
            "Entropy collapsed",
            "The policy is almost deterministic. Samples of a group become equal and exploration ends.",
            "If scores still rise this may be fine. Else raise actor.clip_ratio_high, add actor.entropy_coeff, or add"
            " a KL penalty; lower the learning rate.",
        ),
        (
            "熵坍缩",
            "策略几乎是确定性的。组内样本趋同，探索停止。",
            "如果得分仍在上升，可能没有问题。否则增大 actor.clip_ratio_high，"
            "设置 actor.entropy_coeff，或加入 KL 惩罚；降低学习率。",
        ),
    ),
    "drift": _texts(
        (
            "Conversations differ from the chat template",
            "The tokens of conversations are not what the template renders from their messages. Training uses the"
            " sampled tokens, but evaluation elsewhere may see others.",
            "Read the first difference in the notes; a template that removes old reasoning is the usual cause.",
        ),
        (
            "对话与聊天模板不一致",
            "对话的 token 与模板由消息渲染出的不同。训练使用采样得到的 token，但其他地方的评测可能不同。",
            "查看笔记中的第一处差异；常见原因是模板会删除之前的思考内容。",
        ),
    ),
    "faults": _texts(
        (
            "The run survived faults",
            "A worker died and the run restarted, or a checkpoint could not be written.",
            "Read the notes and the free disk space; check the machine's logs for killed processes.",
        ),
        (
            "运行经历了故障",
            "有工作进程退出后运行重启，或检查点写入失败。",
            "查看笔记与剩余磁盘空间；在系统日志中查找被杀死的进程。",
        ),
    ),
    "hang": _texts(
        (
            "The run hung",
            "No phase began or ended for trainer.hang_timeout seconds. The stacks of all threads are in"
            " hang_rank_*.txt in the run folder.",
            "Read the stacks, then run the same command: it resumes from the last checkpoint.",
        ),
        (
            "运行挂起",
            "在 trainer.hang_timeout 秒内没有任何阶段开始或结束。所有线程的堆栈在运行目录的 hang_rank_*.txt 中。",
            "查看堆栈，然后运行同一命令：它会从最近的检查点恢复。",
        ),
    ),
    "silent": _texts(
        (
            "No sign of life",
            "The process exists, but has written nothing for many steps' worth of time.",
            "Look at the machine (GPU load, disk). trainer.hang_timeout ends a hung run and writes the stacks.",
        ),
        (
            "没有活动迹象",
            "进程存在，但已有相当于许多步的时间没有写入任何内容。",
            "检查机器（GPU 负载、磁盘）。trainer.hang_timeout 会结束挂起的运行并写出堆栈。",
        ),
    ),
    "crashed": _texts(
        (
            "The run crashed",
            "An error ended the run, or its process was killed. The whole traceback was on its standard error.",
            "Killed without an error: look for the out-of-memory killer in the machine's logs. Then run the same"
            " command: it resumes from the last checkpoint.",
        ),
        (
            "运行崩溃",
            "运行因错误结束，或其进程被杀死。完整的堆栈在其标准错误输出中。",
            "若没有错误信息而被杀死：在系统日志中查找内存不足（OOM killer）。"
            "然后运行同一命令：它会从最近的检查点恢复。",
        ),
    ),
    "stopped": _texts(
        (
            "The run stopped before its end",
            "No process trains in this folder, and the last step is not reached.",
            "Run the same command to resume from the last checkpoint.",
        ),
        ("运行提前停止", "没有进程在此目录中训练，且尚未到达最后一步。", "运行同一命令即可从最近的检查点恢复。"),
    ),
}
