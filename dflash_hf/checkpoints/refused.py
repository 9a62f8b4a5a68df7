"""Dialects that are recognised and not read: what each is, and who runs it today.

To read one: write its reader, move its line to ``dialects.READERS``, and add a row to docs/formats.md.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["REFUSED"]

REFUSED: Mapping[str, str] = {  # dialect -> what it is and where it runs
    "speculators-other": "a speculators drafter of a family this project does not read; vLLM is that format's engine",
    "eagle": "an EAGLE, Medusa, MTP or P-EAGLE drafter, which is another family than DFlash and will not be "
    "read; use the engine its card names",
    "shifted-head": "a drafter whose slots predict the next position (shift_label or sample_from_anchor), without the "
    "head this goes with; read as plain DFlash it would be off by one everywhere",
    "attention-hybrid": "a drafter with MLA or KDA attention, whose context is no store of keys and values as here; "
    "SpecForge writes them, SGLang runs them",
    "dspark-backbone": "a DSpark drafter over DeepSeek's, Kimi's, GLM's or MiniMax's layers (MLA, KDA or experts), "
    "which this project does not build; NeMo Automodel writes them, vLLM and SGLang run them",
    "dspark-fused": "DSpark layers inside a target's own checkpoint (DeepSeek V4), no drafter of its own; vLLM, SGLang "
    "and mlx-vlm run it with that target",
    "treeflash": "an AngelSpec drafter that corrects hidden states beside a Markov head (TreeFlash: hidden_correction, "
    "a mix of taps, or strengths by place, pos_alpha); nobody describes how it drafts, so the order of its corrections "
    "would be a guess. Tencent's AngelSpec trains it; ask its authors for an engine",
    "dspark-sinks": "a DSpark drafter with attention sinks (NVIDIA Nemotron 3.5); whether its anchor's slot proposes "
    "is described in two ways that contradict each other. SGLang and llama.cpp run it",
    "quantised": "a drafter with quantised weights of a kind that is not dequantised here; an unquantised, FP8 or "
    "compressed-tensors version of the same drafter can be read",
}
