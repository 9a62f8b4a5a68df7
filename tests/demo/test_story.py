"""Messages: what is repeated, what is whole, and that a live run and its trace tell the same."""

from __future__ import annotations

from dflash_demo.settings import Request
from dflash_demo.story import WINDOW, Rounds, Story, rounds_of
from dflash_demo.tokens import texts_of_trace
from dflash_demo.visitors import Ticket
from dflash_hf import RoundRecord, Trace


def decode(ids: list[int]) -> str:
    return bytes(ids).decode(errors="replace")


def record(text: bytes, accepted: int, bonus: int | None, **more: object) -> RoundRecord:
    return RoundRecord(list(text), accepted, bonus, drafter_ms=1, head_ms=2, target_ms=3, round_ms=10, **more)


def story() -> Story:
    return Story.of(Ticket(Request("Hello")))


def test_a_round_has_its_tokens_in_order_with_slots_and_probabilities() -> None:
    rounds = Rounds(decode)
    first = rounds.prefill(72, 0.5)
    found = rounds.add(record(b"iXY", 1, 33, target_p=[0.9, 0.1, None], draft_q=[0.8, 0.6, 0.4], bonus_p=0.7))
    assert first["tokens"] == [["H", "own", 1, None, None]] and first["at"] == 0.5 and first["n"] == 0
    assert found["tokens"] == [["i", "draft", 1, 0.9, 0.8], ["!", "own", 2, 0.7, None]]
    assert found["rejected"] == [["X", 2, 0.1, 0.6], ["Y", 3, None, 0.4]]
    assert (found["n"], found["drafted"], found["accepted"], found["at"]) == (1, 3, 1, 0.51)
    assert found["ms"] == [1, 2, 3, 10]


def test_special_tokens_are_told_with_their_names_and_never_in_the_text() -> None:
    rounds = Rounds(lambda ids: decode([each for each in ids if each < 1]), {1: "<|end|>", 2: "<|turn|>"})
    assert rounds.prefill(2, 0.5, 0.25)["tokens"] == [["", "own", 1, 0.25, None, "<|turn|>"]]
    found = rounds.add(RoundRecord([1, 2, 9], 1, 1, draft_q=[0.5, 0.25, 0.125]))
    assert found["tokens"] == [["", "draft", 1, None, 0.5, "<|end|>"], ["", "own", 2, None, None, "<|end|>"]]
    assert found["rejected"] == [["", 2, None, 0.25, "<|turn|>"], ["", 3, None, 0.125]]


def test_a_round_that_ends_on_a_drafted_token_has_no_own_one() -> None:
    rounds = Rounds(decode)
    rounds.prefill(72, 0)
    assert [token[1] for token in rounds.add(record(b"ab", 2, None, cut=True))["tokens"]] == ["draft", "draft"]


def test_a_message_has_the_new_rounds_and_repeats_the_last_and_the_final_one_has_all() -> None:
    told, rounds = story(), Rounds(decode)
    told.rounds = [rounds.prefill(72, 0)] + [rounds.add(record(b"a", 1, 98)) for _ in range(WINDOW + 4)]
    part, again, whole = told.message(), told.message(), told.message(whole=True)
    assert (part["count"], part["first"], len(part["rounds"])) == (WINDOW + 5, 0, WINDOW + 5)  # all were new
    assert (again["count"], again["first"], len(again["rounds"])) == (WINDOW + 5, 5, WINDOW)
    assert (whole["first"], len(whole["rounds"])) == (0, WINDOW + 5)
    assert again["rounds"] == whole["rounds"][5:]


def test_however_fast_rounds_come_no_message_leaves_a_gap() -> None:
    told, rounds = story(), Rounds(decode)
    told.rounds, end = [rounds.prefill(72, 0)], 0
    for _ in range(3):
        told.rounds += [rounds.add(record(b"a", 1, 98)) for _ in range(3 * WINDOW)]
        message = told.message()
        assert message["first"] <= end
        end = message["count"]


def test_a_probability_that_is_no_number_is_not_told() -> None:
    rounds = Rounds(decode)
    rounds.prefill(72, 0)
    found = rounds.add(record(b"ab", 1, 98, target_p=[float("nan"), 0.5], draft_q=[0.5, float("inf")]))
    assert found["tokens"][0][3] is None and found["rejected"][0][3] is None


def test_a_trace_tells_the_rounds_the_live_run_told() -> None:
    euro = list("€".encode())
    records = [record(b"a" + bytes(euro[:2]), 3, euro[2]), record(b"zz", 0, 99)]
    trace = Trace(first_token=72, first_token_p=0.9, prefill_ms=250, rounds=records)
    live = Rounds(decode)
    told = [live.prefill(72, 0.25, 0.9), *(live.add(item) for item in records)]
    assert rounds_of(trace, decode) == told
    assert "".join(token[0] for round_ in told for token in round_["tokens"]) == "Ha€c"


def test_an_answer_that_ends_inside_a_character_is_told_to_its_last_byte() -> None:
    euro = list("€".encode())
    trace = Trace(first_token=72, rounds=[record(b"a", 1, euro[0]), record(b"", 0, euro[1], cut=True)])
    live = Rounds(decode)
    told = story()
    told.rounds = [live.prefill(72, 0), *(live.add(item) for item in trace.rounds)]
    run, joined = told.run, lambda rounds: "".join(token[0] for round_ in rounds for token in round_["tokens"])
    assert joined(told.rounds) == "Ha"
    told.settle(texts_of_trace(decode, trace.tokens))
    assert joined(told.rounds) == joined(rounds_of(trace, decode)) == decode(trace.tokens) != "Ha"
    assert told.run != run  # the page draws it anew
    again = told.run
    told.settle(texts_of_trace(decode, trace.tokens))
    assert told.run == again


def test_the_first_tokens_probability_comes_with_the_end() -> None:
    told, rounds = story(), Rounds(decode)
    told.rounds = [rounds.prefill(72, 0)]
    run = told.run
    told.settle(["H"], 0.123456)
    assert told.rounds[0]["tokens"] == [["H", "own", 1, 0.1235, None]] and told.run == run
