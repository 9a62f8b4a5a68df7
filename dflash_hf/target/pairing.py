"""Does this drafter fit this target? Everything that can be known before work starts, in one message."""

from __future__ import annotations

from transformers import PreTrainedModel

from dflash_hf.drafter.model import DFlashDrafter
from dflash_hf.errors import IncompatiblePairError, UnsupportedTargetError, warn
from dflash_hf.target.blocks import reads_blocks_otherwise
from dflash_hf.target.recurrent import cannot_replay
from dflash_hf.target.streams import hidden_streams
from dflash_hf.target.view import TargetView, model_name, public_name, view_target

__all__ = ["check_pair", "fill_token_ids", "pair_view", "warn_of_doubts"]


def check_pair(target: PreTrainedModel, drafter: DFlashDrafter) -> TargetView:
    """Refuse a pair that cannot draft, before any work; warn of one that probably accepts nothing.

    Args:
        target: a causal LM.
        drafter: a DFlash drafter.

    Returns:
        The target's view, since it was needed to look.

    Raises:
        IncompatiblePairError: widths, layers, vocabulary or mask id do not fit. The message names both sides.
        UnsupportedTargetError: the target is of a kind this version does not draft for.
    """
    view = pair_view(target, drafter)
    fill_token_ids(target, drafter)
    warn_of_doubts(view, drafter)
    return view


def warn_of_doubts(view: TargetView, drafter: DFlashDrafter) -> None:
    """One warning for each thing about a pair that is legal but unlikely to be meant."""
    for doubt in _doubts(view, drafter):
        warn(f"{_name(drafter)} with {view.public_name}: {doubt}")


def pair_view(target: PreTrainedModel, drafter: DFlashDrafter) -> TargetView:
    """:func:`check_pair` without its warnings, changing nothing: for a pair that was looked at before."""
    view = view_target(target)
    if reason := reads_blocks_otherwise(view.text_config):
        raise UnsupportedTargetError(
            f"{view.name} ({type(target).__name__}) {reason}. Call generate without the drafter."
        )
    if (streams := hidden_streams(view.text_config)) > 1:
        raise UnsupportedTargetError(
            f"{view.name} ({type(target).__name__}) hands on {streams} hidden states of each token from layer to "
            "layer, where a drafter reads one; this version does not draft for it. Call generate without the drafter."
        )
    if reason := cannot_replay(view):
        raise UnsupportedTargetError(
            f"{view.name} ({type(target).__name__}) {reason}. Call generate without the drafter."
        )
    if problems := _problems(view, drafter):
        trained = drafter.config.target_name
        advice = (
            f"It was trained for {trained}: load that target."
            if trained and trained != view.name
            else "Load the target it was trained for (the card's base_model)."
        )
        raise IncompatiblePairError(f"{_name(drafter)} does not fit {view.name}: {'; '.join(problems)}. {advice}")
    return view


def fill_token_ids(target: PreTrainedModel, drafter: DFlashDrafter) -> None:
    """Give the drafter's config, in memory, the ids that ``pipeline`` compares: the target's."""
    text = target.config.get_text_config()
    for name in ("vocab_size", "eos_token_id", "bos_token_id", "pad_token_id"):
        setattr(drafter.config, name, getattr(text, name, None))


def _problems(view: TargetView, drafter: DFlashDrafter) -> list[str]:
    config = drafter.config
    found = []
    if config.target_hidden_size != view.hidden_size:
        found.append(f"it reads taps of width {config.target_hidden_size}, the target's are {view.hidden_size} wide")
    found += _borrowed(view, drafter)
    if outside := sorted({i for i in config.target_layer_ids if not -1 <= i < view.num_layers}):
        found.append(
            f"it taps layer{'s' if len(outside) > 1 else ''} {', '.join(map(str, outside))}, "
            f"the target has {view.num_layers} layers (0 to {view.num_layers - 1})"
        )
    if config.num_target_layers not in (None, view.num_layers):
        found.append(
            f"it was trained for a target of {config.num_target_layers} layers, this one has {view.num_layers}"
        )
    found += _vocabularies(view, drafter)
    flash = (config._attn_implementation or "").startswith("flash")
    if flash and config.window_rule != "query" and any(config.layer_windows):
        found.append(
            "its windows are not counted from each slot's own place, which flash attention cannot mask (load it with "
            "attn_implementation='sdpa')"
        )
    return found


