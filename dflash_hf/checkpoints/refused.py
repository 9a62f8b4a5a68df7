"""Dialects that are recognised and not read yet: what each is, and who runs it today.

To read one: write its reader, move its line to ``dialects.READERS``, and add a row to docs/formats.md.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["REFUSED"]

_SPECULATORS = "vLLM runs it"
_ANGEL = "AngelSpec and AngelSlim, which write them, run such files"

REFUSED: Mapping[str, str] = {  # dialect -> what it is and where it runs
    "speculators-dflash": "a speculators drafter (DFlash with its own embedding and reduced head, layer ids counted "
    f"from 1); {_SPECULATORS}",
    "speculators-dspark": f"a speculators DSpark drafter (every slot drafts, markov head); {_SPECULATORS}",
    "speculators-dflash2": f"a speculators DFlash 2 drafter (convolutions and a candidate selector); {_SPECULATORS}",
    "speculators-other": "a speculators drafter of a family this project does not read; vLLM is that format's engine",
    "eagle": "an EAGLE, Medusa, MTP or P-EAGLE drafter, which is another family than DFlash and will not be read; "
    "use the engine its card names",
    "laguna": "a Laguna drafter (gated attention, a norm per tap, fused projections); vLLM, SGLang, ik_llama.cpp and "
    "exllamav3 run it",
    "dflash2": "a DFlash 2 drafter (convolutions and a candidate selector); vLLM, SGLang and z-lab's own code run it",
    "angelspec-dspark": f"an AngelSpec DSpark drafter (a markov head on same-position slots); {_ANGEL}",
    "deepspec-dflash": "a DeepSpec 'dflash' drafter (every slot drafts the next position, own embedding and head); "
    "DeepSpec's evaluator runs it",
    "dspark": "a DSpark drafter (every slot drafts, markov head); SGLang runs it",
    "domino": "a Domino drafter (a recurrent head corrects the block); SGLang runs it",
    "shifted-head": "a drafter whose slots predict the next position (shift_label or sample_from_anchor), without the "
    "head this goes with; read as plain DFlash it would be off by one everywhere",
    "dfly": f"a DFly drafter (per-layer mixes of taps and a hidden correction); {_ANGEL}",
    "dflare": f"a DFlare drafter (per-layer mixes of taps, own context projections); {_ANGEL}",
    "gated-dflash": f"an AngelSpec gated DFlash drafter (gates and norms per tap); {_ANGEL}",
    "angelspec-dflash": "an AngelSpec or TorchSpec DFlash drafter (context_proj, own embedding); the engines they "
    "train for run it",
    "jetspec": "a JetSpec drafter (causal head for trees); JetSpec's own code runs it",
    "attention-sinks": "a drafter with attention sinks or a value scale (Xiaomi MiMo, NVIDIA Nemotron); vLLM, SGLang "
    "and ik_llama.cpp run it",
    "attention-hybrid": "a drafter with MLA or KDA attention; SpecForge writes them, SGLang runs them",
    "quantised": "a drafter with quantised weights; vLLM and SGLang run such files. An unquantised version of the same "
    "drafter can be read",
    "own-embedding": "a drafter that ships its own embedding or head; ik_llama.cpp and vLLM run such files",
}
