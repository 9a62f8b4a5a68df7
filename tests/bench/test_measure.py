from __future__ import annotations

import json
import time

import pytest
import torch

from dflash_hf.bench.judge import judge
from dflash_hf.bench.lanes import (
    convert_for_host,
    dflash_lane,
    host_lane,
    host_loop_lane,
    lookup_lane,
    plain_lane,
)
from dflash_hf.bench.measure import Case, measure
from dflash_hf.bench.provenance import provenance
from dflash_hf.bench.ratios import spread
from dflash_hf.bench.report import report, report_lines, write_report
from dflash_hf.errors import OptionsError
from dflash_hf.generation.attach import attach
from tests.scripted import scripted
from tests.tiny import greedy, prompt, tiny_target

GREEDY = {"max_new_tokens": 17, "do_sample": False}


def said(*tokens: int, seconds: float = 0.0, log: list[str] | None = None, name: str = ""):
    """A lane that says these tokens after so long."""

    def lane(inputs):
        if log is not None:
            log.append(name)
        time.sleep(seconds)
        return torch.cat([inputs["input_ids"], torch.tensor([tokens])], dim=1)

    return lane


def case(name: str = "one", length: int = 3) -> Case:
    return Case(name, {"input_ids": torch.arange(1, length + 1)[None]}, "group")


def test_measure_interleaves_lanes_and_turns_the_order_round() -> None:
    log: list[str] = []
    lanes = {name: said(1, 2, log=log, name=name) for name in ("plain", "fast", "third")}
    measure(lanes, [case("a"), case("b")], repeats=2, warmup=0, seed=5)
    pairs = [log[start : start + 3] for start in range(0, 12, 3)]
    assert all(sorted(pair) == ["fast", "plain", "third"] for pair in pairs)
    assert pairs[1] == pairs[0][::-1] and pairs[2] == pairs[0] and pairs[3] == pairs[1]


def test_measure_warms_up_outside_the_clock() -> None:
    calls: list[str] = []
    results = measure({"plain": said(1, log=calls, name="p")}, [case()], warmup=3)
    assert len(calls) == 4 and len(results[0].lanes["plain"].seconds) == 1


def test_report_has_the_ratio_of_times_and_the_text_beside_it() -> None:
    lanes = {"plain": said(1, 2, 3, seconds=0.06), "fast": said(1, 2, 3, seconds=0.02)}
    data = report(measure(lanes, [case(), case("two")], warmup=0))
    fast = data["lanes"]["fast"]
    assert 2.0 < fast["speedup"]["median"] < 3.5 and fast["speedup"]["kind"] == "min-max"
    assert fast["same_text"] == {
        "prompts": 2, "identical": 2, "near_tie": 0, "different": 0, "not_judged": 0, "not_repeatable": 0,
    }  # fmt: skip
    assert "same text 2 of 2" in report_lines(data)[1] and "speedup" not in data["lanes"]["plain"]


def test_report_compares_time_per_token_where_texts_part() -> None:
    lanes = {"plain": said(1, 2, 3, 4, seconds=0.08), "fast": said(1, 2, seconds=0.04)}
    data = report(measure(lanes, [case()], warmup=0))
    assert data["lanes"]["fast"]["speedup"]["median"] == pytest.approx(1.0, abs=0.2)
    assert data["prompts"][0]["lanes"]["fast"]["first_difference"] == 2
    assert "same text 0 of 1 (1 not judged)" in report_lines(data)[1]


def test_report_says_when_repeats_differ() -> None:
    answers = iter([1, 2])
    lanes = {
        "plain": said(1),
        "odd": lambda inputs: torch.cat([inputs["input_ids"], torch.tensor([[next(answers)]])], 1),
    }
    data = report(measure(lanes, [case()], repeats=2, warmup=0))
    assert data["lanes"]["odd"]["same_text"]["not_repeatable"] == 1


def test_measure_asks_the_judge_where_texts_differ() -> None:
    model, ids = tiny_target("llama"), prompt()
    right = greedy(model, ids, 6)[0, ids.shape[1] :].tolist()
    wrong = [*right[:4], (right[4] + 1) % 96, right[5]]
    lanes = {"plain": said(*right), "same": said(*right), "wrong": said(*wrong)}
    one = Case("one", {"input_ids": ids})
    results = measure(lanes, [one], judge=lambda start, tokens: judge(model, start, tokens))
    assert results[0].lanes["same"].near_tie is None and results[0].lanes["wrong"].near_tie is False
    assert report(results)["lanes"]["wrong"]["same_text"]["different"] == 1


