"""Runs on the tiny pair: what is told, what is measured, how they stop, and what a visitor reads when they fail."""

from __future__ import annotations

import json
from dataclasses import replace
from threading import current_thread
from time import sleep

import pytest
import torch

from dflash_demo.pairs import Pairs
from dflash_demo.runs import Run
from dflash_demo.settings import Limits, Request
from dflash_demo.visitors import Ticket
from dflash_hf.bench.answers import Answer
from dflash_hf.bench.pair import PairSource
from dflash_hf.streaming import decoder_of

ASKED = Request("a walk to", max_new_tokens=24)  # ends in the mask token: drafted perfectly (tests.cli.conftest)
LIMITS = Limits()


def told(run: Run) -> list[dict]:
    return list(run.messages())


def test_a_run_tells_the_text_its_rounds_and_the_verdict(pairs: Pairs) -> None:
    ticket = Ticket(ASKED)
    run = Run(pairs, ticket, LIMITS)
    last = told(run)[-1]
    trace = run.outcome.trace
    assert trace is not None and last["phase"] == "done"
    text = "".join(token[0] for round_ in last["rounds"] for token in round_["tokens"])
    assert text == run.outcome.text == decoder_of(pairs.get("auto").tokenizer)(trace.tokens)
    assert last["count"] == 1 + len(trace.rounds) == len(last["rounds"])
    assert sum(round_["accepted"] for round_ in last["rounds"]) == trace.metrics()["num_accepted_draft_tokens"] > 0
    assert last["drafted_run"]["tokens"] == last["plain_run"]["tokens"] == 24
    assert last["verdict"]["kind"] == "identical"
    assert last["rounds"][1]["tokens"][0][3] == pytest.approx(trace.rounds[0].target_p[0], abs=1e-4)


def test_messages_only_ever_add(pairs: Pairs) -> None:
    messages = told(Run(pairs, Ticket(ASKED), LIMITS))
    final = messages[-1]["rounds"]
    for message in messages:
        assert message["rounds"] == final[message["first"] : message["count"]]
    assert [message["count"] for message in messages] == sorted(message["count"] for message in messages)


def test_a_stopped_run_ends_early_and_leaves_the_pair_usable(pairs: Pairs) -> None:
    ticket = Ticket(replace(ASKED, max_new_tokens=200))
    run = Run(pairs, ticket, LIMITS)
    for message in run.messages():
        if message["count"] > 1:
            ticket.stop()
    assert message["phase"] == "stopped"
    assert 1 < message["count"] < 40
    assert told(Run(pairs, Ticket(ASKED), LIMITS))[-1]["verdict"]["kind"] == "identical"


def test_a_run_stopped_before_its_turn_never_generates(pairs: Pairs) -> None:
    ticket = Ticket(ASKED)
    run = Run(pairs, ticket, LIMITS)
    ticket.stop()
    assert told(run)[-1]["phase"] == "stopped"
    assert run.story.rounds == []


def test_the_plain_run_stops_too(pairs: Pairs) -> None:
    ticket = Ticket(replace(ASKED, max_new_tokens=200))
    run = Run(pairs, ticket, LIMITS)
    for message in run.messages():
        if message["phase"] == "plain" and message["plain_run"]["tokens"]:
            ticket.stop()
    assert message["phase"] == "stopped" and message["plain_run"]["tokens"] < 200
    assert message["drafted_run"]["done"]


def test_closing_the_messages_stops_the_run(pairs: Pairs, monkeypatch: pytest.MonkeyPatch) -> None:
    ticket = Ticket(replace(ASKED, max_new_tokens=200))
    run = Run(pairs, ticket, LIMITS)
    messages = run.messages()
    next(messages)
    messages.close()
    assert run.story.phase == "stopped"


def test_the_time_limit_stops_a_run_and_says_so(pairs: Pairs) -> None:
    last = told(Run(pairs, Ticket(ASKED), Limits(seconds=0.0)))[-1]
    assert last["phase"] == "stopped"
    assert "this page's limit" in last["notice"]["text"]


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (replace(ASKED, prompt=""), "Type a prompt"),
        (replace(ASKED, prompt="river " * 60), "tokens; this page takes 16"),
        (replace(ASKED, thinking=True), "thinking mode cannot be switched"),
    ],
)
def test_a_bad_request_is_explained_on_the_page(pairs: Pairs, request_: Request, said: str) -> None:
    last = told(Run(pairs, Ticket(request_), Limits(prompt_tokens=16)))[-1]
    assert last["phase"] == "failed" and last["notice"]["kind"] == "error"
    assert said in last["notice"]["text"]


