"""What the allocator does with freed memory."""

import platform
import subprocess
import sys

import pytest

CODE = """
import resource, torch
from attention_probe.probe import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(16, 2**20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

without = faults()
assert keep_freed_memory()
faults()  # the first block is still new
print(without, faults())
"""


@pytest.mark.slow
def test_freed_memory_is_not_asked_for_again():
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("only glibc takes the advice")
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    without, kept = map(int, done.stdout.split())
    assert kept < without / 5
