"""Comments, docstrings, messages and pages name only modules, functions and keys that exist."""

import ast
import re
import tokenize
from types import SimpleNamespace

import yaml

import harness
from tests.make import ROOT, module_fixture, read_data, with_cases

DESCRIBED = ("harness", "attention_probe")
DOTTED = re.compile(r"(?<![\w./-])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+(?![\w/-])")
QUOTED = re.compile(r"`([a-z]+\d*_[a-z\d_]*[a-z\d]|[A-Z]+_[A-Z\d_]+|[A-Z][a-z]\w+)(?:\(\))?`")
PAGES, SETTINGS, DATA_FILES, FOREIGN = read_data("references").values()


def bound_names(statement):
    """The names that a statement binds; of a function only its own name."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {statement.name}
    nodes = list(ast.walk(statement))
    targets = [node for node in nodes if isinstance(getattr(node, "ctx", None), ast.Store)]
    names = {getattr(node, "id", None) for node in targets}
    return names | {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}


def attribute_names(definition):
    """Fields and methods of a class, and the attributes that its methods set."""
    names = set().union(*map(bound_names, definition.body))
    for node in ast.walk(definition):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return names


def read_module(code, package, path):
    """Add what a file of Python defines, the words of its code, and the texts in it."""
    tree = ast.parse(path.read_text())
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    code.modules[name] = set().union(*map(bound_names, tree.body))
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef):
            attributes = attribute_names(statement)
            code.modules[f"{name}.{statement.name}"] = attributes
            code.attributes.update(attributes)
        elif isinstance(statement, ast.FunctionDef):
            code.functions.add(statement.name)
    if package == "tests":
        return
    with tokenize.open(path) as lines:
        for token in tokenize.generate_tokens(lines.readline):
            # not the code in a formatted string, which is one token before Python 3.12
            is_string = token.type == tokenize.STRING and not re.match("r?f", token.string)
            if token.type == tokenize.NAME or (is_string and "`" not in token.string):
                code.words.update(re.findall(r"\w+", token.string))
            if token.type == tokenize.COMMENT or (is_string and package in DESCRIBED):
                code.texts.append((path, token.string))


@module_fixture
def code():
    """The project's modules and classes with the names in them, its words, and its texts."""
    code = SimpleNamespace(modules={}, attributes=set(), functions=set(), words=set(), texts=[])
    for package in (*DESCRIBED, "benchmarks", "tools", "tasks", "tests"):
        for path in (ROOT / package).rglob("*.py"):
            read_module(code, package, path)
    code.modules["harness"].update(harness.__all__)  # which are imported at their first use
    code.modules["mless"] = code.modules["harness"]
    for pattern in SETTINGS:
        for path in ROOT.glob(pattern):
            settings = path.read_text()
            code.texts.append((path, "\n".join(re.findall("#.*", settings))))
            code.words.update(re.findall(r"\w+", re.sub("#.*", "", settings)))
    for pattern in PAGES:
        for path in ROOT.glob(pattern):
            code.texts.append((path, path.read_text()))
    code.words.update(*(name.split(".") for name in code.modules))
    return code


def is_defined(code, module, names):
    """Whether names behind a module are a module in it, a name of it, or one of its class."""
    first, *rest = names
    if f"{module}.{first}" in code.modules:
        return not rest or is_defined(code, f"{module}.{first}", rest)
    return first in code.modules[module]


def is_stale(code, reference):
    """Whether a dotted name begins with a module or class of the project and ends nowhere.

    Also one that ends with a function of the project, and begins with no module that has it. An
    ordinary word is not a module if the name behind it is an attribute: `model.label`, `run.about`.
    """
    if reference in FOREIGN or reference.endswith((*DATA_FILES,)):
        return False
    first, *names = reference.split(".")
    modules = [name for name in code.modules if f".{name}".endswith(f".{first}")]
    if names == ["py"]:
        return not modules
    if "_" not in first and names[0] in code.attributes:
        return False
    if modules:
        return not any(is_defined(code, module, names) for module in modules)
    return names[-1] in code.functions


def find_references(code, pattern):
    """Every file with a name of the pattern in its texts, and the name."""
    for path, text in code.texts:
        for name in pattern.findall(text):
            yield str(path.relative_to(ROOT)), name


def test_dotted_names_of_modules_functions_and_attributes_exist(code):
    references = set(find_references(code, DOTTED))
    stale = sorted(" ".join(entry) for entry in references if is_stale(code, entry[1]))
    assert len(references) > 300 and not stale, "\n".join(stale)


def test_quoted_names_are_words_of_the_code(code):
    references, words = set(find_references(code, QUOTED)), code.words.union(FOREIGN)
    stale = sorted(" ".join(entry) for entry in references if entry[1] not in words)
    assert len(references) > 200 and not stale, "\n".join(stale)


@with_cases
def test_a_stale_name_is_found(code, reference, stale):
    assert is_stale(code, reference) == stale


def test_every_table_of_cases_belongs_to_a_test():
    for path in (ROOT / "tests").rglob("test_*.yaml"):
        source = path.with_suffix(".py").read_text()
        names = yaml.safe_load(path.read_text())
        assert not [name for name in names if f"\ndef {name}(" not in source], path
