import json
import logging
import re
from pathlib import Path

import pytest
import yaml
from lm_eval.tasks import TaskManager

from harness import resources
from harness.experiment.conditions import named_conditions
from harness.experiment.problems import MATH500_REPOSITORY, MATH500_REVISION
from harness.experiment.tokenizer import fit_filler
from harness.lm_eval_plugin.task_folders import GROUP, write_standalone
from tests.conftest import REFUSES_SYSTEM_AND_ASKS_CLOCK, VOCABULARIES, load_vocabulary
from tests.make import TOY, TOY_MODEL

NAMES = list(named_conditions())
PROBLEMS = TOY / "demo.jsonl"


def write(folder, model=None):
    """The folder as the command writes it, but with the bundled problems: the hub's are not at hand."""
    write_standalone(folder, model)
    shared = folder / f"_{GROUP}_yaml"
    text = shared.read_text()
    hub = (
        f"dataset_path: {MATH500_REPOSITORY}\ndataset_name: default\ndataset_kwargs:\n  revision: {MATH500_REVISION}\n"
    )
    assert text.startswith(hub)
    local = {"data_files": {"test": str(PROBLEMS)}, "cache_dir": str(folder / "cache")}
    shared.write_text(f"dataset_path: json\ndataset_kwargs: {json.dumps(local)}\n" + text.removeprefix(hub))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("standalone") / "tasks")


def load(path, names, **metadata):
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # ours warn that they take metadata
    return TaskManager(include_path=str(path), include_defaults=False, metadata=metadata).load(names)["tasks"]


def ask(task, template=None, limit=None):
    task.build_all_requests(limit=limit, apply_chat_template=template is not None, chat_template=template)
    return [instance.args for instance in task.instances]


def test_it_imports_nothing_of_ours_and_pins_the_data(tmp_path):
    written = write_standalone(tmp_path / "new" / "tasks")
    assert written == sorted(str(path) for path in (tmp_path / "new" / "tasks").iterdir())
    code = "".join(Path(path).read_text() for path in written if not path.endswith(".md"))
    assert not re.search(r"harness|attention_probe|import mless", code)
    shared = (tmp_path / "new" / "tasks" / f"_{GROUP}_yaml").read_text()
    assert MATH500_REPOSITORY in shared and MATH500_REVISION in shared


def test_lm_eval_lists_and_loads_the_tasks_without_a_warning(folder, caplog):
    with caplog.at_level(logging.WARNING):
        logging.getLogger("lm_eval").setLevel(logging.WARNING)
        manager = TaskManager(include_path=str(folder), include_defaults=False)
        tasks = manager.load([GROUP])["tasks"]
    assert set(manager.all_tasks) == {GROUP, *tasks}
    assert list(tasks) == [f"{GROUP}_{name}" for name in NAMES]
    assert [record.getMessage() for record in caplog.records] == []
    TaskManager(include_path=[str(folder), str(folder)], include_defaults=False)
    assert "overrides existing task" in caplog.text  # a warning would have been seen


@pytest.mark.parametrize(("model", "problems"), [(None, 100), pytest.param(TOY_MODEL, 500, marks=pytest.mark.slow)])
def test_its_prompts_are_those_of_our_tasks(model, problems, folder, tmp_path, toy_tokenizer):
    """With a chat template and without; the generation settings too."""

    def template(messages, add_generation_prompt=True):
        return toy_tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_generation_prompt)

    path = folder if model is None else write(tmp_path / "tasks", model)
    theirs = load(path, [GROUP])
    ours = load(
        resources.folder("tasks"), ["math500_conditions"], **({"pretrained": model} if model is not None else {})
    )
    different = set()
    for name in NAMES:
        for way in (None, template):
            expected, got = ask(ours[f"math500_{name}"], way, problems), ask(theirs[f"{GROUP}_{name}"], way, problems)
            assert len(got) == problems and got == expected, (name, way)
            different.add(got[0][0])
    assert len(different) == 2 * len(NAMES)


@pytest.mark.parametrize(("kind", "tokens"), [*zip(VOCABULARIES, (59, 63), strict=True)])
def test_the_readme_says_how_long_the_fillers_are(kind, tokens, folder):
    text = " ".join((folder / "README.md").read_text().split())
    assert "has 59 tokens in the first and 63 in the second" in text and "have exactly 55 tokens in both" in text
    tokenizer = load_vocabulary(kind)
    lengths = {}
    for name in NAMES[1:]:
        said = yaml.safe_load((folder / f"{GROUP}_{name}.yaml").read_text())["doc_to_text"]
        filler = said.removesuffix(" \n\n{{problem}}")
        ids = tokenizer(f". \n\n{filler} \n\nA", return_offsets_mapping=True, add_special_tokens=False)
        inside = [start for start, end in ids["offset_mapping"] if start < end and 4 < end and start < 4 + len(filler)]
        lengths[name] = len(inside)
    assert lengths == {"mless": 55, "mful": 55, "random": tokens}


