"""A tiny target, answers it gave, and a recipe: what trainer tests start from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from dflash_hf.target.fingerprint import weights_fingerprint
from dflash_hf.target.view import view_target
from dflash_hf.training.answers.answers import SCHEMA, Answer
from dflash_hf.training.checkpoint import drafter_of, read_state
from dflash_hf.training.documents import Corpus, corpus_of, fingerprint
from dflash_hf.training.features.features import OnTheFly
from dflash_hf.training.recipe import Recipe
from dflash_hf.training.run import Start, Trainer
from dflash_hf.training.start import starting_drafter
from tests.tiny import greedy, tiny_target

EOS = 7


class World:
    """Greedy answers of a tiny Qwen3 target to random prompts."""

    def __init__(self, answers: int = 24, new_tokens: int = 24) -> None:
        self.target: PreTrainedModel = tiny_target("qwen3")
        self.view = view_target(self.target)
        draw = torch.Generator().manual_seed(0)
        prompts = [torch.randint(8, 90, (1, 3 + number % 4), generator=draw) for number in range(answers)]
        self.answers = [self._answer(number, prompt, new_tokens) for number, prompt in enumerate(prompts)]

    def _answer(self, number: int, prompt: torch.Tensor, new_tokens: int) -> Answer:
        text = greedy(self.target, prompt, new_tokens, eos_token_id=EOS)[0].tolist()
        said = text[prompt.shape[1] :]
        return Answer(f"p-{number}", prompt[0].tolist(), said, said[-1] == EOS, "random", 0.0, 0)

    def corpus(self, held_out: int = 6) -> Corpus:
        return corpus_of(self.answers, max_length=64, held_out=held_out)

    def recipe(self, output: Path, **changes: Any) -> Recipe:
        base = {
            "answers": ["answers"], "output": str(output), "target_layer_ids": [0, 2], "num_hidden_layers": 2,
            "mask_token_id": 1, "block_size": 6, "documents_per_step": 4, "steps": 12, "learning_rate": 3e-3,
            "evaluate_every": 6, "evaluation_documents": 4, "anchors_per_document": 9,
        }  # fmt: skip
        return Recipe.of({**base, **changes})

    def trainer(self, output: Path, **changes: Any) -> Trainer:
        recipe = self.recipe(output, **changes)
        final = recipe.loss != "ce"
        named = (self.view.public_name, weights_fingerprint(self.target))
        state = read_state(Path(recipe.output), recipe, named, fingerprint(self.corpus().training))
        drafter = starting_drafter(self.view, recipe, self.corpus().training) if state is None else drafter_of(state)
        features = OnTheFly(self.view, drafter.config.target_layer_ids, final=final)
        return Trainer(self.view, recipe, Start(self.corpus(), features, drafter, named, state))


def write(world: World, path: Path, answers: list[Answer], **described: str) -> Path:
    """A folder of answers, of this target unless ``described`` says otherwise."""
    path.mkdir()
    description = {"schema": SCHEMA, "target": "tiny", "weights": weights_fingerprint(world.target), **described}
    (path / "answers.json").write_text(json.dumps(description))
    (path / "answers-00000-of-00001.jsonl").write_text("".join(answer.to_line("") for answer in answers))
    return path
