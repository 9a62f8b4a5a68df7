"""Scripted messages, as the server sends them. Deterministic: no model, no clock, no global random state."""

from __future__ import annotations

import random
from typing import Any

Round = dict[str, Any]

PAIR = {"target": "SmolLM2-135M-Instruct", "drafter": "DFlash (embedded)", "dtype": "float32", "device": "cpu"}
WINDOW = 8


def first_round(text: str, at: float = 0.41) -> Round:
    """Round 0: the prefill's own token."""
    own = [text, "own", 1, 0.93, None]
    milliseconds = [0, 0, at * 1000, at * 1000]
    return {"n": 0, "drafted": 0, "accepted": 0, "cut": False, "tokens": [own], "rejected": [], "ms": milliseconds,
            "at": at}  # fmt: skip


def draft_round(
    number: int, accepted: list[str], own: str | None, rejected: list[str], at: float, *, cut: bool = False
) -> Round:
    """A drafting round with made-up, fixed probabilities; the target's p is unknown behind the first miss.

    A text that begins with a bar is a special token's name: the token shows nothing.
    """
    kept = len(accepted)
    tokens: list[list[Any]] = [
        [_shown(text), "draft", slot, round(0.97 - 0.05 * slot, 3), round(0.99 - 0.09 * slot, 3), *_named(text)]
        for slot, text in enumerate(accepted, start=1)
    ]
    if own is not None:
        tokens.append([_shown(own), "own", kept + 1, 0.61, None, *_named(own)])
    missed: list[list[Any]] = [
        [_shown(text), kept + 1 + place, 0.012 if place == 0 else None, round(0.44 - 0.04 * place, 3), *_named(text)]
        for place, text in enumerate(rejected)
    ]
    milliseconds = [14.1, 6.0, 63.2, 86.0]
    return {"n": number, "drafted": kept + len(rejected), "accepted": kept, "cut": cut, "tokens": tokens,
            "rejected": missed, "ms": milliseconds, "at": round(at, 3)}  # fmt: skip


def _shown(text: str) -> str:
    return "" if text.startswith("|") else text


def _named(text: str) -> list[str]:
    return [f"<{text}>"] if text.startswith("|") else []


def plain_round(number: int, text: str, at: float) -> Round:
    """A round that drafted nothing."""
    return {"n": number, "drafted": 0, "accepted": 0, "cut": False, "tokens": [[text, "own", 1, 0.5, None]],
            "rejected": [], "ms": [0, 0, 40.0, 41.0], "at": at}  # fmt: skip


def story() -> list[Round]:
    """A short answer with prose, a list, code with tabs, a plain round and a cut end."""
    script: list[tuple[list[str], str | None, list[str]]] = [
        ([" answer", " is", " ", "8", "4"], ".", ["\n", " because"]),
        (["\n", "\n", "To", " see", " why", ",", " split"], " the", []),
        ([" number"], " twelve", [" into", " parts", ":", " ten", " and", " two"]),
        ([" into", " ten", " and", " two"], ":", [".", "\n", "\n"]),
        (["\n", "\n", "1", ".", " Ten"], " times", [" sevens", " are"]),
        ([" seven", " is", " ", "7", "0", ".", "\n"], "2", []),
        ([".", " Two", " times", " seven", " is", " ", "1"], "4", []),
        ([], ".", ["4", "\n", "3", ".", " Add", " the", " two"]),
        (["\n", "\n", "In", " Python"], ":", [" that", " is", "\n"]),
        (["\n", "\n", "``", "`", "python", "\n"], "def", ["print"]),
        ([" product", "(", "a", ",", " b", ")", ":"], "\n", []),
        (["\t"], "total", ["return", " a", " *", " b", "\n", "\n"]),
        ([" =", " ", "0"], "\n", [";", "\n", "\t"]),
        (["\t", "for", " _", " in", " range", "(", "b"], "):", []),
        (["\n", "\t\t", "total", " +=", " a", "\n"], "\t", ["return"]),
        (["return", " total", "\n", "``", "`", "\n", "\n"], "So", []),
        ([" ", "7", "0", " +", " ", "1", "4"], " =", []),
        ([" ", "8", "4"], ",", [".", "\n", "\n", "That"]),
        ([" as", " promised", "."], None, []),
    ]
    rounds, at = [first_round("The")], 0.41
    for number, (accepted, own, rejected) in enumerate(script, start=1):
        at += 0.086
        cut = number == len(script)
        rounds.append(draft_round(number, accepted, own, rejected, at, cut=cut))
    return rounds


def long_rounds(tokens: int, block: int = 8, seed: int = 5) -> list[Round]:
    """A run of at least ``tokens`` tokens with a wandering acceptance."""
    luck = random.Random(seed)
    words = [" the", " of", " a", " value", ",", ".", "\n", " number", " is", "(", ")", " and", " x", "1", "\t", " so"]
    rounds, at, written = [first_round("Once", 0.3)], 0.3, 1
    while written < tokens:
        kept = min(block - 1, max(0, int(luck.gauss(3, 2))))
        accepted = [luck.choice(words) for _ in range(kept)]
        missed = [luck.choice(words) for _ in range(block - 1 - kept)]
        at += 0.05
        rounds.append(draft_round(len(rounds), accepted, luck.choice(words), missed, at))
        written += kept + 1
    return rounds


def message(
    rounds: list[Round],
    *,
    run: str | None = "a3f9",
    phase: str = "drafting",
    count: int | None = None,
    whole: bool = False,
    **others: Any,
) -> dict[str, Any]:
    """The message after ``count`` rounds: their last eight, or all of them."""
    count = len(rounds) if count is None else count
    first = 0 if whole else max(0, count - WINDOW)
    seen = rounds[:count]
    written = sum(len(item["tokens"]) for item in seen)
    body = {
        "run": run,
        "phase": phase,
        "notice": None,
        "prompt": "What is 12 times 7, and why?",
        "pair": PAIR,
        "block": 8,
        "probabilities": True,
        "count": count,
        "first": first,
        "rounds": seen[first:],
        "drafted_run": {
            "tokens": written,
            "seconds": seen[-1]["at"] if seen else 0,
            "first_token": 0.41,
            "done": phase in ("plain", "done"),
        },  # fmt: skip
        "plain_run": None,
        "verdict": None,
        "why": None,
    }
    return {**body, **others}


def finished(rounds: list[Round], **others: Any) -> dict[str, Any]:
    """The last message of a run with a plain run beside it."""
    written = sum(len(item["tokens"]) for item in rounds)
    plain = {"tokens": written, "seconds": round(rounds[-1]["at"] * 1.9, 3), "done": True, "first_token": 0.4}
    verdict = {"kind": "identical", "text": "identical text", "token": None, "gap": None}
    return message(rounds, **{"phase": "done", "whole": True, "plain_run": plain, "verdict": verdict, **others})


def text_of(rounds: list[Round]) -> str:
    return "".join(token[0] for item in rounds for token in item["tokens"])