def test_measure_calls_no_early_end_a_near_tie() -> None:
    model, ids = tiny_target("llama"), prompt()
    right = greedy(model, ids, 6)[0, ids.shape[1] :].tolist()
    lanes = {"plain": said(*right), "short": said(*right[:4])}
    results = measure(lanes, [Case("one", {"input_ids": ids})], judge=lambda start, tokens: judge(model, start, tokens))
    assert list(results[0].lanes) == ["plain", "short"] and results[0].lanes["short"].near_tie is False


def test_measure_of_a_real_pair_has_rounds_and_the_same_text(tmp_path) -> None:
    model, ids = tiny_target("llama"), prompt()
    text = greedy(model, ids, 40)
    drafter = scripted(model, text, spoil=lambda place: place % 5 == 0)
    attach(model, drafter)
    lanes = {
        "plain": plain_lane(model, **GREEDY),
        "dflash": dflash_lane(model, drafter, **GREEDY),
        "lookup": lookup_lane(model, **GREEDY),
    }
    results = measure(lanes, [Case("one", {"input_ids": ids})], repeats=2)
    data = report(results, provenance=provenance(model, {"target": "tiny", "drafter": "scripted"}))
    assert data["lanes"]["dflash"]["same_text"]["identical"] == data["lanes"]["lookup"]["same_text"]["identical"] == 1
    drafting, trace = data["lanes"]["dflash"]["drafting"], results[0].lanes["dflash"].traces[0]
    assert len(results[0].lanes["dflash"].traces) == 2
    assert drafting["tau_token_weighted"] == trace.metrics()["tau"] > 2
    split = drafting["round"]
    assert split["round_ms"] == pytest.approx(
        sum(split[f"{part}_ms"] for part in ("drafter", "head", "target", "loop"))
    )
    assert split["target_ms"] > 0 and 0 < split["loop_share"] < 1 and drafting["round_cost_in_plain_steps"] > 0
    assert data["provenance"]["model"]["dtype"] == "float32" and "torch" in data["provenance"]["versions"]
    write_report(tmp_path / "report.json", data)
    assert json.loads((tmp_path / "report.json").read_text()) == json.loads(json.dumps(data))


def test_plain_lane_ignores_the_attached_drafter() -> None:
    from dflash_hf.generation.record import last_trace

    model, ids = tiny_target("llama"), prompt()
    drafter = attach(model, scripted(model, greedy(model, ids, 20))) and last_trace()
    plain_lane(model, **GREEDY).run({"input_ids": ids})
    assert last_trace() is drafter


def test_host_lanes_run_the_hosts_loop_and_give_the_same_text(monkeypatch) -> None:
    model, ids = tiny_target("llama"), prompt()
    drafter = scripted(model, greedy(model, ids, 40), layer_causal=[False, False])
    attach(model)
    loops: list[str] = []
    host = type(model)._assisted_decoding

    def watched(self, *args, **kwargs):
        loops.append("host")
        return host(self, *args, **kwargs)

    monkeypatch.setattr(type(model), "_assisted_decoding", watched)
    lanes = {
        "plain": plain_lane(model, **GREEDY),
        "host": host_lane(model, convert_for_host(drafter, model), **GREEDY),
        "host-loop": host_loop_lane(model, drafter, **GREEDY),
    }
    data = report(measure(lanes, [Case("one", {"input_ids": ids})], warmup=0))
    assert loops == ["host", "host"]
    for name in ("host", "host-loop"):
        assert data["lanes"][name]["same_text"]["identical"] == 1


@pytest.mark.parametrize("arguments", [{"baseline": "none"}, {"repeats": 0}, {"cases": []}])
def test_measure_refuses_what_cannot_be_measured(arguments) -> None:
    cases = arguments.pop("cases", [case()])
    with pytest.raises(OptionsError):
        measure({"plain": said(1)}, cases, **arguments)


def test_spread_is_seeded_and_covers_the_median() -> None:
    values = [1.0 + 0.1 * number for number in range(20)]
    first = spread(values, seed=3)
    assert first == spread(values, seed=3) and first.kind == "bootstrap 95 %"
    assert 1.0 < first.low < first.median < first.high < 2.9
    assert spread([]) is None
