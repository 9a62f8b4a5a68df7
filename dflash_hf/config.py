"""``DFlashConfig``: one canonical description of a drafter, whatever dialect its files were written in.

The checkpoint readers translate into these fields, the writers translate out of them; nothing else in the package
knows a dialect's key names (``checkpoints/``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PretrainedConfig

from dflash_hf.errors import CheckpointError

__all__ = ["EMBEDDINGS", "FUSIONS", "HEADS", "LAYERS", "WINDOW_RULES", "DFlashConfig"]

# What fills the block: what the target's first layer gets, what its embedding module gives (no norm, no factor around
# it), the module's raw rows, or an embedding of the drafter's own.
EMBEDDINGS = ("target", "target_module", "target_rows", "own")
HEADS = ("parallel", "markov", "gru", "selector", "fly")
LAYERS = ("qwen3", "gemma4")
FUSIONS = ("concat", "adapter", "normed", "mixed", "mixed_concat", "gated")
WINDOW_RULES = ("query", "anchor", "context")


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
        window_rule: what a window is counted from. ``"query"``: every slot sees its own window, block included;
            ``"context"``: the same for the context, while the block is seen whole; ``"anchor"``: every slot sees the
            ``window`` context rows before the anchor, and the block whole.
        first_slot: the slot that proposes the first token: 1, or 0 where slot ``k`` predicts the token after it.
        num_draft_tokens: tokens proposed from there on; as many as there are slots, unless it is given.
        embedding: which embedding fills the block: ``"target"`` (scaled as the target scales it, in its module and
            after it), ``"target_module"`` (scaled by the module alone), ``"target_rows"`` (raw) or ``"own"``, which is
            not scaled.
        mask_embedding: the masks' embedding is a row of its own.
        embedding_scale: extra factor on the block's embeddings.
        draft_vocab_size: rows of the drafter's own LM head; None borrows the target's.
        reduced_vocabulary: the own head's rows are some of the target's ids, listed in ``d2t``.
        output_multiplier, final_logit_softcapping: applied to the draft logits, in this order; None is none, or the
            target's with ``inherits_logit_scale``. A multiplier of 1 that is stated is one, not the target's.
        inherits_logit_scale: with the target's head, take its multiplier and its soft cap where there is no own one.
            Never so with a head of the drafter's own.
        head: how hidden states become proposals: ``kind`` (one of ``HEADS``) and what that head takes.
        fusion: how taps become context features, one of ``FUSIONS`` (``drafter.fusion``).
        last_tap: a tap of the target's last layer is read ``"normed"``, as the host's last hidden state, or ``"raw"``.
        context_input_norm: context features pass through each layer's input norm.
        context_projections: context features have key and value projections of their own.
        layer_kind: shape of the layers, one of ``LAYERS`` (``drafter.layer``, ``drafter.gemma4_layer``).
        keys_as_values: values are the keys' projection, before the keys' norm and positions; Gemma 4's layers alone.
        convolution: ``kernel_size`` and ``group_size`` of DFlash 2's convolutions, or None.
        attention_gate: ``"head"`` or ``"channel"``: the attention's output is gated by softplus, or None.
        attention_sinks: every attention head has a learned logit that takes part in the softmax and nothing else.
        value_scale: factor on all values.
        rope_interleaved: pairs to rotate stand side by side instead of in two halves.
        context_rope_theta: the context keys' own rotary base, or None for the one of ``rope_parameters``.
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
        window_rule: str = "query",
        first_slot: int = 1,
        num_draft_tokens: int | None = None,
        embedding: str = "target",
        mask_embedding: bool = False,
        embedding_scale: float = 1.0,
        draft_vocab_size: int | None = None,
        reduced_vocabulary: bool = False,
        output_multiplier: float | None = None,
        final_logit_softcapping: float | None = None,
        inherits_logit_scale: bool = True,
        head: Mapping[str, Any] | None = None,
        fusion: str = "concat",
        last_tap: str = "normed",
        context_input_norm: bool = False,
        context_projections: bool = False,
        layer_kind: str = "qwen3",
        keys_as_values: bool = False,
        convolution: Mapping[str, int] | None = None,
        attention_gate: str | None = None,
        attention_sinks: bool = False,
        value_scale: float = 1.0,
        rope_interleaved: bool = False,
        context_rope_theta: float | None = None,
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
        self.window_rule = window_rule
        self.first_slot = first_slot
        self.num_draft_tokens = block_size - first_slot if num_draft_tokens is None else num_draft_tokens
        self.embedding = embedding
        self.mask_embedding = mask_embedding
        self.embedding_scale = embedding_scale
        self.draft_vocab_size = draft_vocab_size
        self.reduced_vocabulary = reduced_vocabulary
        self.final_logit_softcapping = final_logit_softcapping
        self.inherits_logit_scale = inherits_logit_scale and draft_vocab_size is None
        stated = self.inherits_logit_scale or output_multiplier != 1.0  # else a 1 says what None says
        self.output_multiplier = output_multiplier if stated else None
        self.head = dict(head or {"kind": "parallel"})
        self.fusion = fusion
        self.last_tap = last_tap
        self.context_input_norm = context_input_norm
        self.context_projections = context_projections
        self.layer_kind = layer_kind
        self.keys_as_values = keys_as_values
        self.convolution = None if convolution is None else dict(convolution)
        self.attention_gate = attention_gate
        self.attention_sinks = attention_sinks
        self.value_scale = value_scale
        self.rope_interleaved = rope_interleaved
        self.context_rope_theta = context_rope_theta
        self.vocab_size = vocab_size
        self.stored_vocab_size = kwargs.pop("stored_vocab_size", vocab_size)
        self.target_name = target_name
        self.initializer_range = initializer_range
        kwargs.setdefault("tie_word_embeddings", False)
        _check(self)
        super().__init__(**kwargs)

    @property
    def context_windows(self) -> list[int | None]:
        """Per layer, the window that the anchor sees, its own position included: what a context has to keep."""
        more = self.window_rule == "anchor"
        return [None if window is None else window + more for window in self.layer_windows]


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
    if config.head_dim % 2:
        problems.append(f"head_dim {config.head_dim}: rotary positions turn pairs, so a head has an even size")
    if not isinstance(config.mask_token_id, int):
        problems.append(f"mask_token_id is {config.mask_token_id!r}; it is the id that fills a block's slots")
    if not config.target_layer_ids:
        problems.append("target_layer_ids is empty: a DFlash drafter reads at least one target layer")
    sets = (("embedding", EMBEDDINGS), ("fusion", FUSIONS), ("window_rule", WINDOW_RULES), ("layer_kind", LAYERS))
    for name, known in sets:
        if getattr(config, name) not in known:
            problems.append(f"{name} {getattr(config, name)!r}; known: {', '.join(known)}")
    if config.head.get("kind") not in HEADS:
        problems.append(f"head {config.head}; known kinds: {', '.join(HEADS)}")
    if config.first_slot not in (0, 1):
        problems.append(f"first_slot {config.first_slot}: the first proposing slot is 0 or 1")
    elif not 1 <= config.num_draft_tokens <= config.block_size - config.first_slot:
        problems.append(
            f"num_draft_tokens {config.num_draft_tokens}: slots {config.first_slot} to {config.block_size - 1} propose"
        )
    if config.reduced_vocabulary and config.draft_vocab_size is None:
        problems.append("a reduced vocabulary without a head of its own (draft_vocab_size)")
    if problems:
        raise CheckpointError("the drafter's config contradicts itself: " + "; ".join(problems))
