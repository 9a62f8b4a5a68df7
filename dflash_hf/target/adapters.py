"""What an adapter around a target may do to a call besides changing layers.

In: the model inside a PEFT model, during a call. Out: whether prompts of tokens that stand in no ids come before it.
"""

from __future__ import annotations

from transformers import PreTrainedModel

__all__ = ["prepends_virtual_tokens"]


def prepends_virtual_tokens(model: PreTrainedModel) -> bool:
    """Whether this call comes through a PEFT model with prompt, prefix or p-tuning.

    For the length of its own ``generate`` such a model stands in for the inner one's preparation of inputs.
    """
    owner = getattr(vars(model).get("prepare_inputs_for_generation"), "__self__", None)
    return bool(getattr(getattr(owner, "active_peft_config", None), "is_prompt_learning", False))
