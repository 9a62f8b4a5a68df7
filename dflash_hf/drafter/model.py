"""``DFlashDrafter``: the block-diffusion network that proposes a whole block in one forward (arXiv 2602.06036).

    taps --fusion--> context features --every layer's k_proj, v_proj--> DrafterContext              (inject)
    [anchor, MASK, MASK, ...] embeddings --layers, attending to context and block--> norm           (forward)
    hidden states of the proposing slots --LM head, proposal head--> tokens, and q where they are drawn (``heads``)

In DFlash slot ``k`` (the anchor's is 0) predicts the token ``k`` places after the anchor, through the target's own
embedding and LM head; other dialects predict the place after, or ship an embedding, a head or both.
Shapes: B rows, C context tokens, K slots, L taps, D drafter width.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from dflash_hf.config import DFlashConfig
from dflash_hf.drafter.context import DrafterContext, GrowingContext, TransientContext
from dflash_hf.drafter.fusion import Fusion
from dflash_hf.drafter.gemma4_layer import Gemma4Layer
from dflash_hf.drafter.heads import head_of
from dflash_hf.drafter.layer import DFlashDecoderLayer
from dflash_hf.drafter.masks import AttendWith, BlockLayout, attention_mask_for, visible_keys
from dflash_hf.drafter.rotary import rotary_for

__all__ = ["DFlashDrafter"]

_LAYERS: dict[str, type[DFlashDecoderLayer]] = {"qwen3": DFlashDecoderLayer, "gemma4": Gemma4Layer}


class DFlashDrafter(PreTrainedModel):
    """A DFlash-family drafter in memory. On disk it is a checkpoint of any readable dialect (``docs/formats.md``)."""

    config_class = DFlashConfig
    base_model_prefix = ""
    main_input_name = "noise_embeds"
    _no_split_modules = ["DFlashDecoderLayer", "Gemma4Layer"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True
    provenance: Any = None  # dflash_hf.checkpoints.provenance.Provenance, once loaded from files

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.fusion = Fusion(config)
        layer = _LAYERS[config.layer_kind]
        self.layers = nn.ModuleList(layer(config, index) for index in range(config.num_hidden_layers))
        self.norm = Qwen3RMSNorm(width, eps=config.rms_norm_eps)
        self.head = head_of(config)
        if config.embedding == "own":
            self.embed_tokens = nn.Embedding(config.stored_vocab_size, width)
        if config.mask_embedding:
            self.mask_embedding = nn.Parameter(torch.zeros(width))
        if config.draft_vocab_size is not None:
            self.lm_head = nn.Linear(width, config.draft_vocab_size, bias=False)
        if config.reduced_vocabulary:  # the target's id of every row of the head
            self.register_buffer("vocabulary", torch.zeros(self.lm_head.out_features, dtype=torch.long))
        self.make_rotary()
        self.post_init()

    def make_rotary(self) -> None:
        """Frequencies from the config: float32 whatever the weights are, and no part of the checkpoint."""
        theta = self.config.context_rope_theta
        self.rotary_emb = rotary_for(self.config)
        self.context_rotary_emb = self.rotary_emb if theta is None else rotary_for(self.config, theta)

    def new_context(self) -> GrowingContext:
        """An empty context for one conversation."""
        return GrowingContext(self.config.context_windows)

    def inject(
        self,
        context_hidden_states: Tensor,  # [B, C, L * target width], the taps side by side
        position_ids: Tensor,  # [B, C] true positions of those tokens
        context: DrafterContext,
    ) -> None:
        """Write taps into every layer of ``context`` as keys and values. Rows must be newer than those held."""
        features = self.fusion(context_hidden_states)
        rotary = self.context_rotary_emb(features[0], position_ids)
        context.begin(position_ids)
        for layer, own in zip(self._layers(), features, strict=True):
            layer.inject(own, rotary, context)

    def forward(
        self,
        noise_embeds: Tensor,
        context_hidden_states: Tensor | None = None,
        attention_mask: Tensor | BlockLayout | None = None,
        position_ids: Tensor | None = None,
        cache: DrafterContext | None = None,
    ) -> BaseModelOutput:
        """Hidden states of a block, after the final norm.

        Args:
            noise_embeds: [B, K, D] embeddings of ``[anchor, MASK, ...]``.
            context_hidden_states: [B, C, L * target width] taps to inject first, or None.
            attention_mask: bool [B, 1, K, T + K], ANDed with each layer's own rule; True is visible. Or a layout, which
                brings the attention function along; ``config._attn_implementation`` is not asked then.
            position_ids: [B, C + K] positions of the injected rows, then of the block; [B, K] without an injection.
            cache: the context to read and extend; without one, a context of this call only.

        Returns:
            ``BaseModelOutput`` with ``last_hidden_state`` [B, K, D].
        """
        context = TransientContext() if cache is None else cache
        slots = noise_embeds.shape[1]
        if position_ids is None:
            raise TypeError("position_ids is required: a drafter works with true positions")
        if context_hidden_states is not None:
            self.inject(context_hidden_states, position_ids[:, :-slots], context)
        block = position_ids[:, -slots:]
        hidden_states = noise_embeds
        rotary = self.rotary_emb(hidden_states, block)
        masks: dict[tuple[int | None, bool], Tensor | AttendWith | None] = {}
        for index, layer in enumerate(self._layers()):
            rule = (self.config.layer_windows[index], self.config.layer_causal[index])
            if rule not in masks:
                masks[rule] = self._mask(index, block, attention_mask, hidden_states.dtype, context)
            hidden_states = layer(hidden_states, rotary, masks[rule], context)
        return BaseModelOutput(last_hidden_state=self.norm(hidden_states))

    def _layers(self) -> Iterator[DFlashDecoderLayer]:
        return (layer for layer in self.layers if isinstance(layer, DFlashDecoderLayer))

    def _mask(
        self,
        layer: int,
        block: Tensor,
        allowed: Tensor | BlockLayout | None,
        dtype: torch.dtype,
        context: DrafterContext,
    ) -> Tensor | AttendWith | None:
        window, causal = self.config.layer_windows[layer], self.config.layer_causal[layer]
        if allowed is not None and not isinstance(allowed, Tensor):
            return allowed.for_rule(window, causal)
        seen = None
        if window is not None or causal:
            places, rule = context.key_positions(layer, block), self.config.window_rule
            seen = visible_keys(block, places, window=window, causal=causal, rule=rule)
        if allowed is not None:
            seen = allowed if seen is None else seen & allowed
        attention = "sdpa" if self.config.attention_sinks else self.config._attn_implementation  # sinks have their own
        return attention_mask_for(attention, seen, dtype)

    # Files: checkpoints/ reads and writes dialects and stands to the right of this room, so it is looked up late.

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str], **kwargs: Any) -> DFlashDrafter:
        """Load a drafter of any readable dialect; see :func:`dflash_hf.checkpoints.load.load_drafter`."""
        return import_module("dflash_hf.checkpoints.load").load_drafter(pretrained_model_name_or_path, **kwargs)

    def save_pretrained(self, save_directory: str | os.PathLike[str], **kwargs: Any) -> None:
        """Write the z-lab layout and a model card; see :func:`dflash_hf.checkpoints.save.save_drafter`."""
        import_module("dflash_hf.checkpoints.save").save_drafter(self, save_directory, **kwargs)

    def push_to_hub(self, repo_id: str, **kwargs: Any) -> str:
        """Save and upload; see :func:`dflash_hf.checkpoints.save.push_drafter`."""
        return import_module("dflash_hf.checkpoints.save").push_drafter(self, repo_id, **kwargs)
