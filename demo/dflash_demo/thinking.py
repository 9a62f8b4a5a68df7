"""Thinking mode: whether the pair has it, and what to say when it is used."""

from __future__ import annotations

from dflash_hf.bench.pair import Pair

__all__ = ["has_thinking", "thinking_warning"]


def has_thinking(pair: Pair) -> bool:
    """Whether the target's chat template has the switch."""
    return "enable_thinking" in str(getattr(pair.tokenizer, "chat_template", None) or "")


def thinking_warning(pair: Pair, thinking: bool | None) -> str | None:
    """Most published drafters learned from answers without thinking, and keep far less of a thought."""
    if thinking is not True or not has_thinking(pair):
        return None
    return (
        f"Thinking is on. Unless {pair.names['drafter']} was trained on thoughts, the target will keep fewer of its "
        "drafts than with thinking off; the text is right either way."
    )