def test_with_a_model_the_sentence_has_its_exact_length_and_the_readme_says_so(tmp_path, toy_tokenizer):
    write_standalone(tmp_path, TOY_MODEL)
    sentence = fit_filler(named_conditions()["random"], toy_tokenizer)
    assert sentence in (tmp_path / f"{GROUP}_random.yaml").read_text()
    assert f"sentence has exactly 55 in the tokenizer of {TOY_MODEL}" in (tmp_path / "README.md").read_text()


def test_a_model_that_refuses_a_system_turn_gets_everything_in_the_users(tmp_path, toy_tokenizer):
    toy_tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text((TOY / "model" / "config.json").read_text())
    (tmp_path / "model" / "chat_template.jinja").write_text(REFUSES_SYSTEM_AND_ASKS_CLOCK)
    (tmp_path / "tasks").mkdir()  # an empty folder is taken
    path = write(tmp_path / "tasks", str(tmp_path / "model"))
    task = load(path, [GROUP])[f"{GROUP}_mless"]

    def template(messages, add_generation_prompt=True):
        assert [turn["role"] for turn in messages] == ["user"]
        return messages[0]["content"]

    assert ask(task, template) == ask(task)  # a raw prompt has no turns, and is the same as ever
    assert ask(task)[0][0].startswith("You are an expert")


@pytest.mark.parametrize(
    ("completion", "exact_match", "math_verify"),
    [
        ("So it is $\\boxed{\\frac{1}{2}}$.", 1, 1),
        ("\\boxed{3}, no: \\boxed{\\dfrac12}", 1, 0),  # math_verify takes the two together
        ("So it is $\\boxed{0.5}$.", 1, 1),
        ("So it is $\\boxed{\\frac{1}{3}}$.", 0, 0),
        ("The answer is $\\frac{1}{2}$.", 0, 1),  # math_verify reads any formula
        ("Final Answer: The final answer is $\\frac{1}{2}$. I hope it is correct.", 0, 1),
        ("\\fbox{3}", 0, 0),
        ("\\boxed3 and \\frac{1}{4}", 0, 0),
        ("\\boxed{3", 0, 0),
        ("\\boxed{}", 0, 0),
        ("", 0, 0),
    ],
)
def test_the_last_box_is_scored_by_lm_evals_own_functions(folder, completion, exact_match, math_verify):
    """As the main thread of a process does it: math_verify's timeouts are alarm signals."""
    task = load(folder, [f"{GROUP}_wo"])[f"{GROUP}_wo"]
    doc = {**task.eval_docs[0], "solution": "Half of it: $\\boxed{\\frac{1}{2}}$.", "answer": "\\frac{1}{2}"}
    assert task.process_results(doc, [completion]) == {"exact_match": exact_match, "math_verify": math_verify}


@pytest.mark.slow
@pytest.mark.parametrize("chat", [False, True])
def test_stock_lm_eval_runs_and_scores_the_tasks_without_our_package(without_mless, folder, tmp_path, chat):
    arguments = ["--model", "hf", "--model_args", f"pretrained={TOY_MODEL}", "--device", "cpu", "--limit", "3"]
    arguments += ["--tasks", GROUP, "--include_path", str(folder), "--gen_kwargs", "max_gen_toks=64"]
    arguments += ["--log_samples", "--output_path", str(tmp_path), *["--apply_chat_template"] * chat]
    done = without_mless("-m", "lm_eval", "run", *arguments)
    assert done.returncode == 0, done.stderr[-2000:]
    scores = []
    for name in NAMES:
        (log,) = tmp_path.rglob(f"samples_{GROUP}_{name}_*.jsonl")
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert len(lines) == 3
        scores += [(line["exact_match"], line["math_verify"]) for line in lines]
        start = "<|im_start|>system\n" if chat else "You are an expert"
        assert all(line["arguments"]["gen_args_0"]["arg_0"].startswith(start) for line in lines)
        assert re.search(rf"{GROUP}_{name} *\|", done.stdout), done.stdout
    assert (1, 1) in scores  # not in each: on a busy machine lm-eval's own timeouts of 5 s end some comparisons
    # lm-eval also warns where a task has the name of one of its own
    assert not [line for line in done.stderr.splitlines() if "WARNING" in line and GROUP in line]