def test_a_pair_that_does_not_fit_is_explained_on_the_page(files, source: PairSource) -> None:
    misfit = Pairs(replace(source, target=str(files.other_target)))
    last = told(Run(misfit, Ticket(ASKED), LIMITS))[-1]
    assert last["phase"] == "failed"
    assert "32" in last["notice"]["text"] and "64" in last["notice"]["text"]  # both widths
    assert "Traceback" not in last["notice"]["text"]


def test_sampling_is_not_compared_and_repeats_with_its_seed(pairs: Pairs) -> None:
    asked = replace(ASKED, temperature=2.0, seed=5)
    first, second = Run(pairs, Ticket(asked), LIMITS), Run(pairs, Ticket(asked), LIMITS)
    assert told(first)[-1]["verdict"]["kind"] == told(second)[-1]["verdict"]["kind"] == "sampled"
    assert first.outcome.text == second.outcome.text


def test_without_plain_nothing_is_compared(pairs: Pairs) -> None:
    last = told(Run(pairs, Ticket(replace(ASKED, plain=False, probabilities=False)), LIMITS))[-1]
    assert last["phase"] == "done"
    assert last["plain_run"] is None and last["verdict"] is None and last["why"] is None
    assert last["rounds"][1]["tokens"][0][3:] == [None, None]


def test_a_cap_of_nothing_is_plain_decoding_in_rounds(pairs: Pairs) -> None:
    last = told(Run(pairs, Ticket(replace(ASKED, draft_cap=0)), LIMITS))[-1]
    assert {round_["drafted"] for round_ in last["rounds"]} == {0}
    assert last["verdict"]["kind"] == "identical"


def test_another_text_than_plain_is_said(pairs: Pairs, monkeypatch: pytest.MonkeyPatch) -> None:
    import dflash_demo.runs as module

    plain = module.plain

    def other(*arguments, **options) -> Answer:
        answer = plain(*arguments, **options)
        wrong = [*answer.tokens]
        wrong[3] = (wrong[3] + 1) % 300
        return Answer(wrong, answer.seconds)

    monkeypatch.setattr(module, "plain", other)
    verdict = told(Run(pairs, Ticket(ASKED), LIMITS))[-1]["verdict"]
    assert verdict["kind"] in ("differs", "near_tie") and verdict["token"] == 3
    assert verdict["text"].startswith("differs at token 3")


def test_another_dtype_is_loaded_anew(pairs: Pairs) -> None:
    last = told(Run(pairs, Ticket(replace(ASKED, dtype="bfloat16")), LIMITS))[-1]
    assert last["pair"]["dtype"] == "bfloat16"
    assert pairs.get("auto").model.dtype == torch.float32


def test_a_run_that_was_stopped_loads_no_pair(source: PairSource) -> None:
    never, ticket = Pairs(source), Ticket(ASKED)
    ticket.stop()
    assert told(Run(never, ticket, LIMITS))[-1]["phase"] == "stopped"
    assert never.loaded is None


def test_the_pair_may_go_away_while_it_is_looked_at(source: PairSource) -> None:
    class Leaving(Pairs):
        """Another thread lets go of the pair after the first look."""

        looks = 0

        @property
        def _held(self):
            self.looks += 1
            return ("auto", "a pair") if self.looks == 1 else None

        @_held.setter
        def _held(self, value) -> None:
            pass

    assert Leaving(source).loaded == "a pair"


def test_numbers_that_are_none_reach_no_browser(pairs: Pairs, monkeypatch: pytest.MonkeyPatch) -> None:
    import dflash_demo.runs as module

    class Found:
        identical, verdict, near_tie, first_difference, line = False, object(), False, 1, "differs"
        gap = float("nan")

    monkeypatch.setattr(module, "compare", lambda *arguments: Found())
    json.dumps(told(Run(pairs, Ticket(ASKED), LIMITS))[-1], allow_nan=False)


