import pytest

from tests.commands.test_cli import refused


@pytest.fixture
def regrade(command, succeed):
    """Regrade a file; return the output in one line. With a message, the file must be refused."""

    def run(path, *options, message=None):
        if message:
            refused(command("regrade", path, *options), message)
            return ""
        return " ".join(succeed("regrade", path, *options).split())

    return run
