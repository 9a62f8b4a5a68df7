"""Chat templates of the usual kinds over one byte-level tokenizer, and an answerer whose text is known."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tests.cli.conftest import tiny_tokenizer

CHATML = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}<|im_start|>system\nBe brief<|im_end|>\n"
    "{% endif %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
LLAMA = (
    "<|begin|>{% for m in messages %}<|head|>{{ m['role'] }}<|body|>\n\n{{ m['content'] | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|head|>assistant<|body|>\n\n{% endif %}"
)
MISTRAL = (  # a blank before the user's words, marks that are plain text, and no system turn
    "{% for m in messages %}{% if m['role'] == 'user' %}<s>[INST] {{ m['content'] }} [/INST]"
    "{% elif m['role'] == 'assistant' %} {{ m['content'] }}</s>"
    "{% else %}{{ raise_exception('no ' + m['role'] + ' turns') }}{% endif %}{% endfor %}"
)
ESCAPING = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] | tojson }}{% endfor %}"

_SPECIAL = ["<|im_start|>", "<|im_end|>", "<|begin|>", "<|head|>", "<|body|>", "<|eot|>", "<s>", "</s>", "<think>"]


def chat_tokenizer(template: str | None) -> Any:
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": _SPECIAL[:-1]})
    tokenizer.chat_template = template
    return tokenizer


class Scripted:
    """Answers each seed with words drawn from it; ``calls`` counts the rows of every batch."""

    def __init__(self, tokenizer: Any, end: str = "<|im_end|>") -> None:
        self.tokenizer, self.end = tokenizer, tokenizer.convert_tokens_to_ids(end)
        self.calls: list[int] = []
        self.prompts: list[str] = []

    def text(self, seed: int) -> str:
        draw = random.Random(seed)
        return " " + " ".join(str(draw.randrange(10**6)) for _ in range(draw.randrange(3, 30)))

    def __call__(
        self, view: Any, prompts: Sequence[Sequence[int]], *, eos_ids: Sequence[int], max_new_tokens: int,
        temperature: float, top_p: float, seeds: Sequence[int],
    ) -> list[tuple[list[int], bool]]:  # fmt: skip
        assert self.end in eos_ids and len(seeds) == len(prompts)
        self.calls.append(len(prompts))
        self.prompts += [self.tokenizer.decode(list(prompt)) for prompt in prompts]
        answers = []
        for seed in seeds:
            ids = [*self.tokenizer(self.text(seed))["input_ids"], self.end]
            answers.append((ids[:max_new_tokens], len(ids) <= max_new_tokens))
        return answers
