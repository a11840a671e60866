"""Fill a template of a self-contained page, whose policy allows only its own script and style."""

import base64
import hashlib
from collections.abc import Mapping
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from harness.display.value_texts import visible
from harness.errors import ConfigError
from harness.runs.stored_files import explain_write_errors, is_stored
from harness.runs.versions_and_hashes import software_facts

TEMPLATE_PACKAGE = "harness.display.report"
"""The package with the templates, scripts and styles."""
CODE_FILES = {
    "style": ("style.css", "attention.css"),
    "script": ("shared.js", "attention.js", "script.js"),
}
"""The files of every page. A script does nothing on a page without its elements."""


def prepare_page_file(output: Path) -> None:
    """Make the folder of a page, and raise if the page would replace a file of another kind.

    Raises:
        ConfigError: the file exists and is not a page.
        JournalError: the folder cannot be made.
    """
    with explain_write_errors(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        if is_stored(output) and not output.suffix.startswith(".htm"):
            raise ConfigError(
                f"{output} is not a report: expected an .html file, or a file that does not exist."
            )


def fill_template(name: str, facts: Mapping[str, Any]) -> str:
    """The page of a template. Lone surrogates, which no file can hold, become question marks."""
    environment = Environment(
        loader=PackageLoader(TEMPLATE_PACKAGE, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["visible"] = partial(visible, kept_characters="\n\t")
    code_variables: dict[str, str] = {}
    for kind, file_names in CODE_FILES.items():
        code = "".join(
            files(TEMPLATE_PACKAGE).joinpath(file_name).read_text(encoding="utf-8")
            for file_name in file_names
        )
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        # Our own code is not escaped. The page's policy runs only code with this hash.
        code_variables[kind] = Markup(code)
        code_variables[f"{kind}_hash"] = f"sha256-{digest}"
    page = environment.get_template(name).render(facts, made_by=software_facts(), **code_variables)
    return page.encode("utf-8", "replace").decode()
