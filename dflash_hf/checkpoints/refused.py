"""Dialects that are recognised and not read yet: what each is, and who runs it today.

To read one: write its reader, move its line to ``dialects.READERS``, and add a row to docs/formats.md.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["REFUSED"]

REFUSED: Mapping[str, str] = {  # dialect -> what it is and where it runs
    "speculators-other": "a speculators drafter of a family this project does not read; vLLM is that format's engine",
    "eagle": "an EAGLE, Medusa, MTP or P-EAGLE drafter, which is another family than DFlash and will not be "
    "read; use the engine its card names",
    "laguna": "a Laguna drafter (gated attention, a norm per tap, fused projections); vLLM, SGLang, ik_llama.cpp "
    "and exllamav3 run it",
    "shifted-head": "a drafter whose slots predict the next position (shift_label or sample_from_anchor), without the "
    "head this goes with; read as plain DFlash it would be off by one everywhere",
    "gated-dflash": "an AngelSpec gated DFlash drafter (gates and norms per tap); AngelSpec and AngelSlim, which write "
    "them, run such files",
    "attention-sinks": "a drafter with attention sinks or a value scale (Xiaomi MiMo, NVIDIA Nemotron); vLLM, SGLang "
    "and ik_llama.cpp run it",
    "attention-hybrid": "a drafter with MLA or KDA attention; SpecForge writes them, SGLang runs them",
    "quantised": "a drafter with quantised weights; vLLM and SGLang run such files. An unquantised version of the "
    "same drafter can be read",
    "own-embedding": "a drafter that ships its own embedding or head; ik_llama.cpp and vLLM run such files",
}
