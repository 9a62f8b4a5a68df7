"""Thinking mode: whether a prompt turns it on, and what to say then."""

from __future__ import annotations

from dflash_hf.bench.pair import Pair
from dflash_hf.bench.prompts import encode

__all__ = ["has_thinking", "thinking_warning", "thinks"]


def has_thinking(pair: Pair) -> bool:
    """Whether the target's chat template has the switch."""
    return "enable_thinking" in str(getattr(pair.tokenizer, "chat_template", None) or "")


def thinks(pair: Pair, prompt: str, thinking: bool | None) -> bool:
    """Whether thinking is on for this prompt; many templates think unless they are told not to."""
    if thinking is False or not has_thinking(pair):
        return False
    as_asked, on = (encode(pair.tokenizer, prompt, thinking=mode)["input_ids"].tolist() for mode in (thinking, True))
    return bool(as_asked == on)


def thinking_warning(pair: Pair, prompt: str, thinking: bool | None) -> str | None:
    """Most published drafters learned from answers without thinking, and keep far less of a thought."""
    if pair.thinking is True or not thinks(pair, prompt, thinking):
        return None
    drafter = pair.names["drafter"]
    fewer = "the target will keep fewer of its drafts than with thinking off; the text is right either way."
    if pair.thinking is False:
        return f"Thinking is on, and {drafter} was trained without thinking: {fewer}"
    return f"Thinking is on. Unless {drafter} was trained on thoughts, {fewer}"
