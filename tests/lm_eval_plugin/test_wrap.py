import re
import sys
from itertools import chain
from pathlib import Path

import pytest

from harness.constants import SEPARATOR
from harness.errors import PromptMismatchError, RunError
from harness.experiment.conditions import NAMED_CONDITIONS
from harness.experiment.prompts.tokenizer import encode, fit_filler, load_tokenizer
from harness.lm_eval_plugin.task_folders import write_wrapped_tasks
from tests.conftest import installed, succeeded
from tests.lm_eval_plugin.wrapped_tasks import (
    DOCUMENTS,
    SETTINGS,
    Answering,
    by_document,
    evaluate,
    list_variants,
    open_manager,
    read_task,
    write_both,
    write_logs,
)
from tests.make import ROOT, TOY_MODEL, table_page, with_cases

QUICK = ["gsm8k", "mmlu_pro_math", "eq_bench"]
"""Their prompts come from a template with drawn examples, from a function that words examples in
another way, and from the name of a field."""


@pytest.mark.parametrize(
    "names", [QUICK, pytest.param(list(DOCUMENTS), marks=pytest.mark.slow, id="all")]
)
def test_without_a_filler_the_prompts_are_lm_evals_own_by_its_hash(names, tmp_path):
    """In all layouts. Under `mless` the filler stands before the question, and nothing else."""
    keys = {name: write_both(name, tmp_path) for name in names}
    assert len({task["stock_file"].partition("/")[0] for task in keys.values()}) == len(names)
    model, tasks = Answering(), open_manager(tmp_path).load(names)["tasks"]
    variants = [*chain.from_iterable(map(list_variants, names))]
    for options in SETTINGS["layouts"].values():
        samples = evaluate(variants, tmp_path, model, **options)["samples"]
        document_count = 0
        for name in names:
            by_variant = [by_document(samples[variant]) for variant in list_variants(name)]
            assert len(by_variant[0]) >= 2
            document_count += len(by_variant[0])
            for stock, wo, mless in zip(*by_variant, strict=True):
                question = tasks[name].doc_to_text(stock["doc"])
                check_prompts(stock, wo, mless, question, keys[name]["filler"])
    page = (ROOT / "docs/lm_eval_tasks.md").read_text()
    assert set(names) <= set(re.findall(r"\w+", page))
    if names == list(DOCUMENTS):
        assert f"all {document_count} documents" in page


def check_prompts(stock, wo, mless, question, filler):
    """Compare the samples of a document."""
    keys = stock.keys() - {"arguments"}  # the prompt has a hash among the other keys
    assert {key: wo[key] for key in keys} == {key: stock[key] for key in keys}
    prompts, settings = zip(*(sample["arguments"][0] for sample in (stock, wo, mless)), strict=True)
    assert settings[0] == settings[1] == settings[2]
    before, after = prompts[2].split(filler)
    assert before + after == prompts[0] and after.startswith(question)
    _, spans = encode(prompts[2], load_tokenizer(TOY_MODEL))
    first, last = len(before), len(before) + len(filler.removesuffix(SEPARATOR))
    assert sum(first <= start < end <= last for start, end in spans) == 55


@pytest.fixture
def folder(tmp_path):
    """The folder of wrapped tasks, which a test writes."""
    return tmp_path / "tasks"


def test_the_files_hold_the_filler_and_need_nothing_of_ours(folder):
    messages = write_wrapped_tasks(folder, "gsm8k", 'wo, {name: dots, unit: ".", count: 3}')
    assert messages[-1].split(" \\\n    ") == [  # as a shell reads it, in 80 columns
        "lm_eval --model vllm --model_args pretrained=MODEL",
        f"--include_path {folder} --log_samples --output_path results",
        "--tasks gsm8k_wo,gsm8k_dots",
    ]
    assert read_task(folder / "gsm8k_wo.yaml")["filler"] == ""
    assert read_task(folder / "gsm8k_dots.yaml")["filler"] == f". . .{SEPARATOR}"
    for path in folder.iterdir():
        lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
        ours = rf"harness|attention_probe|import mless|{re.escape(str(Path.home()))}"
        assert not re.search(ours, "\n".join(lines))
    assert open_manager(folder).all_tasks == ["gsm8k_dots", "gsm8k_wo"]


def test_with_a_model_the_sentence_has_its_length_and_tokens_are_counted(folder, toy_tokenizer):
    messages = write_wrapped_tasks(
        folder, "gsm8k", 'random, {name: counted, text: "Count: 1 2 3"}', TOY_MODEL
    )
    sentence = fit_filler(NAMED_CONDITIONS["random"], toy_tokenizer)
    assert read_task(folder / "gsm8k_random.yaml")["filler"] == sentence + SEPARATOR
    assert f"gsm8k_random: 55 filler tokens in the tokenizer of {TOY_MODEL}" in messages
    token_count = len(toy_tokenizer("Count: 1 2 3", add_special_tokens=False)["input_ids"])
    text = (folder / "gsm8k_counted.yaml").read_text().replace("\n# ", " ")
    assert f"counted, {token_count} filler tokens in the tokenizer of {TOY_MODEL}." in text
    condition = "{name: long, unit: antidisestablishment}"
    with pytest.raises(PromptMismatchError, match="splits the unit"):
        write_wrapped_tasks(folder / "more", "gsm8k", condition, TOY_MODEL)


