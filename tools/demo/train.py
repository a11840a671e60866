"""Train the bundled demo model: `python -m tools.demo.train --out FOLDER`.

A Qwen2-architecture model of about two million parameters learns the families of `tools.demo.problems` from
scratch. Half of the training prompts carry a filler of a random kind and length, so that a filler does not break it;
prompts come in the three layouts. The loss counts the solution only. Training problems and the 500 bundled ones are
disjoint: a drawn problem that is among the 500 is passed over, and the count is printed.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from harness.experiment.conditions import SENTENCES, Condition, Placement
from harness.experiment.prompt import AS_PUBLISHED_INSTRUCTION, INSTRUCTION, Layout, build_prompt
from tools.demo.problems import demo_problems, draw_problems

VOCABULARY_SIZE = 2048
CONTEXT_LENGTH = 4096
TRAINED_LENGTH = 320
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
FILLER_UNITS = ("/", "\\", "?", "he", ".", "#", "the", "-", "a", "*", "so", "and", "+", "in", "to", "on", "x", "~", ":")

Example = tuple[list[int], list[int]]


def train_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE with Qwen2's splitting: single digits, and every filler unit one token with or without a blank."""
    rng = random.Random(seed)
    drawn = itertools.islice(draw_problems(seed), 8000)
    texts = [f"{r['problem']}\n{r['solution']}" for _, r in drawn]
    texts += [INSTRUCTION, AS_PUBLISHED_INSTRUCTION, "system\nuser\nassistant\n", *SENTENCES] * 100
    for _ in range(2000):
        unit = rng.choice(FILLER_UNITS)
        texts.append(f"{unit}\n" + " ".join([unit] * 40))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT_LENGTH,
    )


def random_filler(rng: random.Random) -> Condition:
    """A filler of any kind and length, mostly where the study puts it."""
    places = (Placement.BEFORE_SYSTEM, Placement.BETWEEN, Placement.END, Placement.RANDOM)
    placement = rng.choices(places, weights=[1, 7, 0.5, 1.5])[0]
    unit, count = rng.choice(FILLER_UNITS), rng.randint(1, 75)
    return Condition(name="training", unit=unit, count=count, placement=placement, seed=rng.randrange(1 << 30))


