from functools import cache

from torch.utils import collect_env

collect_env.get_pretty_env_info = cache(
    collect_env.get_pretty_env_info
)  # 3 s, asked anew by each evaluation
