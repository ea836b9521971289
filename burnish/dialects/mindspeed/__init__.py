"""MindSpeed RL 2.3 (and key names of 2.2): its YAML sections and its scripts cli/train_{grpo,dapo,ppo}.py."""
