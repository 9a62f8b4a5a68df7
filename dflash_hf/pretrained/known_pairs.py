"""Drafters on the Hub that were published for a target, as their authors' own pages name them.

A row is here when a page of the authors, or of an engine that runs it, gives the drafter's full id (z-lab/dflash
README.md and README.zh-TW.md; vllm-project/speculators' docs and examples; vllm-project/recipes; inco.ai/blog/dflash2;
deepseek-ai/DeepSpec, hao-ai-lab/JetSpec, sgl-project/SpecForge and Tencent/AngelSlim, README.md).
The targets of JetSpec's rows other than Qwen3's, and of the Domino, DFly and RadixArk rows, are read off the drafters'
names.
Rows of one target stand in the order of choice: first what most engines run, then DeepSpec's stronger head. The licence
is on the drafter's card; what is known of it is noted.
No revision is pinned: those pages give none in full, and authors revise drafters in place, so the newest is taken.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KNOWN_PAIRS", "KnownPair"]


@dataclass(frozen=True, slots=True)
class KnownPair:
    """One published pair.

    Args:
        target, drafter: Hub ids.
        thinking: the thinking mode it was trained in, where its authors say so: True, False or None.
        licence: a note on the drafter's licence, where one is known; else its card says it.
    """

    target: str
    drafter: str
    thinking: bool | None = None
    licence: str | None = None


KNOWN_PAIRS: tuple[KnownPair, ...] = (
    KnownPair("Qwen/Qwen3-4B", "z-lab/Qwen3-4B-DFlash-b16", thinking=False),
    KnownPair("Qwen/Qwen3-4B", "deepseek-ai/dspark_qwen3_4b_block7", thinking=False),
    KnownPair("Qwen/Qwen3-4B", "deepseek-ai/dflash_qwen3_4b_block7", thinking=False),
    KnownPair("Qwen/Qwen3-8B", "z-lab/Qwen3-8B-DFlash-b16", thinking=False),
    KnownPair("Qwen/Qwen3-8B", "RedHatAI/Qwen3-8B-speculator.dflash"),
    KnownPair("Qwen/Qwen3-8B", "JetSpec/jetspec-qwen3-8b"),
    KnownPair("Qwen/Qwen3-8B", "deepseek-ai/dspark_qwen3_8b_block7", thinking=False),
    KnownPair("Qwen/Qwen3-8B", "deepseek-ai/dflash_qwen3_8b_block7", thinking=False),
    KnownPair("Qwen/Qwen3-8B", "Huang2020/Qwen3-8B-Domino-b16"),
    KnownPair("Qwen/Qwen3-8B", "AngelSlim/Qwen3-8B-DFly-Block8"),
    KnownPair("Qwen/Qwen3-14B", "deepseek-ai/dspark_qwen3_14b_block7", thinking=False),
    KnownPair("Qwen/Qwen3-14B", "deepseek-ai/dflash_qwen3_14b_block7", thinking=False),
    KnownPair("Qwen/Qwen3-30B-A3B", "RedHatAI/Qwen3-30B-A3B-speculator.dflash"),
    KnownPair("Qwen/Qwen3-30B-A3B", "JetSpec/jetspec-qwen3-30b-a3b"),
    KnownPair("Qwen/Qwen3-30B-A3B-Instruct-2507", "RedHatAI/Qwen3-30B-A3B-Instruct-2507-speculator.dflash"),
    KnownPair("meta-llama/Llama-3.1-8B-Instruct", "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat", licence="MIT"),
    KnownPair("Qwen/Qwen3-Coder-30B-A3B-Instruct", "z-lab/Qwen3-Coder-30B-A3B-DFlash"),
    KnownPair("Qwen/Qwen3-Coder-Next", "z-lab/Qwen3-Coder-Next-DFlash"),
    KnownPair("Qwen/Qwen3.5-4B", "z-lab/Qwen3.5-4B-DFlash"),
    KnownPair("Qwen/Qwen3.5-9B", "z-lab/Qwen3.5-9B-DFlash"),
    KnownPair("Qwen/Qwen3.5-27B", "z-lab/Qwen3.5-27B-DFlash"),
    KnownPair("Qwen/Qwen3.5-35B-A3B", "z-lab/Qwen3.5-35B-A3B-DFlash"),
    KnownPair("Qwen/Qwen3.5-122B-A10B", "z-lab/Qwen3.5-122B-A10B-DFlash"),
    KnownPair("Qwen/Qwen3.5-397B-A17B", "z-lab/Qwen3.5-397B-A17B-DFlash"),
    KnownPair("Qwen/Qwen3.6-27B", "z-lab/Qwen3.6-27B-DFlash"),
    KnownPair("Qwen/Qwen3.6-35B-A3B", "z-lab/Qwen3.6-35B-A3B-DFlash"),
    KnownPair("Qwen/Qwen3.6-35B-A3B", "RedHatAI/Qwen3.6-35B-A3B-speculator.dspark"),
    KnownPair("Qwen/Qwen3.6-35B-A3B", "JetSpec/jetspec-Qwen3.6-35B-A3B"),
    KnownPair("Qwen/Qwen3.8-27B", "z-lab/Qwen3.8-27B-DFlash2"),
    KnownPair("Qwen/Qwen3.8-27B", "RadixArk/Qwen3.8-27B-DSpark"),
    KnownPair("moonshotai/Kimi-K2.5", "z-lab/Kimi-K2.5-DFlash"),
    KnownPair("openai/gpt-oss-20b", "z-lab/gpt-oss-20b-DFlash"),
    KnownPair("openai/gpt-oss-20b", "JetSpec/jetspec-gpt-oss-20b"),
    KnownPair("openai/gpt-oss-120b", "z-lab/gpt-oss-120b-DFlash"),
    KnownPair("google/gemma-4-31B-it", "z-lab/gemma-4-31B-it-DFlash"),
    KnownPair("google/gemma-4-31B-it", "RedHatAI/gemma-4-31B-it-speculator.dflash"),
    KnownPair("google/gemma-4-26B-A4B-it", "z-lab/gemma-4-26B-A4B-it-DFlash"),
    KnownPair("google/gemma-4-26B-A4B-it", "JetSpec/jetspec-gemma4-26B-A4B0-it"),
    KnownPair("google/gemma-4-12B-it", "deepseek-ai/dspark_gemma4_12b_block7", thinking=False),
    KnownPair("google/gemma-4-12B-it", "deepseek-ai/dflash_gemma4_12b_block7", thinking=False),
    KnownPair("mistralai/Mistral-Small-4-119B-2603", "RedHatAI/Mistral-Small-4-119B-2603.dflash"),
    KnownPair("stepfun-ai/Step-3.7-Flash", "JetSpec/jetspec-Step-3.7-Flash"),
)
