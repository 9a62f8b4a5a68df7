"""The tiny checkpoints that every test of the dialects goes through: name -> what makes it."""

from __future__ import annotations

from collections.abc import Callable

from tests.checkpoints.tiny_dialects import (
    CORRECTION,
    DFLASH2_KEYS,
    FULL,
    MARKOV,
    MIX,
    SELECTOR,
    SLIDING,
    TARGET_KEYS,
    WINDOW,
    Checkpoint,
    W,
    angelslim_dflare,
    angelspec,
    beside,
    conv_shapes,
    deepspec,
    dflash2,
    dflash2_modelopt,
    domino,
    dspark,
    jetspec,
    markov_shapes,
    modelopt,
    muse,
    older_zlab,
    sparse_speculators,
    speculators,
    speculators_dspark,
    zlab,
)

__all__ = ["CASES"]


def _made() -> dict[str, Callable[[], Checkpoint]]:
    half, slide = {"layer_types": [SLIDING, FULL], **WINDOW}, {"layer_types": [SLIDING] * 2, **WINDOW}
    free = {"sliding_window_non_causal": True}
    caps = {"output_multiplier": 0.5, "final_logit_softcapping": 4.0, "input_embedding_scale": 1.7}
    swa = {"use_swa": True, "swa_window_size": W}
    kept = ("mask_token_id", "target_layer_ids", "projector_type")
    flat, logit = {"head": "", "sure": "confidence_proj."}, "logit_head."
    made = {
        "zlab": zlab, "zlab older": older_zlab, "zlab sliding": lambda: zlab(**half),
        "zlab sliding, not causal": lambda: zlab(**slide, is_causal=False), "zlab causal": lambda: zlab(is_causal=True),
        "zlab scales": lambda: zlab(nested=caps), "zlab on gemma": lambda: zlab(target="gemma2"),
        "zlab on granite": lambda: zlab(target="granite"),
        "zlab on granite, a multiplier of 1": lambda: zlab(nested={"output_multiplier": 1.0}, target="granite"),
        "zlab scales on gemma": lambda: zlab(nested=caps, target="gemma2"),
        "zlab last layer": lambda: zlab(nested={"target_layer_ids": [3, 1]}),
        "dflash2": dflash2, "dflash2 scales on gemma": lambda: dflash2("gemma2", **caps),
        "dflash2 on gemma": lambda: dflash2("gemma2"),
        "modelopt": modelopt, "modelopt use_swa": lambda: modelopt(use_swa=True, swa_window_size=W, causal=False),
        "modelopt use_swa, block past the window": lambda: modelopt(use_swa=True, swa_window_size=2, causal=False),
        "modelopt use_swa, causal": lambda: modelopt(use_swa=True, swa_window_size=2, causal=True),
        "domino modelopt use_swa": lambda: domino(True, 1, nested=swa | {"causal": False}),
        "domino modelopt use_swa, causal": lambda: domino(
            False, 0, nested=swa | {"swa_window_size": 2, "causal": True}
        ),
        "dspark modelopt use_swa": lambda: dspark("vanilla", **flat, nested=swa),
        "dspark modelopt use_swa, block past the window": lambda: dspark(
            "gated", **flat, nested=swa | {"swa_window_size": 2, "causal": True}
        ),
        "dflash2 modelopt use_swa": lambda: dflash2_modelopt(use_swa=True, swa_window_size=W, causal=False),
        "dflash2 modelopt": lambda: dflash2_modelopt(causal=False),
        "muse": muse, "muse half sliding": lambda: muse(layers=(SLIDING, FULL)), "muse narrow": lambda: muse(window=2),
        "muse on gemma": lambda: muse("gemma2"),
        "muse on granite": lambda: muse("granite"), "muse on muse": lambda: muse("muse"),
        "zlab on muse": lambda: zlab(target="muse"), "dflash2 on muse": lambda: dflash2("muse", **caps),
        "jetspec": lambda: jetspec(causal_head=True),
        "jetspec adapter": lambda: jetspec(adapter=True, causal_head=True),
        "jetspec adapter, not causal": lambda: jetspec(adapter=True, causal_head=False),
        "dspark specforge": lambda: dspark("vanilla"), "dspark specforge gated": lambda: dspark("gated"),
        "dspark specforge, its own model_type": lambda: dspark(
            "vanilla", model_type="dspark", architectures=["DSparkDraftModel"]
        ),
        "dspark specforge, dspark_config": lambda: beside(dspark("gated"), "dspark_config", kept),
        "domino specforge, domino_config": lambda: beside(domino(True, 1), "domino_config", (*kept, "block_size")),
        "dspark specforge rnn": lambda: dspark("rnn", **half), "dspark modelopt": lambda: dspark("vanilla", **flat),
        "dspark modelopt gated": lambda: dspark("gated", **flat), "dspark modelopt rnn": lambda: dspark("rnn", **flat),
        "dspark logit_head": lambda: dspark("vanilla", f"{logit}markov_head.", f"{logit}confidence_head.proj."),
        "deepspec dflash": lambda: deepspec(None), "deepspec vanilla": lambda: deepspec("vanilla"),
        "deepspec gated": lambda: deepspec("gated"), "deepspec rnn": lambda: deepspec("rnn", (1, -1)),
        "speculators dflash": lambda: speculators("dflash"),
        "speculators dflash whole": lambda: speculators("dflash", reduced=False),
        "speculators dflash sliding": lambda: speculators("dflash", layer=slide),
        "speculators dflash sliding, not causal": lambda: speculators("dflash", layer=half, **free),
        "speculators dflash from anchor": lambda: speculators("dflash", sample_from_anchor=True),
        "speculators dflash raw last": lambda: speculators("dflash", aux_hidden_state_layer_ids=[0, 4]),
        "speculators dflash borrowed rows": lambda: speculators("dflash", own=False),
        "speculators dflash borrowed rows and head": lambda: speculators(
            "dflash", own=False, head=False, target="gemma2"
        ),
        "speculators dflash borrowed head": lambda: speculators("dflash", head=False, target="gemma2"),
        "speculators dspark borrowed head": lambda: speculators_dspark("vanilla", head=False, target="granite"),
        "speculators dflash sparse": sparse_speculators,
        "speculators dspark": lambda: speculators_dspark("vanilla"),
        "speculators dspark gated": lambda: speculators_dspark("gated", layer=slide),
        "speculators dspark rnn": lambda: speculators_dspark("rnn", sample_from_anchor=False),
        "speculators dflash2": lambda: speculators(
            "dflash2", reduced=False, layer=slide, shapes={**conv_shapes(), **SELECTOR}, **DFLASH2_KEYS, **free
        ),
        "angelspec dflash": lambda: angelspec("angelspec-dflash", {}),
        "angelspec dflare": lambda: angelspec("dflare", {**MIX, **TARGET_KEYS}, fc=False, model_arch="dflare"),
        "angelspec dfly": lambda: angelspec(
            "dfly", {**MIX, **CORRECTION}, architectures=["Qwen3DFlyModel"], enable_hidden_correction=True
        ),
        "angelspec dfly as dspark": lambda: angelspec(
            "dfly", {**MIX, **CORRECTION}, model_type="dspark", model_arch="dfly", markov_rank=256,
            enable_confidence_head=True,
        ),
        "angelspec dfly, nothing corrected": lambda: angelspec(
            "dfly", MIX, model_type="dspark", model_arch="dfly", markov_rank=256
        ),
        "angelspec dspark": lambda: angelspec(
            "angelspec-dspark", markov_shapes("vanilla"), architectures=["DSparkDraftModel"], model_type="dspark",
            markov_head_type="vanilla", enable_confidence_head=True, **MARKOV,
        ),
        "angelslim dflare": angelslim_dflare,
    }  # fmt: skip
    for shifted in (False, True):
        for prefix in (0, 1):
            made[f"domino {'shifted' if shifted else 'same place'} {prefix}"] = lambda shifted=shifted, prefix=prefix: (
                domino(shifted, prefix)
            )
    return made | {"domino logit_head": lambda: domino(True, 1, logit)}


CASES = _made()
