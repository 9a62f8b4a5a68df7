// Everything around the text: state, tiles, race, verdict, charts. In: the run's state and the figures at the round
// shown. Writes text and widths into elements that are there from the start.

function paintPanel(part, state, figures, last) {
  const { message } = state;
  const plainRate = rateOf(message.plain_run);
  const atEnd = last === state.rounds.length - 1;
  // At the end the whole call's time counts, as it does for the plain run; on the way, the rounds' own clock.
  const whole = atEnd && message.drafted_run && message.drafted_run.done ? rateOf(message.drafted_run) : null;
  const rate = whole ?? figures.rate;
  const speedup = plainRate && rate ? rate / plainRate : null;
  paintHead(part, state, figures);
  paintTiles(part, message, figures, rate, speedup, plainRate);
  paintRace(part, state, figures, rate, plainRate);
  paintVerdict(part, message);
  setBars(part("histogram"), histogramColumns(figures, message.block || 8));
  setBars(part("positions"), positionColumns(figures, message.block || 8));
  setSplit(part("split"), part("split-key"), figures.times);
  return speedup;
}

function paintHead(part, state, figures) {
  const { message } = state;
  const root = part("root");
  const phase = message.run === null || message.run === undefined ? "empty" : message.phase;
  if (root.dataset.phase !== phase) root.dataset.phase = phase;
  setText(part("phase"), phase === "empty" ? "Ready" : PHASES[phase] || String(phase));
  const counts = counted(figures.tokens, "token", "tokens") + " · " + counted(figures.rounds, "round", "rounds");
  setText(part("counts"), figures.tokens ? counts + " · " + fixed(figures.seconds, 1) + " s" : "");
  const pair = message.pair;
  setText(part("pair"), pair && pair.target ? pair.target + " ← " + pair.drafter + " · " + pair.dtype + " · " + pair.device : "");
  setText(part("prompt"), clipped(message.prompt || "", LONGEST_NOTICE));
  paintNotice(part, message.notice);
}

function paintNotice(part, notice) {
  const box = part("notice");
  box.hidden = !notice;
  if (!notice) return;
  box.dataset.kind = notice.kind;
  setText(part("notice-mark"), NOTICE_MARKS[notice.kind] || "i");
  setText(part("notice-text"), clipped(String(notice.text), LONGEST_NOTICE));
}

function paintTiles(part, message, figures, rate, speedup, plainRate) {
  setText(part("tile-speedup"), speedup === null ? "–" : fixed(speedup, 2) + "×");
  setText(part("tile-tau"), fixed(figures.tau, 2));
  setText(part("tile-acceptance"), percent(figures.acceptance));
  setText(part("tile-first"), timeText(message.drafted_run ? message.drafted_run.first_token : null));
  setText(part("tile-rate"), rateText(rate));
  part("tile-speedup").classList.toggle("none", speedup === null);
  part("tile-speedup").parentElement.classList.toggle("slower", speedup !== null && speedup < 1);
  setText(part("sub-speedup"), speedupNote(message, rate, plainRate));
  setText(part("sub-acceptance"), figures.drafted ? figures.accepted + " of " + figures.drafted : "of those proposed");
  setText(part("sub-rate"), plainRate ? "plain: " + rateText(plainRate) : "with DFlash");
}

function speedupNote(message, rate, plainRate) {
  if (plainRate && rate) return rateText(rate) + " against " + rateText(plainRate) + " tokens/s";
  if (message.run && isOver(message)) return "no plain run to compare";
  return "plain run comes second";
}

function paintRace(part, state, figures, rate, plainRate) {
  const end = state.rounds.length - 1;
  const endTokens = state.rounds.reduce((sum, round) => sum + round.tokens.length, 0);
  const lanes = raceAt(figures, end >= 0 ? state.rounds[end].at : 0, endTokens, plainRate);
  part("race-drafted").style.transform = "scaleX(" + lanes.drafted.toFixed(4) + ")";
  part("race-plain").style.transform = "scaleX(" + lanes.plain.toFixed(4) + ")";
  setText(part("rate-drafted"), rateText(rate));
  setText(part("rate-plain"), rateText(plainRate));
}

function paintVerdict(part, message) {
  const verdict = message.verdict;
  const box = part("verdict");
  box.dataset.kind = verdict ? verdict.kind : "none";
  setText(part("verdict-mark"), verdict ? VERDICT_MARKS[verdict.kind] || "?" : "");
  setText(part("verdict-text"), verdict ? verdictText(verdict) : "");
  setText(part("why"), message.why || "");
}
