// What the rounds add up to. In: rounds 0..last as the message has them. Out: plain numbers; null where nothing was
// measured. Definitions are those of dflash_hf/trace.py: round 0 (the prefill) is no round, a round that drafted
// nothing stays out of every acceptance figure, tau = committed tokens per drafting round.

function ratio(part, whole) {
  return whole ? part / whole : null;
}

function draftingRounds(rounds, last) {
  return rounds.slice(1, last + 1).filter((round) => round.drafted > 0);
}

function acceptanceFigures(drafting) {
  const longest = Math.max(0, ...drafting.map((round) => round.drafted));
  const histogram = drafting.length ? new Array(longest + 1).fill(0) : [];
  const offered = new Array(longest).fill(0);
  const reached = new Array(longest).fill(0);
  const kept = new Array(longest).fill(0);
  let drafted = 0;
  let accepted = 0;
  let committed = 0;
  for (const round of drafting) {
    drafted += round.drafted;
    accepted += round.accepted;
    committed += round.tokens.length;
    histogram[round.accepted] += 1;
    for (let place = 0; place < round.drafted; place += 1) {
      offered[place] += 1;
      reached[place] += round.accepted >= place ? 1 : 0;
      kept[place] += round.accepted > place ? 1 : 0;
    }
  }
  return {
    steps: drafting.length,
    drafted,
    accepted,
    committed,
    histogram,
    tau: ratio(committed, drafting.length),
    acceptance: ratio(accepted, drafted),
    byPosition: kept.map((count, place) => ratio(count, offered[place])),
    conditional: kept.map((count, place) => ratio(count, reached[place])),
    reached,
    offered,
  };
}

// Mean milliseconds of a drafting round: drafter, head, target, and what is none of them.
function meanTimes(drafting) {
  const sum = [0, 0, 0, 0];
  for (const round of drafting) {
    const [drafter, head, target, whole] = round.ms;
    sum[0] += drafter;
    sum[1] += head;
    sum[2] += target;
    sum[3] += Math.max(0, whole - drafter - head - target);
  }
  return drafting.length ? sum.map((value) => value / drafting.length) : null;
}

function figuresAt(rounds, last) {
  const drafting = draftingRounds(rounds, last);
  let tokens = 0;
  for (let number = 0; number <= last; number += 1) tokens += rounds[number].tokens.length;
  const seconds = last >= 0 ? rounds[last].at : 0;
  const whole = acceptanceFigures(drafting);
  whole.rounds = Math.max(0, last);
  whole.tokens = tokens;
  whole.seconds = seconds;
  whole.rate = seconds > 0 ? tokens / seconds : null;
  whole.times = meanTimes(drafting);
  return whole;
}

// Tokens per second of a run the server timed; null before it has begun.
function rateOf(run) {
  return run && run.seconds > 0 && run.tokens > 0 ? run.tokens / run.seconds : null;
}

// How far each lane is when the drafted run stands at this round, of the longer lane at the end of the drafted run.
function raceAt(figures, endSeconds, endTokens, plainRate) {
  const goal = Math.max(endTokens, plainRate ? plainRate * endSeconds : 0);
  if (!goal) return { drafted: 0, plain: 0 };
  const plain = plainRate ? (plainRate * figures.seconds) / goal : 0;
  return { drafted: Math.min(1, figures.tokens / goal), plain: Math.min(1, plain) };
}
