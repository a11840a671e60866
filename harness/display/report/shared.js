// What the scripts of all pages share. Everything that a model wrote becomes text nodes, never markup.
"use strict";

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null));
  return element;
}

// ---- text that may be hostile ---------------------------------------------------------------------------------------

const MOST = 2000; // runs of hidden characters that are marked in a text
const HIDDEN = /(?![\t\n])[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/u; // as harness/display/value_texts.py
const EACH_HIDDEN = new RegExp(`(${HIDDEN.source})\\1*`, "gu"); // a run of one and the same

function named(character, count) {
  const number = character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
  return count > 1 ? `U+${number} \u00d7 ${count}` : `U+${number}`;
}

/** Text as nodes; control characters, which could hide or turn others around, are shown by number. */
function plain(text) {
  text = String(text);
  if (!HIDDEN.test(text)) return [text];
  const nodes = [];
  let at = 0;
  for (const match of text.matchAll(EACH_HIDDEN)) {
    if (nodes.length > 2 * MOST) break;
    const name = named(match[1], match[0].length / match[1].length);
    nodes.push(text.slice(at, match.index), make("span", { class: "control" }, name));
    at = match.index + match[0].length;
  }
  const rest = text.slice(at).replace(EACH_HIDDEN, (run, one) => `<${named(one, run.length / one.length)}>`);
  return [...nodes, rest];
}

// ---- packed data ----------------------------------------------------------------------------------------------------

async function unpack(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Response(stream).json();
}
