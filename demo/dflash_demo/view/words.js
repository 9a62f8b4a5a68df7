// How things are said: numbers, phases, tokens that would be invisible. Pure.

const PHASES = {
  waiting: "Waiting",
  prefill: "Reading the prompt",
  drafting: "Drafting and checking",
  plain: "Plain run, for comparison",
  done: "Done",
  stopped: "Stopped",
  failed: "Failed",
};
const VERDICT_MARKS = { identical: "✓", near_tie: "≈", differs: "≠", sampled: "~", unchecked: "?" };
const NOTICE_MARKS = { info: "i", warning: "!", error: "×" };
const LONGEST_NOTICE = 2000;

function fixed(value, digits) {
  return value === null || value === undefined ? "–" : value.toFixed(digits);
}

function percent(value) {
  return value === null || value === undefined ? "–" : Math.round(value * 100) + " %";
}

function rateText(value) {
  if (value === null || value === undefined) return "–";
  return value >= 100 ? value.toFixed(0) : value.toFixed(1);
}

function timeText(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  return seconds < 1 ? Math.round(seconds * 1000) + " ms" : seconds.toFixed(2) + " s";
}

function counted(number, one, many) {
  return number + " " + (number === 1 ? one : many);
}

// p and q: three places, and never a false 1 or 0.
function chanceText(value) {
  if (value === null || value === undefined) return "not recorded";
  if (value > 0 && value < 0.001) return "< 0.001";
  if (value < 1 && value > 0.999) return "> 0.999";
  return value.toFixed(3);
}

// The token in quotes; one that shows nothing by its name, where it has one.
function spelled(text, name) {
  if (text !== "") return "“" + visible(text) + "”";
  return name ? visible(name) : "(shows nothing: a special token, or part of a character)";
}

// With what cannot be seen spelled out.
function visible(text) {
  let out = "";
  for (const character of text) {
    if (character === "\n") out += "↵";
    else if (character === "\t") out += "⇥";
    else if (/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]|[\u034F\u115F\u3164\uFE00-\uFE0F]/u.test(character)) {
      out += "‹U+" + character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0") + "›";
    } else out += character;
  }
  return out;
}

function clipped(text, most) {
  if (text.length <= most) return text;
  return text.slice(0, most) + " … (" + (text.length - most).toLocaleString("en") + " more characters)";
}

function verdictText(verdict) {
  let text = verdict.text || "";
  if (verdict.kind !== "identical" && verdict.token !== null && verdict.token !== undefined && !/\d/.test(text)) {
    text += " at token " + verdict.token;
  }
  const notes = [];
  if (verdict.kind === "near_tie" && !text.includes("tie")) notes.push("near tie");
  if (verdict.gap !== null && verdict.gap !== undefined && !text.includes("gap")) notes.push("gap " + verdict.gap);
  return notes.length ? text + " (" + notes.join(", ") + ")" : text;
}

function summaryText(state, figures, speedup) {
  const { message } = state;
  const parts = [PHASES[message.phase] + ": " + counted(figures.tokens, "token", "tokens")];
  parts[0] += " in " + counted(figures.rounds, "round", "rounds");
  if (figures.tau !== null) parts.push(fixed(figures.tau, 2) + " tokens per round");
  if (figures.acceptance !== null) parts.push(percent(figures.acceptance) + " of drafts accepted");
  if (speedup !== null) parts.push(fixed(speedup, 2) + " times the speed of plain decoding");
  if (message.verdict) parts.push(verdictText(message.verdict));
  return parts.join(", ") + ".";
}
