import pytest

from tests.commands.test_cli import refused


@pytest.fixture
def regrade(command):
    """Regrade a file; return the output in one line. With a message, the file must be refused."""

    def run(path, *options, message=None):
        result = command("regrade", path, *options)
        if message:
            refused(result, message)
        else:
            assert result.returncode == 0, result.stderr
        return " ".join(result.stdout.split())

    return run
