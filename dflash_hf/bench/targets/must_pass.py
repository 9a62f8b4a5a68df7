"""What the table has to say: the architectures that are promised, by name, and no faults anywhere."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_hf.bench.targets.rows import EXACT, FAULTS, NOT_BUILT, REFUSED, Row

__all__ = ["MOST_NOT_BUILT", "MUST_PASS", "complaints"]

MOST_NOT_BUILT = 0.10  # of all rows

_ATTENTION = """
    bloom/BloomForCausalLM cohere2/Cohere2ForCausalLM deepseek_v3/DeepseekV3ForCausalLM gemma2/Gemma2ForCausalLM
    gemma3/Gemma3ForConditionalGeneration gemma3_text/Gemma3ForCausalLM gemma4/Gemma4ForConditionalGeneration
    gemma4_text/Gemma4ForCausalLM glm4/Glm4ForCausalLM glm4_moe/Glm4MoeForCausalLM gpt2/GPT2LMHeadModel
    gpt_oss/GptOssForCausalLM granite/GraniteForCausalLM lfm2/Lfm2ForCausalLM llama/LlamaForCausalLM
    llama4_text/Llama4ForCausalLM minimax_m2/MiniMaxM2ForCausalLM
    mistral/MistralForCausalLM mixtral/MixtralForCausalLM olmo2/Olmo2ForCausalLM olmo3/Olmo3ForCausalLM
    phi/PhiForCausalLM phi3/Phi3ForCausalLM qwen2/Qwen2ForCausalLM qwen2_5_vl/Qwen2_5_VLForConditionalGeneration
    qwen3/Qwen3ForCausalLM qwen3_moe/Qwen3MoeForCausalLM qwen3_vl/Qwen3VLForConditionalGeneration
"""
_SPARSE = "deepseek_v32/DeepseekV32ForCausalLM glm_moe_dsa/GlmMoeDsaForCausalLM"  # no longer than index_topk
_RECURRENT = """
    falcon_h1/FalconH1ForCausalLM granitemoehybrid/GraniteMoeHybridForCausalLM kimi_linear/KimiLinearForCausalLM
    mamba2/Mamba2ForCausalLM nemotron_h/NemotronHForCausalLM olmo_hybrid/OlmoHybridForCausalLM
    qwen3_5/Qwen3_5ForConditionalGeneration qwen3_5_moe/Qwen3_5MoeForConditionalGeneration
    qwen3_5_moe_text/Qwen3_5MoeForCausalLM qwen3_5_text/Qwen3_5ForCausalLM qwen3_next/Qwen3NextForCausalLM
"""
_NEVER = "jamba/JambaForCausalLM mamba/MambaForCausalLM minimax/MiniMaxForCausalLM"  # wrong by themselves

# Key of an architecture: the outcome that is promised.
MUST_PASS: dict[str, str] = {
    **dict.fromkeys(f"{_ATTENTION} {_SPARSE} {_RECURRENT}".split(), EXACT),
    **dict.fromkeys(_NEVER.split(), REFUSED),
}


def complaints(rows: Sequence[Row], whole: bool) -> list[str]:
    """What is wrong with these rows, one line each; an empty list is a pass.

    Args:
        rows: of any architectures.
        whole: they are all there are, so that none may be missing and few not built.
    """
    found = [f"{row.key}: {row.outcome}: {row.why}" for row in rows if row.outcome in FAULTS]
    by_key = {row.key: row for row in rows}
    for key, promised in MUST_PASS.items():
        row = by_key.get(key)
        if row is None and whole:
            found.append(f"{key}: must be {promised}, and this transformers has none")
        elif row is not None and row.outcome not in (promised, *FAULTS):
            found.append(f"{key}: must be {promised}, is {row.outcome}: {row.why}")
    missed = sum(row.outcome == NOT_BUILT for row in rows)
    if whole and missed > MOST_NOT_BUILT * len(rows):
        found.append(f"{missed} of {len(rows)} architectures were not built; at most {MOST_NOT_BUILT:.0%} may be")
    return found
