from functools import cache

from torch.utils import collect_env

# each evaluation collects it again, which takes 3 s
collect_env.get_pretty_env_info = cache(collect_env.get_pretty_env_info)
