// Which round is shown. `cursor` null follows the run; a number stays there while more rounds arrive. Playing moves it by
// the recorded clock. `changed` is called after every move.

const UNTIMED_ROUND_SECONDS = 0.25;

function makeReplay(changed) {
  const replay = { cursor: null, playing: false, speed: 1, rounds: [], clock: 0, stamp: 0 };

  replay.last = () => (replay.cursor === null ? replay.rounds.length - 1 : Math.min(replay.cursor, replay.rounds.length - 1));

  replay.reset = (rounds) => {
    replay.rounds = rounds;
    replay.cursor = null;
    replay.playing = false;
  };

  replay.seek = (number) => {
    replay.playing = false;
    replay.place(number);
  };

  replay.place = (number) => {
    const end = replay.rounds.length - 1;
    replay.cursor = number >= end ? null : Math.max(0, number);
    changed();
  };

  replay.toEnd = () => replay.seek(Infinity);

  replay.toggle = () => {
    if (replay.playing) {
      replay.playing = false;
      changed();
      return;
    }
    if (replay.rounds.length < 2) return;
    const from = replay.cursor === null ? 0 : replay.cursor;
    replay.playing = true;
    replay.clock = timeAt(replay.rounds, from);
    replay.stamp = performance.now();
    replay.place(from);
    requestAnimationFrame(replay.tick);
  };

  replay.tick = (now) => {
    if (!replay.playing) return;
    replay.clock += (Math.max(0, now - replay.stamp) / 1000) * replay.speed;
    replay.stamp = now;
    let last = replay.last();
    while (last + 1 < replay.rounds.length && timeAt(replay.rounds, last + 1) <= replay.clock) last += 1;
    if (last >= replay.rounds.length - 1) replay.playing = false;
    if (last !== replay.last() || !replay.playing) replay.place(last);
    if (replay.playing) requestAnimationFrame(replay.tick);
  };
  return replay;
}

// Seconds at the end of a round; a trace without a clock plays four rounds a second.
function timeAt(rounds, number) {
  const timed = rounds.length && rounds[rounds.length - 1].at > 0;
  return timed ? rounds[number].at : number * UNTIMED_ROUND_SECONDS;
}
