// What the two views share: rounds are appended once, in order, and hidden or shown by number. A view is told how to
// draw a round (`draw(round) -> element`) and how to add its rejected drafts (`reject(element, round)`).

const ROUNDS_A_FRAME = 120;

function makeView(box, list, draw, reject) {
  const view = { box, list, elements: [], rejected: false, shown: -1, filled: new Set(), atEnd: true, top: 0, returning: false };
  view.settle = () => {};

  view.clear = () => {
    list.replaceChildren();
    view.elements = [];
    view.filled = new Set();
    view.shown = -1;
    view.atEnd = true;
    view.settle(-1);
  };

  // Appends what is missing, a frame's worth. Returns true when all is there.
  view.catchUp = (rounds) => {
    const from = view.elements.length;
    const to = Math.min(rounds.length, from + ROUNDS_A_FRAME);
    if (from === to) return true;
    const fragment = document.createDocumentFragment();
    for (let number = from; number < to; number += 1) {
      const element = draw(rounds[number]);
      if (view.rejected) view.fill(element, rounds[number]);
      element.hidden = true;
      view.elements.push(element);
      fragment.append(element);
    }
    list.append(fragment);
    return to === rounds.length;
  };

  view.fill = (element, round) => {
    if (view.filled.has(round.n)) return;
    view.filled.add(round.n);
    reject(element, round);
  };

  view.showRejected = (on, rounds) => {
    view.rejected = on;
    list.classList.toggle("with-rejected", on);
    if (on) view.elements.forEach((element, number) => view.fill(element, rounds[number]));
  };

  // Shows rounds 0..last and no others; touches only those that change.
  view.reveal = (last) => {
    const end = Math.min(last, view.elements.length - 1);
    for (let number = view.shown + 1; number <= end; number += 1) view.elements[number].hidden = false;
    for (let number = view.shown; number > end; number -= 1) view.elements[number].hidden = true;
    const changed = view.shown !== end;
    view.shown = end;
    view.settle(end);
    if (view.atEnd && changed) box.scrollTop = box.scrollHeight;
    else if (view.returning && !view.atEnd) box.scrollTop = view.top;
    view.returning = false;
  };

  // In front again: what is shown is decided anew, and the reader finds their place.
  view.comeBack = () => {
    view.elements.forEach((element) => {
      element.hidden = true;
    });
    view.shown = -1;
    view.returning = true;
  };

  // What keys stop at in a round, in reading order: its tokens, and the rejected drafts where they are shown.
  view.stops = (number) => {
    const element = view.elements[number];
    return element ? [...element.querySelectorAll(view.rejected ? "[data-r]" : ".tok")] : [];
  };

  // The reader is at the end unless they scroll away from it; only a reader's own scrolling moves that.
  box.addEventListener("scroll", () => {
    if (view.returning) return;
    view.atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 32;
    view.top = box.scrollTop;
  });
  return view;
}
