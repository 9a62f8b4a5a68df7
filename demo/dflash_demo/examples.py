"""Prompts to try, each with what to expect of it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EXAMPLES", "Example"]


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt, and a label that says what it shows."""

    label: str
    prompt: str


EXAMPLES = (
    Example(
        "Maths: step by step, where drafts are kept longest",
        "A baker sells 48 loaves on Monday and half as many on Tuesday. On Wednesday she sells 15 more than on "
        "Tuesday. How many loaves does she sell in the three days?",
    ),
    Example(
        "Code: regular, but every name is a surprise",
        "Write a Python function that returns the n-th Fibonacci number without recursion.",
    ),
    Example(
        "Code edit: the answer repeats the question",
        "Rename the variable x to total in this function and change nothing else:\n\n"
        "def add_up(values):\n    x = 0\n    for value in values:\n        x += value\n    return x",
    ),
    Example(
        "Prose: free text, few drafts survive",
        "Write a short story that begins: The lighthouse keeper had not spoken to anyone for a year.",
    ),
    Example(
        "Another language: far from what this drafter learned",
        "Explique en français, en trois phrases, pourquoi le ciel est bleu.",
    ),
)