def _borrowed(view: TargetView, drafter: DFlashDrafter) -> list[str]:
    """Widths of what the drafter takes from the target."""
    config = drafter.config
    parts = [
        name
        for name, own in (("embedding", config.embedding == "own"), ("head", config.draft_vocab_size is not None))
        if not own
    ]
    if parts and config.hidden_size != view.hidden_size:
        borrowed, width = " and ".join(parts), view.hidden_size
        verb = "are" if len(parts) > 1 else "is"
        return [f"it is {config.hidden_size} wide and uses the target's {borrowed}, which {verb} {width} wide"]
    if "embedding" in parts and (hidden := view.hides_rows(config.embedding)):
        return [f"it was trained on rows as they are stored, but {hidden}"]
    embedded = getattr(view.embedding, "embedding_dim", view.hidden_size)
    if "embedding" in parts and embedded != config.hidden_size:
        return [f"it needs embeddings {config.hidden_size} wide, the target's are {embedded} wide"]
    return []


def _vocabularies(view: TargetView, drafter: DFlashDrafter) -> list[str]:
    """Ids that one side has and the other does not."""
    config, found = drafter.config, []
    rows, owner = view.vocab_rows, "the target"
    if config.embedding == "own":
        rows, owner = drafter.embed_tokens.num_embeddings, "its own embedding"
    if not 0 <= config.mask_token_id < rows and not config.mask_embedding:
        verb = "embeds" if owner == "the target" else "has"
        found.append(f"its mask token is id {config.mask_token_id}, {owner} {verb} ids 0 to {rows - 1}")
    stored, tables = config.stored_vocab_size, config.embedding == "own" or config.head["kind"] in _TABLES
    if tables and stored is not None and stored < view.logit_columns:
        found.append(f"its tables are of {stored} ids, the target may say any of {view.logit_columns}")
    columns = config.draft_vocab_size
    if columns is None and config.head["kind"] in _CORRECTING and stored not in (None, view.logit_columns):
        found.append(f"its head corrects logits of {stored} ids, the target's are of {view.logit_columns}")
    if columns is not None and not config.reduced_vocabulary and columns < view.logit_columns:
        found.append(
            f"its own head has {columns} rows for the target's {view.logit_columns} ids, and the files do not say "
            "which ids they are (d2t)"
        )
    if config.reduced_vocabulary:
        columns = int(drafter.vocabulary.max()) + 1
    if columns is not None and columns > view.logit_columns:
        found.append(f"its head proposes ids up to {columns - 1}, the target has {view.logit_columns}")
    return found


_TABLES = ("markov", "selector")  # heads that look the token before a slot up
_CORRECTING = ("markov", "gru")  # heads that add something to every logit


def _doubts(view: TargetView, drafter: DFlashDrafter) -> list[str]:
    """What is legal but unlikely to be meant."""
    config = drafter.config
    found = []
    if len(set(config.target_layer_ids)) < len(config.target_layer_ids):
        found.append(f"it taps a layer twice ({config.target_layer_ids})")
    for meaning, ids in _special_ids(view).items():
        if config.mask_token_id in ids:
            found.append(f"its mask token {config.mask_token_id} is the target's {meaning} token")
    stored = getattr(drafter.config, "stored_vocab_size", None)
    if stored is not None and stored > view.vocab_rows:
        found.append(f"it was trained with a vocabulary of {stored}, the target has {view.vocab_rows}")
    if config.target_name and _base(config.target_name) != _base(view.name):
        found.append(f"its card says it was trained for {config.target_name}; expect few accepted tokens otherwise")
    return found


def _special_ids(view: TargetView) -> dict[str, set[int]]:
    """End-of-text and padding ids, from the model's config and its generation config."""
    found: dict[str, set[int]] = {}
    for meaning, key in (("end-of-text", "eos_token_id"), ("padding", "pad_token_id")):
        values = [getattr(source, key, None) for source in (view.text_config, view.model.generation_config)]
        flat = [token for value in values for token in (value if isinstance(value, list) else [value])]
        found[meaning] = {token for token in flat if token is not None}
    return found


def _base(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1].lower()


def _name(drafter: DFlashDrafter) -> str:
    name = model_name(drafter)
    return "the drafter" if name == type(drafter).__name__ else f"drafter {public_name(name)}"
