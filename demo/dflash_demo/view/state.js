// Messages in, one run's state out. Rounds are kept by number and their texts never change once kept; those behind a gap
// wait until a later message fills it. Nothing here touches the page.

function emptyRun() {
  return { run: null, message: null, rounds: [], ahead: new Map(), gone: new Set() };
}

// Takes one message. Returns true when it begins another run. The last words of a run that another has replaced may come
// after the other's first: they are dropped.
function takeMessage(state, message) {
  if (state.gone.has(message.run)) return false;
  const fresh = message.run !== state.run;
  if (fresh) {
    if (!message.run) state.gone.clear(); // the empty page begins everything anew
    else if (state.run) state.gone.add(state.run);
    state.run = message.run;
    state.rounds = [];
    state.ahead = new Map();
  }
  state.message = message;
  for (const round of message.rounds || []) {
    if (round.n >= state.rounds.length) state.ahead.set(round.n, round);
    else if (round.n === 0) state.rounds[0] = round; // the first token's p is known at the end of the run
  }
  while (state.ahead.has(state.rounds.length)) {
    const next = state.rounds.length;
    state.rounds.push(state.ahead.get(next));
    state.ahead.delete(next);
  }
  return fresh;
}

// A string that is no message (or none at all) reads as the empty page.
function readMessage(value) {
  const message = typeof value === "string" && value ? JSON.parse(value) : value;
  return message && typeof message === "object" ? message : { run: null, rounds: [] };
}

function isOver(message) {
  return ["done", "stopped", "failed"].includes(message.phase);
}