def test_texts_are_made_outside_the_timed_calls(pairs: Pairs, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whoever reads the messages; and all of them before the plain run is timed."""
    import dflash_demo.runs as module

    add, plain = module.Rounds.add, module.plain
    makers: set[str] = set()
    told: list[int] = []
    run = Run(pairs, Ticket(ASKED), LIMITS)

    def slow(self, record):
        makers.add(current_thread().name)
        sleep(0.02)
        return add(self, record)

    def watched(*arguments, **options) -> Answer:
        told.append(len(run.story.rounds))
        return plain(*arguments, **options)

    monkeypatch.setattr(module.Rounds, "add", slow)
    monkeypatch.setattr(module, "plain", watched)
    last = list(run.messages())[-1]
    assert makers == {current_thread().name}
    assert told == [last["count"]] and last["count"] == 1 + len(run.outcome.trace.rounds)


def test_a_stop_loses_no_round_that_was_made(pairs: Pairs, monkeypatch: pytest.MonkeyPatch) -> None:
    import dflash_demo.runs as module

    add = module.Rounds.add
    monkeypatch.setattr(module.Rounds, "add", lambda self, record: (sleep(0.02), add(self, record))[1])
    ticket = Ticket(replace(ASKED, max_new_tokens=200))
    run = Run(pairs, ticket, LIMITS)
    for message in run.messages():
        if message["count"] > 2:
            ticket.stop()
    assert message["phase"] == "stopped"
    assert len(message["rounds"]) == 1 + len(run.outcome.trace.rounds)
    assert "".join(token[0] for each in message["rounds"] for token in each["tokens"]) == run.outcome.text


def test_own_tokens_have_the_targets_probability(pairs: Pairs) -> None:
    run = Run(pairs, Ticket(replace(ASKED, plain=False)), LIMITS)
    last = told(run)[-1]
    own = [token for round_ in last["rounds"] for token in round_["tokens"] if token[1] == "own"]
    trace = run.outcome.trace
    recorded = [trace.first_token_p, *(record.bonus_p for record in trace.rounds if record.bonus is not None)]
    assert [token[3] for token in own] == [round(p, 4) for p in recorded] and all(0 < p <= 1 for p in recorded)


def test_a_text_that_cannot_be_judged_leaves_the_run_done(pairs: Pairs, monkeypatch: pytest.MonkeyPatch) -> None:
    import dflash_demo.runs as module

    plain = module.plain

    def other(*arguments, **options) -> Answer:
        answer = plain(*arguments, **options)
        return Answer([*answer.tokens[:5], 7], answer.seconds)

    monkeypatch.setattr(module, "plain", other)
    monkeypatch.setattr(pairs.get("auto").model.generation_config, "no_repeat_ngram_size", 20)
    last = told(Run(pairs, Ticket(ASKED), LIMITS))[-1]
    assert last["phase"] == "done" and last["plain_run"]["done"]
    assert (last["verdict"]["kind"], last["verdict"]["token"]) == ("unchecked", 5)
    assert last["verdict"]["text"].startswith("differs at token 5; not judged: the judge replays plain greedy decoding")
    assert "no_repeat_ngram_size" in last["verdict"]["text"]


def test_a_cap_of_nothing_is_the_reason_that_is_given(pairs: Pairs) -> None:
    last = told(Run(pairs, Ticket(replace(ASKED, draft_cap=0)), LIMITS))[-1]
    assert last["why"] == "Nothing was drafted: the draft cap is 0."


def test_the_reason_is_asked_for_with_both_first_tokens(pairs: Pairs, monkeypatch: pytest.MonkeyPatch) -> None:
    import dflash_demo.runs as module

    asked = []
    monkeypatch.setattr(module, "why_no_gain", lambda *arguments: asked.append(arguments))
    last = told(Run(pairs, Ticket(ASKED), LIMITS))[-1]
    ((_, drafted, plain, cap),) = asked
    assert (drafted.message(), plain.message(), cap) == (last["drafted_run"], last["plain_run"], None)
    assert 0 < drafted.first_token < drafted.seconds and 0 < plain.first_token < plain.seconds
