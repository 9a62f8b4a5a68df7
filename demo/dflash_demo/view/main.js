// Wires the component: messages come in, one paint a frame goes out. `element`, `props` and `watch` are Gradio's.

const root = element.querySelector('[data-part="root"]');
const parts = new Map([...root.querySelectorAll("[data-part]"), root].map((node) => [node.dataset.part, node]));
const part = (name) => parts.get(name);

const state = emptyRun();
const views = {
  rows: makeRowsView(part("rows-box"), part("rows")),
  text: makeTextView(part("text-box"), part("text-rounds"), part("text-end")),
};
const rejectedShown = { rows: true, text: false };
let front = "rows";
let waiting = false;
let summarised = null;

const schedule = () => {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(paint);
};
const replay = makeReplay(schedule);
const card = makeCard(part("card"), root);

function paint() {
  waiting = false;
  const view = views[front];
  const nothing = state.rounds.length === 0;
  part("empty").hidden = !nothing;
  part(front + "-box").hidden = nothing;
  part(front === "rows" ? "text-box" : "rows-box").hidden = true;
  part("copy").disabled = nothing;
  const complete = view.catchUp(state.rounds);
  const last = replay.last();
  view.reveal(last);
  if (card.token && Number(card.token.dataset.r) > last) card.close();
  const message = state.message || { run: null };
  const figures = figuresAt(state.rounds, last);
  const speedup = paintPanel(part, { ...state, message }, figures, last);
  paintControls(part, replay, isOver(message));
  const strip = { strip: part("strip"), draft: part("strip-draft"), own: part("strip-own"), veil: part("strip-veil") };
  drawStrip(strip, state.rounds, message.block || 8, last);
  part("shade").disabled = !message.probabilities;
  part("shade-label").classList.toggle("off", !message.probabilities);
  if (message.run && isOver(message) && replay.cursor === null && summarised !== message.run) {
    summarised = message.run;
    part("summary").textContent = summaryText({ ...state, message }, figures, speedup);
  }
  // The view behind is drawn once the run is over, so that changing to it is at once.
  const behind = views[front === "rows" ? "text" : "rows"];
  const ready = !complete || !isOver(message) || behind.catchUp(state.rounds);
  if (!complete || !ready) schedule();
}

function startAfresh() {
  card.close();
  for (const view of Object.values(views)) view.clear();
  replay.reset(state.rounds);
  summarised = null;
  part("summary").textContent = "";
  part("spoken").textContent = "";
}

function ingest() {
  if (takeMessage(state, readMessage(props.value))) startAfresh();
  schedule();
}

function bringForward(name) {
  front = name;
  card.close();
  root.dataset.view = name;
  part("view-rows").checked = name === "rows";
  part("view-text").checked = name === "text";
  part("show-rejected").checked = rejectedShown[name];
  views[name].comeBack();
  views[name].showRejected(rejectedShown[name], state.rounds);
  schedule();
}

const group = "view-" + Math.random().toString(36).slice(2); // one radio group per component on the page
for (const name of ["rows", "text"]) {
  part("view-" + name).name = group;
  part("view-" + name).addEventListener("change", () => bringForward(name));
  watchTokens(part(name + "-box"), card, part("spoken"), {
    rounds: () => state.rounds,
    view: () => views[front],
    last: () => replay.last(),
  });
}
part("show-rejected").addEventListener("change", () => {
  rejectedShown[front] = part("show-rejected").checked;
  card.close();
  views[front].showRejected(rejectedShown[front], state.rounds);
});
part("shade").addEventListener("change", () => root.classList.toggle("shaded", part("shade").checked));
root.addEventListener("keydown", (event) => {
  if (event.key === "Escape") card.close();
});
const shownText = () =>
  state.rounds
    .slice(0, replay.last() + 1)
    .map((round) => round.tokens.map((token) => token[0]).join(""))
    .join("");
watchCopying(part("text-box"), part("text"), part("copy"), shownText);
watchControls(part, replay);
bringForward("rows");
watch("value", ingest);
ingest();