@pytest.mark.slow
@with_cases
def test_the_count_holds_at_the_start_and_after_a_line_break(before, any_tokenizer):
    """And after a blank it does not: the first token covers both, as docs/lm_eval_tasks.md says."""
    filler = fit_filler(NAMED_CONDITIONS["mless"], None)
    _, spans = encode(f"{before}{filler}{SEPARATOR}Question: A", any_tokenizer)
    start, end = len(before), len(before) + len(filler)
    touching = [(low, high) for low, high in spans if low < high and low < end and start < high]
    assert len(touching) == 55
    inside = sum(start <= low and high <= end for low, high in touching)
    assert inside == (54 if before.endswith(" ") else 55)


def test_keys_that_a_user_adds_replace_those_of_lm_eval(tmp_path):
    write_both("gsm8k", tmp_path)
    path = tmp_path / "gsm8k" / "gsm8k_mless.yaml"
    path.write_text(path.read_text() + "num_fewshot: 1\ndescription: Count.\n")
    tasks = open_manager(tmp_path, mine=1).load(["gsm8k", "gsm8k_mless"])["tasks"]
    stock, task = tasks["gsm8k"], tasks["gsm8k_mless"]
    assert (stock.config.num_fewshot, task.config.num_fewshot) == (5, 1)
    assert task.config.description == "Count."
    assert task.config.metadata["version"] == stock.config.metadata["version"]
    assert task.config.metadata["mine"] == 1
    assert task.VERSION == stock.VERSION


def test_a_task_that_runs_code_is_written_and_not_tried(folder):
    write_wrapped_tasks(folder, "humaneval", "mless")
    assert read_task(folder / "humaneval_mless.yaml")["stock_file"] == "humaneval/humaneval.yaml"


def test_the_command_names_the_files_that_it_wrote(folder, succeed):
    lines = succeed("tasks", "--wrap", "gsm8k", "-o", folder).splitlines()
    paths = sorted(map(str, folder.iterdir()))
    assert lines[: len(paths)] == paths


def test_a_version_of_lm_eval_without_the_task_is_named(folder):
    write_wrapped_tasks(folder, "gsm8k", "wo")
    path = folder / "gsm8k_wo.yaml"
    path.write_text(path.read_text().replace("gsm8k/gsm8k.yaml", "gsm8k/older.yaml"))
    message = r"this lm-eval \([\d.]+\) has no tasks/gsm8k/older.yaml"
    with pytest.raises(FileNotFoundError, match=message):
        open_manager(folder).load(["gsm8k_wo"])


def test_the_table_reads_the_logs_and_their_conditions(tmp_path):
    """As lm-eval itself writes them, of a model that always answers 42."""
    write_both("gsm8k", tmp_path)
    logs = write_logs(list_variants("gsm8k"), tmp_path, Answering())
    with pytest.raises(RunError, match="names no condition"):
        table_page(tmp_path / "results")
    logs["gsm8k"].unlink()
    page = table_page(tmp_path / "results", metric="exact_match,flexible-extract")
    rows = dict(re.findall(r"^(w/\S*(?: Mless)?) +([\d.]+) ", page, re.MULTILINE))
    answers = [document["answer"] for document in DOCUMENTS["gsm8k"]["test"]]
    accuracy = str(round(100 * answers.count("#### 42") / 7, 1))
    assert rows == {"w/o": accuracy, "w/ Mless": accuracy} and "7 problems" in page
    named = table_page(f"wo={logs['gsm8k_mless']}", f"dots={logs['gsm8k_wo']}")
    assert "dots" in named and "Mless" not in named


WITHOUT_MLESS = """
import sys
sys.modules.update(harness=None, mless=None, attention_probe=None)
from lm_eval.__main__ import cli_evaluate
cli_evaluate()
"""
"""The command `lm_eval`, in a process in which our packages cannot be imported."""


@pytest.mark.slow
@with_cases
def test_stock_lm_eval_runs_them_without_our_package_and_the_table_reads_its_logs(tmp_path, chat):
    write_both("gsm8k", tmp_path)
    options = (
        "--model hf --device cpu --limit 3 --tasks gsm8k_wo,gsm8k_mless --num_fewshot 1 "
        f"--include_path {tmp_path / 'gsm8k'} --output_path {tmp_path / 'results'} "
        "--log_samples --gen_kwargs max_gen_toks=16"
    )
    process = installed(
        *(Path(sys.executable).name, "-c", WITHOUT_MLESS, "run", *options.split()),
        *("--model_args", f"pretrained={TOY_MODEL}", *["--apply_chat_template"] * chat),
        OMP_NUM_THREADS="1",  # several threads mostly wait for each other on a busy machine
    )
    succeeded(process)
    page = table_page(tmp_path / "results")
    layout = "chat" if chat else "raw"
    assert f"{layout}, 3 problems" in page and "w/ Mless" in page
