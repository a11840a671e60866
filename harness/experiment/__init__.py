"""What is asked: conditions and problems become prompts, checked token by token, and a config becomes a plan.

config -> problems x conditions -> prompts with their token checks -> plan -> requests
"""
