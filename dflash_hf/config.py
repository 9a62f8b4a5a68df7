"""``DFlashConfig``: one canonical description of a drafter, whatever dialect its files were written in.

The checkpoint readers translate into these fields, the writers translate out of them; nothing else in the package
knows a dialect's key names (``checkpoints/``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PretrainedConfig

from dflash_hf.errors import CheckpointError

__all__ = ["EMBEDDINGS", "DFlashConfig"]

EMBEDDINGS = ("target", "target_rows")  # the target's embedding module, or its raw rows (no scale, no norm)


class DFlashConfig(PretrainedConfig):
    """Shape and conventions of a DFlash drafter (arXiv 2602.06036).

    Args:
        hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim:
            the Qwen3-shaped body. ``head_dim`` is given, never derived.
        target_hidden_size: width of one tap; ``fc`` maps ``len(target_layer_ids) * target_hidden_size`` to
            ``hidden_size``.
        target_layer_ids: tapped target layers, 0-based; layer ``i`` means ``hidden_states[i + 1]``.
        num_target_layers: depth of the target it was trained for, where the files say so.
        block_size: slots of a block, the anchor included.
        mask_token_id: id whose embedding fills the slots after the anchor.
        layer_windows: per layer, how many positions a query sees including its own, or None for all.
        layer_causal: per layer, whether a slot sees only itself and earlier slots of the block.
        embedding: which embedding fills the block: ``"target"`` (the module, with its scale) or ``"target_rows"``.
        embedding_scale: extra factor on the block's embeddings.
        output_multiplier, final_logit_softcapping: applied to the draft logits, in this order.
        vocab_size: vocabulary it was trained with; a pairing puts the target's in its place, and
            ``stored_vocab_size`` keeps what the files say.
        target_name: the target it was trained for, where the files or the card say so.

    Raises:
        CheckpointError: fields that contradict each other.
    """

    model_type = "dflash"

    def __init__(
        self,
        hidden_size: int = 1024,
        intermediate_size: int = 3072,
        num_hidden_layers: int = 5,
        num_attention_heads: int = 16,
        num_key_value_heads: int = 8,
        head_dim: int = 128,
        target_hidden_size: int | None = None,
        target_layer_ids: Sequence[int] = (1,),
        num_target_layers: int | None = None,
        block_size: int = 16,
        mask_token_id: int = 0,
        layer_windows: Sequence[int | None] | None = None,
        layer_causal: Sequence[bool] | None = None,
        rope_parameters: dict[str, Any] | None = None,
        max_position_embeddings: int = 32768,
        rms_norm_eps: float = 1e-6,
        hidden_act: str = "silu",
        attention_bias: bool = False,
        embedding: str = "target",
        embedding_scale: float = 1.0,
        output_multiplier: float = 1.0,
        final_logit_softcapping: float | None = None,
        vocab_size: int | None = None,
        target_name: str | None = None,
        initializer_range: float = 0.02,
        **kwargs: Any,
    ) -> None:
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads
        self.head_dim = head_dim
        self.target_hidden_size = hidden_size if target_hidden_size is None else target_hidden_size
        self.target_layer_ids = list(target_layer_ids)
        self.num_target_layers = num_target_layers
        self.block_size = block_size
        self.mask_token_id = mask_token_id
        self.layer_windows = list(layer_windows) if layer_windows is not None else [None] * num_hidden_layers
        self.layer_causal = list(layer_causal) if layer_causal is not None else [False] * num_hidden_layers
        self.rope_parameters = dict(rope_parameters or {"rope_type": "default", "rope_theta": 10000.0})
        self.max_position_embeddings = max_position_embeddings
        self.rms_norm_eps = rms_norm_eps
        self.hidden_act = hidden_act
        self.attention_bias = attention_bias
        self.attention_dropout = 0.0
        self.embedding = embedding
        self.embedding_scale = embedding_scale
        self.output_multiplier = output_multiplier
        self.final_logit_softcapping = final_logit_softcapping
        self.vocab_size = vocab_size
        self.stored_vocab_size = kwargs.pop("stored_vocab_size", vocab_size)
        self.target_name = target_name
        self.initializer_range = initializer_range
        kwargs.setdefault("tie_word_embeddings", False)
        super().__init__(**kwargs)
        _check(self)


def _check(config: DFlashConfig) -> None:
    """Refuse a description no drafter can have. Whether it fits a target is ``target.pairing``'s question."""
    layers = config.num_hidden_layers
    problems = []
    if len(config.layer_windows) != layers or len(config.layer_causal) != layers:
        problems.append(
            f"{layers} layers, but {len(config.layer_windows)} windows and {len(config.layer_causal)} causal flags"
        )
    if any(window is not None and window < 1 for window in config.layer_windows):
        problems.append(f"layer windows {config.layer_windows}: a window is at least 1 or null")
    if config.block_size < 2:
        problems.append(f"block_size {config.block_size}: a block is an anchor and at least one mask")
    if config.num_attention_heads % config.num_key_value_heads:
        problems.append(
            f"{config.num_attention_heads} attention heads do not divide into {config.num_key_value_heads} key/value "
            "heads"
        )
    if not isinstance(config.mask_token_id, int):
        problems.append(f"mask_token_id is {config.mask_token_id!r}; it is the id that fills a block's slots")
    if not config.target_layer_ids:
        problems.append("target_layer_ids is empty: a DFlash drafter reads at least one target layer")
    if config.embedding not in EMBEDDINGS:
        problems.append(f"embedding {config.embedding!r}; known: {', '.join(EMBEDDINGS)}")
    if problems:
        raise CheckpointError("the drafter's config contradicts itself: " + "; ".join(problems))