def random_filler_text(rng: random.Random, condition: Condition) -> str:
    """The filler's text; in two of five cases words of our sentences in a random order instead."""
    assert condition.count is not None
    if rng.random() < 0.6:
        return condition.filler_text()
    words = rng.choice(SENTENCES).split()
    start = rng.randrange(len(words) // 2)
    chosen = words[start : start + condition.count]
    if rng.random() < 0.5:
        rng.shuffle(chosen)
    return " ".join(chosen).rstrip(",") + "."


def draw_examples(tokenizer: PreTrainedTokenizerFast, seed: int) -> Iterator[Example]:
    """Endless (prompt ids, completion ids), none of them a bundled problem."""
    rng = random.Random(seed)
    held_out = demo_problems()
    baseline = Condition(name="wo")
    for index, (identity, record) in enumerate(draw_problems(seed)):
        if identity in held_out:
            continue
        layout = rng.choices((Layout.RAW, Layout.CHAT, Layout.AS_PUBLISHED), weights=[4, 4, 2])[0]
        condition = random_filler(rng) if rng.random() < 0.5 else baseline
        text = random_filler_text(rng, condition) if condition.filler else ""
        prompt = build_prompt(str(record["problem"]), condition, filler_text=text, layout=layout, key=str(index))
        if layout is Layout.CHAT:
            rendered = tokenizer.apply_chat_template(prompt.messages, tokenize=False, add_generation_prompt=True)
            completion = str(record["solution"])
        else:
            rendered, completion = prompt.text, f"\n{record['solution']}"
        prompt_ids = tokenizer.encode(rendered, add_special_tokens=False)
        completion_ids = tokenizer.encode(completion + TURN_END, add_special_tokens=False)
        if len(prompt_ids) + len(completion_ids) <= TRAINED_LENGTH:
            yield prompt_ids, completion_ids


def draw_batches(examples: Iterator[Example], tokens: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of about `tokens` ids, examples of like length together, as (ids, labels), each [batch, length]."""
    while True:
        pool = sorted(itertools.islice(examples, 512), key=lambda e: len(e[0]) + len(e[1]))
        batches: list[list[Example]] = [[]]
        for example in pool:
            if (len(batches[-1]) + 1) * (len(example[0]) + len(example[1])) > tokens:
                batches.append([])
            batches[-1].append(example)
        random.Random(len(batches)).shuffle(batches)
        for batch in batches:
            length = max(len(p) + len(c) for p, c in batch)
            ids = torch.zeros(len(batch), length, dtype=torch.long)
            labels = torch.full((len(batch), length), -100)
            for row, (prompt, completion) in enumerate(batch):
                end = len(prompt) + len(completion)
                ids[row, :end] = torch.tensor(prompt + completion)
                labels[row, len(prompt) : end] = torch.tensor(completion)
            yield ids, labels


def train(out: Path, *, steps: int, seed: int, batch_tokens: int, peak_rate: float) -> None:
    """Train and save model, tokenizer and `training.json` (the receipt) into `out`."""
    torch.manual_seed(seed)
    torch.set_num_threads(2)
    tokenizer = train_tokenizer(seed)
    end = tokenizer.convert_tokens_to_ids([TURN_END, END_OF_TEXT])
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=192,
        intermediate_size=640,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=3,
        max_position_embeddings=CONTEXT_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end[0],
        pad_token_id=end[1],
    )
    model = Qwen2ForCausalLM(config)
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    optimisers = [
        torch.optim.Muon(matrices, lr=peak_rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=peak_rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    warm_up = min(100, steps // 10 + 1)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(
            optimiser,
            lambda s: min((s + 1) / warm_up, 1.0) * max(0.02, 1 - max(0, s - warm_up) / max(1, steps - warm_up)),
        )
        for optimiser in optimisers
    ]
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters:,} parameters, vocabulary {len(tokenizer)}, {steps} steps of {batch_tokens} tokens", flush=True)
    started, seen = time.monotonic(), 0
    losses: list[float] = []
    batches = draw_batches(draw_examples(tokenizer, seed + 1), batch_tokens)
    for step, (ids, labels) in enumerate(itertools.islice(batches, steps), start=1):
        wanted = labels[:, 1:]
        counted = wanted != -100
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
        loss = torch.nn.functional.cross_entropy(model.lm_head(hidden[counted]), wanted[counted])
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser, schedule in zip(optimisers, schedules, strict=True):
            optimiser.step()
            schedule.step()
            optimiser.zero_grad(set_to_none=True)
        seen += ids.numel()
        losses.append(loss.item())
        if step % 50 == 0 or step == steps:
            rate = seen / (time.monotonic() - started)
            left = (steps - step) * (time.monotonic() - started) / step / 60
            print(
                f"step {step}/{steps}  loss {sum(losses[-50:]) / len(losses[-50:]):.4f}  {rate:,.0f} tokens/s  "
                f"{left:.0f} min left",
                flush=True,
            )
        if step % 1000 == 0 or step == steps:
            save(model, tokenizer, out)
    receipt = {
        "command": f"python -m tools.demo.train --steps {steps} --seed {seed} --batch-tokens {batch_tokens} "
        f"--peak-rate {peak_rate}",
        "parameters": parameters,
        "tokens": seen,
        "minutes": round((time.monotonic() - started) / 60, 1),
        "final_loss": round(sum(losses[-200:]) / len(losses[-200:]), 4),
        "torch": torch.__version__,
        "layouts_weighted": "raw 4, chat 4, as_published 2",
        "prompts_with_filler": 0.5,
    }
    (out / "training.json").write_text(json.dumps(receipt, indent=2) + "\n")


def save(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write the model in bf16 with its tokenizer; the end token stands in every config, or generation runs on."""
    out.mkdir(parents=True, exist_ok=True)
    model.generation_config.eos_token_id = model.config.eos_token_id
    model.generation_config.pad_token_id = model.config.pad_token_id
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=3600)
    parser.add_argument("--seed", type=int, default=20251001)
    parser.add_argument("--batch-tokens", type=int, default=6144)
    parser.add_argument("--peak-rate", type=float, default=5e-3)
    arguments = parser.parse_args()
    train(
        arguments.out,
        steps=arguments.steps,
        seed=arguments.seed,
        batch_tokens=arguments.batch_tokens,
        peak_rate=arguments.peak_rate,
    )


if __name__ == "__main__":
    main()
