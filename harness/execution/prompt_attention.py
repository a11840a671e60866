"""`mless.attention`: the attention of any prompts, recorded in the engine."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from harness import smollm2_model
from harness.display.report.attention_view import (
    AttentionView,
    describe_conditions,
    describe_prompt,
    make_page,
)
from harness.display.report.report_samples import pack
from harness.engines.attention_sums import (
    Weights,
    average_weights,
    open_recorder,
    record_sums,
    recording_request,
    single_query_sets,
)
from harness.engines.engine_processes import SETS_WITHOUT_OWN_TOKEN
from harness.engines.interventions.open_layers import find_changed_layers
from harness.experiment.model_settings import label_model
from harness.experiment.prompts.tokenizer import (
    ModelTokenizer,
    encode,
    load_model_config,
    token_texts,
)
from harness.layers_and_heads import count_rows, parse_numbers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Page(str):
    """An HTML page that a notebook displays."""

    def _repr_html_(self) -> str:
        # in a frame, because the page's policy and style must not apply to the notebook
        return (
            f'<iframe srcdoc="{escape(self)}" style="width: 100%; height: 50rem; border: 0">'
            "</iframe>"
        )


class PromptAttention(list[Weights]):
    """For each prompt [layer, head, position], the mean weight of a token over all later queries.

    It is NaN at the last position, which has no later query.

    Attributes:
        model: The name of the model.
        layers: The recorded layers, counted from 1.
        tokens: For each prompt, the text of each token.
        rows: For each prompt [layer, head, query, key], the weights of its last queries; without
            `queries` there are none.
    """

    model: str
    layers: Sequence[int]
    tokens: Sequence[tuple[str, ...]]
    rows: Sequence[Weights]

    def show(self) -> Page:
        """The interactive page. A notebook displays it if it is the last value of a cell.

        The page compares conditions. These prompts have none, so the model's name stands for one.
        """
        prompts = []
        for mean_weights, rows, tokens in zip(self, self.rows, self.tokens, strict=True):
            positions = np.arange(len(tokens))
            # all tokens have role 0, which is not marked, and are at their own positions
            prompt = describe_prompt(
                tokens, mean_weights, rows, np.zeros_like(positions), positions
            )
            prompts.append(pack({self.model: prompt}))
        facts = {
            "name": self.model,
            "model": self.model,
            "layers": self.layers,
            "queried": "prompt",
            "conditions": describe_conditions([self.model]),
            "meanings": (),
            "notes": (),
            "problems": [{"id": f"prompt {number + 1}"} for number in range(len(self))],
        }
        return Page(make_page([AttentionView(facts=facts, prompts=prompts)]))


def attention(
    model: str,
    prompts: Sequence[str] | Sequence[Sequence[int]],
    layers: Sequence[int] | str = "all",
    *,
    queries: str | None = None,
    **arguments: Any,
) -> PromptAttention:
    """The attention that each token of a prompt receives from later tokens, by layer and head.

    Use it where `mless probe` does not reach: large models, all layers, tensor parallel.

    Args:
        model: A folder, a hub name, or `smollm2`.
        prompts: Token ids, or texts, before which the tokenizer puts its special tokens.
        layers: From 1, such as `[1, 3]` or `1-3`, or `all`; returned in ascending order.
        queries: The queries whose weights are returned one by one, such as `last:16` or `all`. None
            for no query: their memory grows with their number.
        **arguments: Further model arguments, such as `dtype` or `tensor_parallel_size`. Messages of
            the libraries are in libraries.log in the cache of mless.

    Returns:
        A list with an array for each prompt; it also has their tokens, rows, and a page.

    Raises:
        ConfigError: no such layer, or the model's attention cannot be opened (sinks, soft caps,
            latent attention).
        ModelError: the model cannot be loaded, or the recorded sums do not fit into memory.

    Example:
        >>> (weights,) = mless.attention("smollm2", ["2 + 2 ="], layers="1-3")
        >>> weights.shape  # layers, heads, tokens
        (3, 9, 5)
    """
    arguments["pretrained"] = smollm2_model.resolve_model(model)
    model_tokenizer = ModelTokenizer.from_arguments(arguments)
    assert model_tokenizer is not None  # because `pretrained` names it
    tokenized_prompts = [_tokenize(prompt, model_tokenizer.tokenizer) for prompt in prompts]
    row_counts = [count_rows(queries or None, len(token_ids)) for token_ids, _ in tokenized_prompts]
    # `parse_numbers` reads ranges, so the range of all layers is written as a user would write it
    if layers == "all":
        layers = f"1-{load_model_config(arguments['pretrained'], arguments).num_hidden_layers}"
    layer_numbers = sorted(parse_numbers(layers, "layers"))
    most_rows = max(row_counts, default=0)
    requests = [
        recording_request(
            token_ids,
            _make_query_sets(len(token_ids), row_count, most_rows),
            prompt_name=str(index),
        )
        for index, ((token_ids, _), row_count) in enumerate(
            zip(tokenized_prompts, row_counts, strict=True)
        )
    ]
    # no layer is changed, so the lists of changed layers are empty
    recorded_layers = [number - 1 for number in layer_numbers]
    layers_by_use = find_changed_layers({}) | {"recorded": recorded_layers}
    with closing(
        open_recorder(arguments, layers_by_use, SETS_WITHOUT_OWN_TOKEN + most_rows)
    ) as engine:
        # [layer, set, head, key] for each prompt, with the sets of `_make_query_sets`
        prompt_sums = record_sums(engine, requests)
    # The first set has all queries. `average_weights` divides its sums by the number of those that
    # come after each token.
    result = PromptAttention(
        average_weights(sums[:, :1], np.ones((1, sums.shape[-1])))[:, 0] for sums in prompt_sums
    )
    # The sets of single queries follow the first two, and the sum over a set of one query is the
    # weight of that query. [layer, set, head, key] becomes [layer, head, query, key].
    result.rows = [
        sums[:, SETS_WITHOUT_OWN_TOKEN : SETS_WITHOUT_OWN_TOKEN + row_count].swapaxes(1, 2).copy()
        for sums, row_count in zip(prompt_sums, row_counts, strict=True)
    ]
    result.tokens = [texts for _, texts in tokenized_prompts]
    result.model = label_model(model)
    result.layers = layer_numbers
    return result


def _make_query_sets(token_count: int, row_count: int, most_rows: int) -> list[list[int]]:
    """The sets of queries [set, token] over which a prompt's attention is summed.

    The first two sets (SETS_WITHOUT_OWN_TOKEN) leave out a query's attention to its own token, and
    all later sets include it:

    - Set 0 has all queries, for the mean over later queries.
    - Set 1 is not needed, so it has no query.
    - Each of the next `row_count` sets has one of the last queries, for its row of weights, which
      includes the weight of its own token.
    - The rest has no query: the engine expects `2 + most_rows` sets of every prompt.
    """
    return [
        [1] * token_count,
        [0] * token_count,
        *single_query_sets(row_count, token_count, most_rows),
    ]


def _tokenize(
    prompt: str | Sequence[int], tokenizer: PreTrainedTokenizerBase
) -> tuple[list[int], tuple[str, ...]]:
    """The token ids of a prompt, and the text of each token.

    Ids are decoded together, because a character may have several tokens. Where the tokenizer would
    make other ids of their text, each id is decoded by itself.
    """
    if isinstance(prompt, str):
        token_ids, offsets = encode(prompt, tokenizer)
        return list(token_ids), token_texts(token_ids, offsets, prompt, tokenizer)
    requested_ids = list(map(int, prompt))  # numpy's integers become Python's
    encoded_ids, texts = _tokenize(str(tokenizer.decode(requested_ids)), tokenizer)
    if encoded_ids != requested_ids:
        texts = tuple(str(tokenizer.decode(token_id)) for token_id in requested_ids)
    return requested_ids, texts
