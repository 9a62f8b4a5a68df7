// One row per round: number, accepted/drafted and the target's own, the tokens as chips, then what was rejected.

function makeRowsView(box, list) {
  return makeView(box, list, drawRow, rejectInRow);
}

function rowCounts(round) {
  if (round.n === 0) return { seen: "prefill", said: "the prefill: the target's own first token" };
  const own = round.tokens.length - round.accepted;
  if (!round.drafted) return { seen: "plain", said: "nothing drafted, one token by the target" };
  return {
    seen: round.accepted + "/" + round.drafted + (own > 0 ? " +" + own : ""),
    said: round.accepted + " of " + round.drafted + " drafts accepted" + (own > 0 ? ", plus " + own : ""),
  };
}

function drawRow(round) {
  const row = document.createElement("li");
  row.className = "row";
  row.dataset.n = round.n;
  const number = document.createElement("span");
  number.className = "row-n";
  number.textContent = String(round.n);
  const counts = document.createElement("span");
  counts.className = "row-c";
  const { seen, said } = rowCounts(round);
  counts.textContent = seen;
  counts.setAttribute("role", "img");
  counts.setAttribute("aria-label", said);
  const tokens = document.createElement("span");
  tokens.className = "row-t";
  round.tokens.forEach((_, index) => tokens.append(tokenElement(round, index)));
  row.append(number, counts, tokens);
  return row;
}

function rejectInRow(row, round) {
  const tokens = row.lastElementChild;
  round.rejected.forEach((_, index) => tokens.append(rejectedElement(round, index)));
}
