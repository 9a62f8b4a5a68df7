"""Files that say the same in other words mean the same drafter, and values nobody defined are errors that name them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dflash_hf.checkpoints.files import TensorInfo
from dflash_hf.checkpoints.load import load_drafter
from dflash_hf.checkpoints.translate import translate
from dflash_hf.errors import CheckpointError, UnsupportedCheckpointError
from tests.checkpoints.cases import CASES
from tests.checkpoints.described_files import gemma4, laguna, mimo
from tests.checkpoints.slow_target import load
from tests.checkpoints.test_unread_keys import described
from tests.checkpoints.tiny import write_tiny
from tests.checkpoints.tiny_dialects import FULL, SLIDING, WINDOW, speculators, zlab

ONE_OF_EACH = (
    "zlab sliding", "zlab older", "modelopt use_swa", "muse", "dflash2", "jetspec adapter", "domino shifted 1",
    "dspark specforge, dspark_config", "deepspec vanilla", "angelspec dspark", "angelspec dfly", "angelslim dflare",
    "speculators dflash", "speculators dspark", "speculators dflash2",
)  # fmt: skip


@pytest.mark.parametrize("prefix", ["model.", "draft_model.", "draft_model.model.", "logit_head."])
@pytest.mark.parametrize("case", ["zlab", "muse", "speculators dflash", "speculators dspark", "domino shifted 1"])
def test_what_is_put_before_a_name_says_nothing(case: str, prefix: str, tmp_path: Path) -> None:
    """Before every name, those of the lists of ids among them; ``midlayer.`` is layer 0."""
    made = CASES[case]()
    names = {name: prefix + name.replace("layers.0.", "midlayer.") for name in made.tensors}
    wrapped = replace(made, tensors={names[name]: tensor for name, tensor in made.tensors.items()})
    plain, other = load(made, tmp_path / "plain"), load(wrapped, tmp_path / "wrapped")
    assert described(plain) == described(other)
    mine, theirs = plain.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_a_verifiers_copies_are_left_alone_under_any_prefix(tmp_path: Path) -> None:
    made = CASES["speculators dflash"]()
    write_tiny(tmp_path, made.config, made.tensors | {"model.verifier_norm.weight": torch.zeros(2)})
    assert load_drafter(tmp_path).config.reduced_vocabulary


POSITIONS = {SLIDING: {"rope_type": "default", "rope_theta": 5e5}, FULL: {"rope_type": "default", "rope_theta": 1e4}}


@pytest.mark.parametrize("layers", [[FULL, FULL], [SLIDING, FULL], [SLIDING, SLIDING]])
def test_speculators_trains_with_the_sliding_layers_positions_whatever_its_layers_are(
    layers: list[str], tmp_path: Path
) -> None:
    flat = {"layer_types": layers, "rope_parameters": POSITIONS[SLIDING], **WINDOW}
    plain = load(speculators("dflash", layer=flat), tmp_path / "flat")
    other = load(speculators("dflash", layer=flat | {"rope_parameters": POSITIONS}), tmp_path / "nested")
    assert other.config.rope_parameters["rope_theta"] == 5e5 and described(plain) == described(other)
    assert other.provenance.origins["rope_parameters"] == "transformer_layer_config.rope_parameters"


def test_zlabs_layers_have_one_rotary_and_others_are_refused(tmp_path: Path) -> None:
    made = zlab(layer_types=[SLIDING, FULL], rope_parameters=POSITIONS, **WINDOW)
    write_tiny(tmp_path, made.config, made.tensors)
    with pytest.raises(UnsupportedCheckpointError, match="different positions"):
        load_drafter(tmp_path)


HOST = "eagle_aux_hidden_state_layer_ids"


@pytest.mark.parametrize("key", [HOST, "aux_hidden_state_layer_ids"])
@pytest.mark.parametrize("case", ["zlab", "modelopt", "dspark specforge", "angelspec dflash"])
def test_taps_in_the_hosts_counting_alone_are_one_higher(key: str, case: str, tmp_path: Path) -> None:
    """Not spread over the depth: the files say them."""
    made = CASES[case]()
    config = json.loads(json.dumps(made.config))
    scope = config.get("dflash_config", config)
    ids = scope.pop("target_layer_ids")
    config[key] = [index + 1 for index in ids]
    found = load(replace(made, config=config), tmp_path / "host")
    assert found.config.target_layer_ids == ids and found.provenance.origins["target_layer_ids"] == key
    assert described(found) == described(load(made, tmp_path / "plain"))


def test_two_lists_of_the_host_must_agree_and_start_at_the_embedding(tmp_path: Path) -> None:
    for number, (keys, message) in enumerate((
        ({HOST: [3, 1], "aux_hidden_state_layer_ids": [3, 2]}, "does not match"),
        ({HOST: [3, -1]}, "0 is the embedding"),
        ({HOST: [3, 0]}, "layers are counted from 0"),
    )):  # fmt: skip
        made = zlab(nested={"target_layer_ids": None}, **keys)
        write_tiny(tmp_path / str(number), made.config, made.tensors)
        with pytest.raises(CheckpointError, match=message):
            load_drafter(tmp_path / str(number))


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "a rank in quotes": ("dflash2", {"dflash_config.selector_rank": "256"}, "selector_rank is '256'"),
    "modes that are a number": ("zlab", {"dflash_config.attention_modes": 5}, "attention_modes is 5"),
    "a verifier that is a name": ("speculators dflash", {"speculators_config.verifier": "a/b"}, "verifier is 'a/b'"),
    "a speculators_config that is a list": ("speculators dflash", {"speculators_config": [1]}, "speculators_config is"),
    "no taps at all": ("speculators dflash", {"aux_hidden_state_layer_ids": []}, "target_layer_ids is empty"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_value_of_a_wrong_kind_is_an_error_that_names_file_and_key(name: str, tmp_path: Path) -> None:
    case, changes, message = WRONG[name]
    made = CASES[case]()
    write_tiny(tmp_path, changed(made.config, changes), made.tensors)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_drafter(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_verifier_of_null_is_none(tmp_path: Path) -> None:
    made = CASES["speculators dflash"]()
    write_tiny(tmp_path, changed(made.config, {"speculators_config.verifier": None}), made.tensors)
    assert load_drafter(tmp_path).config.target_name is None


def changed(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    made = json.loads(json.dumps(config))
    for path, value in changes.items():
        *parents, key = path.split(".")
        inside = made
        for parent in parents:
            inside = inside[parent]
        inside[key] = value
    return made


def paths(config: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in config.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from paths(value, f"{prefix}{key}.")


ODD = (7, -1, 0.5, "x", "", [], [None], [7], {}, {"a": 1}, True, None)


QUICK = ("zlab sliding", "domino shifted 1", "speculators dflash", "laguna")
EVERY = [
    pytest.param(case, marks=() if case in QUICK else pytest.mark.slow)
    for case in (*ONE_OF_EACH, "laguna", "mimo", "gemma4")
]


@pytest.mark.parametrize("case", EVERY)
def test_no_value_of_any_key_raises_an_error_of_pythons(case: str) -> None:
    """Every key of a file, in turn, with values of every kind of JSON: read, or refused in words."""
    if case in ("laguna", "mimo", "gemma4"):
        config, tensors, _ = {"laguna": laguna, "mimo": mimo, "gemma4": gemma4}[case]()
    else:
        config, tensors = CASES[case]().config, CASES[case]().tensors
    table = {name: TensorInfo(tuple(tensor.shape), "F32", "f") for name, tensor in tensors.items()}
    translate(config, table)
    for path in paths(config):
        for value in ODD:
            try:
                translate(changed(config, {path: value}), table)
            except CheckpointError:
                continue
            except Exception as error:
                raise AssertionError(f"{path}={value!r}: {error!r}") from error
