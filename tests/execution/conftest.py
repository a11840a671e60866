import pytest

from tests.commands.test_cli import refused
from tests.make import one_line


@pytest.fixture
def regrade(command, succeed):
    """Regrade a file; return the output in one line. With a message, the file must be refused."""

    def run(path, *options, message=None):
        if message:
            refused(command("regrade", path, *options), message)
            return ""
        return one_line(succeed("regrade", path, *options))

    return run
