"""What a run asks: problems and conditions become checked prompts, and a config becomes a plan.

config -> problems x conditions -> prompts with their token checks -> plan -> requests
"""
