// The replay's buttons and slider, both ways: presses move the replay, the replay moves them.

function watchControls(part, replay) {
  part("slider").addEventListener("input", () => replay.seek(Number(part("slider").value)));
  part("strip").addEventListener("click", (event) => {
    const box = part("strip").getBoundingClientRect();
    replay.seek(Math.floor(((event.clientX - box.left) / box.width) * replay.rounds.length));
  });
  part("back").addEventListener("click", () => replay.seek(replay.last() - 1));
  part("forward").addEventListener("click", () => replay.seek(replay.last() + 1));
  part("play").addEventListener("click", () => replay.toggle());
  part("live").addEventListener("click", () => replay.toEnd());
  part("speed").addEventListener("change", () => {
    replay.speed = Number(part("speed").value);
  });
}

function paintControls(part, replay, over) {
  const end = Math.max(0, replay.rounds.length - 1);
  const last = replay.last();
  const none = replay.rounds.length < 2;
  const slider = part("slider");
  if (slider.max !== String(end)) slider.max = String(end);
  if (slider.value !== String(Math.max(0, last))) slider.value = String(Math.max(0, last));
  const said = last > 0 ? "round " + last + " of " + end : "the prefill";
  if (slider.getAttribute("aria-valuetext") !== said) slider.setAttribute("aria-valuetext", said);
  slider.disabled = none;
  part("play").disabled = none;
  part("back").disabled = none || last <= 0;
  part("forward").disabled = none || last >= end;
  part("live").hidden = replay.cursor === null;
  setText(part("live"), over ? "To the end" : "Follow live");
  setText(part("play-text"), replay.playing ? "❚❚ Pause" : "▶ Replay");
  setText(part("where"), none ? "" : "round " + Math.max(0, last) + " / " + end);
}
