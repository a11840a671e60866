// Sorting, and the browser of samples. Everything that a model wrote becomes text nodes, never markup.
"use strict";
(() => {
  const SHOWN = 200; // rows of the list at once
  const LONGEST = 200000; // characters of a text in which formulas are looked for
  const MOST = 2000; // formulas marked in a text
  const $ = (selector, root = document) => root.querySelector(selector);
  const SVG = "http://www.w3.org/2000/svg";

  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
    }
    for (const child of children.flat(Infinity)) {
      if (child !== null && child !== undefined) element.append(child);
    }
    return element;
  }
  const make = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
  const draw = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

  // ---- text that may be hostile -------------------------------------------------------------------------------------

  const HIDDEN = /(?![\t\n])[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/u; // as harness/display/visible.py
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

  /** Where formulas are: [start, end, whether displayed], in one pass however the text is made. */
  function formulas(text) {
    const closing = { $$: "$$", $: "$", "\\(": "\\)", "\\[": "\\]" };
    const opener = /\\\\|\\\$|\$\$|\$|\\\(|\\\[/g;
    const next = {}; // first place of each closing mark after where it was last looked for
    const found = [];
    for (let match = opener.exec(text); match && found.length < MOST; match = opener.exec(text)) {
      const mark = closing[match[0]];
      if (!mark) continue;
      const from = opener.lastIndex;
      if (next[mark] === undefined || next[mark] < from) {
        const place = text.indexOf(mark, from);
        next[mark] = place < 0 ? Infinity : place;
      }
      const display = match[0] === "$$" || match[0] === "\\[";
      const end = next[mark];
      if (end === from || end - from > (display ? 5000 : 1000)) continue;
      if (!display && text.slice(from, end).includes("\n\n")) continue;
      found.push([match.index, end + mark.length, display]);
      opener.lastIndex = end + mark.length;
    }
    return found;
  }

  /** The last \boxed{...} that is not empty: [start, end]. */
  function lastBox(text) {
    const empty = /\\boxed\{(?:[\s~{}]|\\[ ,;:!>]|\\q?quad)*\}/g;
    const start = text.replace(empty, (box) => " ".repeat(box.length)).lastIndexOf("\\boxed{");
    if (start < 0) return null;
    for (let at = start + 7, depth = 1; at < text.length; at += 1) {
      if (text[at] === "{") depth += 1;
      else if (text[at] === "}") {
        depth -= 1;
        if (!depth) return [start, at + 1];
      }
    }
    return null;
  }

  /** A text with formulas and the last box marked, and where it begins to differ from another. */
  function written(text, fork = -1, boxed = true) {
    const small = text.length <= LONGEST;
    const box = small && boxed ? lastBox(text) : null;
    const holder = make("div", { class: "text", dir: "auto" });
    const put = (parent, from, to) => {
      const inside = [...(box || []), fork].filter((place) => place > from && place < to).sort((a, b) => a - b);
      const cuts = [from, ...inside, to];
      for (let i = 0; i + 1 < cuts.length; i += 1) {
        if (cuts[i] === fork) parent.append(make("span", { class: "fork", title: "here it begins to differ" }, "\u25b8"));
        const piece = plain(text.slice(cuts[i], cuts[i + 1]));
        const marked = box && cuts[i] >= box[0] && cuts[i + 1] <= box[1];
        if (marked) parent.append(make("mark", {}, piece));
        else parent.append(...piece);
      }
    };
    let at = 0;
    for (const [start, end, display] of small ? formulas(text) : []) {
      put(holder, at, start);
      const formula = make("span", { class: display ? "math display" : "math" });
      put(formula, start, end);
      holder.append(formula);
      at = end;
    }
    put(holder, at, text.length);
    return holder;
  }

  /** The first place, at the start of a word, where two texts differ; -1 if they are equal. */
  function forkOf(one, other) {
    if (one === other || other === undefined) return -1;
    let at = 0;
    while (at < one.length && at < other.length && one[at] === other[at]) at += 1;
    while (at > 0 && /[\w.]/.test(one[at - 1])) at -= 1;
    return at;
  }

  // ---- tables -------------------------------------------------------------------------------------------------------

  function sortable(table) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, place) => {
      const numeric = head.classList.contains("number");
      $("button", head).addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === (numeric ? "descending" : "ascending") ? numeric ? false : true : numeric;
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const key = (row) => row.cells[place].dataset.key;
        const compare = (a, b) => {
          if (!numeric) return key(a).localeCompare(key(b), undefined, { numeric: true });
          const [x, y] = [Number(key(a)), Number(key(b))];
          if (Number.isNaN(x) || Number.isNaN(y)) return (Number.isNaN(x) - Number.isNaN(y)) * (down ? -1 : 1); // missing last
          return x - y;
        };
        const body = table.tBodies[0];
        body.append(...[...body.rows].sort((a, b) => (down ? -1 : 1) * compare(a, b)));
      });
    });
  }
  document.querySelectorAll("table.sortable").forEach(sortable);

  // ---- packed data --------------------------------------------------------------------------------------------------

  async function unpack(id) {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    return new Response(stream).json();
  }
  const blocks = new Map();
  async function look(place) {
    if (!place) return null;
    const [block, number] = place;
    if (!blocks.has(block)) blocks.set(block, unpack(`block-${block}`));
    return (await blocks.get(block))[number];
  }

  // ---- the browser of samples ---------------------------------------------------------------------------------------

  const form = $(".filters");
  const list = $(".list");
  const panel = $(".detail");
  const further = $(".further");
  let data = null;
  let rows = []; // problems that pass the filters
  let shown = 0; // how many of them are in the list
  let chosen = -1; // which of them is looked at
  let asked = 0; // number of the last request for details

  const setting = () => Number(form.elements.setting.value);
  const condition = () => form.elements.condition.value;
  const counts = (problem, name) => problem.right[`${setting()} ${name}`];
  const labelOf = (name) => data.conditions.find((one) => one.name === name).label;

  /** How a problem fared: up, down, right, wrong, same, or null where one of the two is missing. */
  function outcome(problem) {
    const [before, after] = [counts(problem, data.baseline), counts(problem, condition())];
    if (!before || !after) return null;
    if (after[0] !== before[0]) return after[0] > before[0] ? "up" : "down";
    return after[0] === after[1] ? "right" : after[0] === 0 ? "wrong" : "same";
  }

  const SIGNS = { up: "\u25b2", down: "\u25bc", right: "\u25cf", wrong: "\u25cb", same: "\u25d0" };

  const WORDS = { up: "wrong to right", down: "right to wrong", right: "right in both", wrong: "wrong in both" };

  function tell(problem, kind) {
    const [before, after] = [counts(problem, data.baseline), counts(problem, condition())];
    if (before[1] > 1) return `${before[0]} to ${after[0]} of ${after[1]} right`;
    return WORDS[kind];
  }

  /** What outcomes are called: of several samples, more or fewer are right than under the baseline. */
  function outcomeWords() {
    const several = data.problems.some((problem) => Object.values(problem.right).some(([, samples]) => samples > 1));
    return several ? { ...WORDS, up: "more samples right", down: "fewer samples right" } : WORDS;
  }

  function options(select, pairs, value) {
    select.replaceChildren(...pairs.map(([key, text]) => make("option", { value: key }, plain(text))));
    if (value !== undefined && pairs.some(([key]) => String(key) === String(value))) select.value = value;
  }

  function values(name) {
    const found = [...new Set(data.problems.map((problem) => problem[name]).filter((value) => value !== null))];
    return found.sort((a, b) => String(a).localeCompare(String(b), undefined, { numeric: true }));
  }

  function setUp(wanted) {
    options(form.elements.setting, data.settings.map((one, number) => [number, `${one.model}, ${one.layout}`]), wanted.setting);
    setConditions(wanted.condition);
    options(
      form.elements.outcome,
      [["changed", "changed"], ...Object.entries(outcomeWords()), ["all", "all"]],
      wanted.outcome || (data.conditions.length > 1 ? "changed" : "all"),
    );
    for (const name of ["subject", "level"]) {
      options(form.elements[name], [["", "all"], ...values(name).map((value) => [value, String(value)])], wanted[name]);
    }
    form.elements.query.value = wanted.query || "";
    if (form.elements.probed) form.elements.probed.checked = wanted.probed === "1";
  }

  function setConditions(value) {
    const there = data.conditions.filter((one) => data.problems.some((problem) => counts(problem, one.name)));
    const others = there.filter((one) => one.name !== data.baseline);
    options(form.elements.condition, (others.length ? others : there).map((one) => [one.name, one.label]), value);
  }

  function filter() {
    const wanted = Object.fromEntries(["outcome", "subject", "level"].map((name) => [name, form.elements[name].value]));
    const query = form.elements.query.value.trim().toLowerCase();
    const probed = form.elements.probed && form.elements.probed.checked;
    rows = [];
    let all = 0;
    for (const problem of data.problems) {
      const kind = outcome(problem);
      if (!kind) continue;
      all += 1;
      const fits = wanted.outcome === "all" || wanted.outcome === kind || (wanted.outcome === "changed" && (kind === "up" || kind === "down"));
      if (!fits || (wanted.subject && problem.subject !== wanted.subject) || (wanted.level && String(problem.level) !== wanted.level)) continue;
      if (probed && !problem.curves) continue;
      if (query && !`${problem.id}\n${problem.text}`.toLowerCase().includes(query)) continue;
      rows.push([problem, kind]);
    }
    $(".count").textContent = `${rows.length} of ${all} problems listed`;
    shown = 0;
    list.replaceChildren();
    more();
    choose(rows.length ? 0 : -1);
  }

  function more() {
    const next = rows.slice(shown, shown + SHOWN).map(([problem, kind], number) => {
      const about = [problem.subject, problem.level === null ? null : `level ${problem.level}`].filter(Boolean).join(", ");
      return make(
        "li",
        { role: "option", id: `row-${shown + number}`, "aria-selected": "false" },
        make("span", { class: `id ${kind}` }, `${SIGNS[kind]} `, make("bdi", {}, plain(problem.id))),
        make("span", { class: "begin" }, plain([tell(problem, kind), about].filter(Boolean).join(" \u00b7 "))),
        make("bdi", { class: "begin" }, plain(problem.text)),
      );
    });
    list.append(...next);
    shown += next.length;
    further.hidden = shown >= rows.length;
  }

  function choose(number, scroll = false) {
    const old = chosen >= 0 && document.getElementById(`row-${chosen}`);
    if (old) old.setAttribute("aria-selected", "false");
    chosen = number;
    while (chosen >= shown && shown < rows.length) more();
    const now = chosen >= 0 && document.getElementById(`row-${chosen}`);
    if (now) {
      now.setAttribute("aria-selected", "true");
      list.setAttribute("aria-activedescendant", now.id);
      if (scroll) now.scrollIntoView({ block: "nearest" });
    } else {
      list.removeAttribute("aria-activedescendant");
    }
    keep();
    show();
  }

  /** The choice in the address, so that it can be passed on. */
  function keep() {
    const state = new URLSearchParams();
    for (const element of form.elements) {
      if (element.name && element.type !== "checkbox" && element.value) state.set(element.name, element.value);
    }
    if (form.elements.probed && form.elements.probed.checked) state.set("probed", "1");
    if (chosen >= 0) state.set("problem", rows[chosen][0].id);
    if (ready) history.replaceState(null, "", `#?${state}`);
  }

  function wantedState() {
    return location.hash.startsWith("#?") ? Object.fromEntries(new URLSearchParams(location.hash.slice(2))) : {};
  }

  async function show() {
    asked += 1;
    const mine = asked;
    if (chosen < 0) {
      panel.replaceChildren();
      return;
    }
    const [problem] = rows[chosen];
    const [detail, curves] = [await look(problem.at), await look(problem.curves)];
    if (mine !== asked) return; // another was asked for meanwhile
    const about = [problem.subject, problem.level === null ? null : `level ${problem.level}`].filter(Boolean).join(", ");
    const parts = [
      make("h3", {}, make("bdi", {}, plain(problem.id))),
      make("p", { class: "small" }, plain(about), about ? ". " : "", "Right answer: ", make("bdi", {}, plain(problem.target)), "."),
    ];
    if (!detail) {
      parts.push(make("p", { class: "note" }, "Its prompts and completions had no room on this page; they are in the run folder."));
    } else {
      parts.push(
        make("p", { class: "roles" }, "Prompt: ", ["instruction", "filler", "problem"].map((role) => make("span", { class: role }, role)),
          "rest: separators, template"),
      );
      const names = [...new Set([data.baseline, condition()])];
      parts.push(make("div", { class: names.length > 1 ? "sides" : "sides one" }, names.map((name) => side(detail, name, names[0]))));
    }
    if (curves) parts.push(attention(curves));
    panel.replaceChildren(...parts.filter(Boolean));
  }

  function side(detail, name, first) {
    const place = `${setting()} ${name}`;
    const slot = data.conditions.find((one) => one.name === name).slot;
    const prompt = detail.prompts[place];
    const samples = detail.samples[place] || [];
    const others = detail.samples[`${setting()} ${first}`] || [];
    return make(
      "section",
      { class: `s${slot}` },
      make("h4", {}, plain(labelOf(name)), prompt && prompt.tokens !== null ? ` \u00b7 prompt of ${prompt.tokens} tokens` : ""),
      make("p", { class: "what" }, "Prompt"),
      prompt && prompt.parts.length ? promptText(prompt.parts) : make("p", { class: "small" }, "Not recorded."),
      samples.map((sample, number) => sampleText(sample, others, name === first, samples.length > 1, number === 0)),
    );
  }

  function promptText(parts) {
    return make(
      "div",
      { class: "text", dir: "auto" },
      parts.map(([role, text]) => (role === "filler" ? folded(text) : make("span", { class: role }, plain(text)))),
    );
  }

  /** A filler: a button until it is unfolded. */
  function folded(text) {
    const words = text.split(/\s+/).filter(Boolean);
    const begin = words.slice(0, 3).join(" ");
    const rest = make("span", { class: "filler", hidden: true }, plain(text));
    const button = make("button", { type: "button", class: "fold", "aria-expanded": "false" }, plain(`filler: ${begin.slice(0, 40)} \u2026 (${words.length} words)`));
    button.addEventListener("click", () => {
      rest.hidden = !rest.hidden;
      button.setAttribute("aria-expanded", String(!rest.hidden));
    });
    return [button, rest];
  }

  const GRADES = new Map([[true, "right"], [false, "wrong"], [null, "\u2013"]]);

  function sampleText(sample, others, isFirst, several, open) {
    const other = isFirst ? undefined : others.find((one) => one.number === sample.number && one.replicate === sample.replicate);
    const [verdict, ...grades] = sample.grades;
    const chip = make("span", { class: `chip ${verdict}` }, plain(verdict));
    const facts = [
      sample.finish && `ended by ${sample.finish}`,
      sample.tokens !== null && `${sample.tokens} tokens`,
      sample.seed !== null && `seed ${sample.seed}`,
      sample.boxes && `${sample.boxes} boxes after the first`,
      ...sample.remarks,
    ].filter(Boolean);
    const same = other !== undefined && other.completion === sample.completion;
    const body = [
      make("p", { class: "what" }, "Completion"),
      written(sample.completion || "", other === undefined ? -1 : forkOf(sample.completion, other.completion)),
      make("p", { class: "verdict-line" }, chip, " answer: ", sample.answer === null ? "none" : make("bdi", {}, make("code", {}, plain(sample.answer)))),
      same ? make("p", { class: "small" }, "Word for word as without it.") : null,
      make("p", { class: "small" }, plain(facts.join(" \u00b7 "))),
      make("details", {},
        make("summary", { class: "small" }, "Other graders"),
        make("table", { class: "grades" }, make("tbody", {}, grades.map((grade, number) =>
          make("tr", {}, make("th", { scope: "row" }, plain(data.graders[number + 1])), make("td", {}, GRADES.get(grade) || "\u2013")))))),
    ];
    if (!several) return body;
    const title = `sample ${sample.number + 1}${sample.replicate ? `, replicate ${sample.replicate + 1}` : ""}: `;
    return make("details", { class: "sample", open }, make("summary", {}, title, chip.cloneNode(true)), body);
  }

  // ---- attention curves of one problem ------------------------------------------------------------------------------

  let headChosen = "0 0"; // file and head, kept from problem to problem
  let full = false;

  function attention(curves) {
    const here = curves.filter((one) => [data.baseline, condition()].some((name) => one.place === `${setting()} ${name}`));
    if (!here.length) return null;
    const heads = [];
    for (const file of new Set(here.map((one) => one.file))) {
      data.heads[file].heads.forEach((head, number) => heads.push([`${file} ${number}`, data.heads.length > 1 ? `${head} (${data.heads[file].name})` : head]));
    }
    const head = make("select", {});
    options(head, heads, headChosen);
    const view = make("select", {});
    options(view, [["aligned", "filler left out"], ["full", "prompt as it was"]], full ? "full" : "aligned");
    const picture = make("div", {});
    const redraw = () => {
      headChosen = head.value;
      full = view.value === "full";
      const [file, number] = head.value.split(" ").map(Number);
      picture.replaceChildren(chart(here.filter((one) => one.file === file), number), ...data.heads[file].notes.map((note) => make("p", { class: "small" }, plain(note))));
    };
    head.addEventListener("change", redraw);
    view.addEventListener("change", redraw);
    redraw();
    return make("section", { class: "curves" },
      make("h4", {}, "Average attention weight of each token"),
      make("p", {}, make("label", {}, "Head ", head), make("label", {}, "View ", view)),
      picture);
  }

  function chart(lines, head) {
    const width = Math.min(Math.max(panel.clientWidth, 320), 900);
    const [height, left, bottom] = [240, 60, 200];
    const drawn = lines.map((one) => {
      const name = one.place.slice(one.place.indexOf(" ") + 1);
      const points = one.values[head]
        .map((value, place) => [full ? place : one.pos[place], value, one.tokens[place], one.roles[place]])
        .filter(([x, value]) => x >= 0 && value !== null)
        .sort((a, b) => a[0] - b[0]);
      return { name, points, slot: data.conditions.find((known) => known.name === name).slot };
    });
    const all = drawn.flatMap((one) => one.points);
    const last = all.reduce((most, [x]) => Math.max(most, x), 1);
    const peak = all.reduce((most, [, value]) => Math.max(most, value), 1);
    const rough = 10 ** Math.floor(Math.log10(peak / 4));
    const gap = [1, 2, 5, 10].map((factor) => factor * rough).find((size) => size >= peak / 4);
    const top = Math.ceil(peak / gap) * gap;
    const across = (x) => left + ((width - left - 10) * x) / last;
    const up = (value) => bottom - ((bottom - 26) * value) / top;
    const marks = [];
    if (full) {
      for (const one of drawn) {
        const inside = one.points.filter(([, , , role]) => role === "filler").map(([x]) => x);
        if (inside.length) {
          const [low, high] = [Math.min(...inside) - 0.5, Math.max(...inside) + 0.5];
          marks.push(draw("rect", { class: "fillerregion", x: across(low), y: 26, width: across(high) - across(low), height: bottom - 26 }));
        }
      }
    }
    for (let value = 0; value <= top; value += gap) {
      marks.push(draw("path", { class: "grid", d: `M${left} ${up(value)}H${width - 10}` }));
      marks.push(draw("text", { x: left - 6, y: up(value), dy: 4, "text-anchor": "end" }, String(Number((value / 1e6).toPrecision(3)))));
    }
    const step = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((size) => last / size <= width / 60) || 5000;
    for (let x = 0; x <= last; x += step) marks.push(draw("text", { x: across(x), y: bottom + 17, "text-anchor": "middle" }, String(x)));
    marks.push(draw("text", { x: (left + width) / 2, y: height - 4, "text-anchor": "middle" }, full ? "token position" : "token position, filler left out"));
    drawn.forEach((one, number) => {
      const path = one.points.map(([x, value]) => `${across(x).toFixed(1)} ${up(value).toFixed(1)}`).join("L");
      if (!path) return;
      marks.push(draw("path", { class: `line s${one.slot}`, "stroke-width": 2.6 - 0.9 * number, d: `M${path}` }));
      for (const [x, value, token] of one.points) {
        marks.push(draw("circle", { class: `dot s${one.slot}`, cx: across(x), cy: up(value), r: 2.6 },
          draw("title", {}, plain(`${labelOf(one.name)}, position ${x}: `).concat(plain(token)).map((node) => node.textContent || node).join("") + ` ${(value / 1e6).toPrecision(3)}`)));
      }
      const x = left + Math.min(190, (width - left) / 2) * number;
      marks.push(draw("path", { class: `line s${one.slot}`, "stroke-width": 2, d: `M${x} 12h26` }), draw("text", { x: x + 32, y: 16 }, labelOf(one.name)));
    });
    return draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Average attention weights" }, marks);
  }

  // ---- events -------------------------------------------------------------------------------------------------------

  let ready = false;

  function onKey(event) {
    const page = Math.max(1, Math.floor(list.clientHeight / 60));
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key === "Enter" && chosen >= 0) {
      panel.focus();
      event.preventDefault();
    } else if (event.key in steps && rows.length) {
      choose(Math.min(Math.max(chosen + steps[event.key], 0), rows.length - 1), true);
      event.preventDefault();
    }
  }

  async function start() {
    data = await unpack("index");
    const wanted = wantedState();
    setUp(wanted);
    form.hidden = false;
    $(".browser").hidden = false;
    filter();
    const place = rows.findIndex(([problem]) => problem.id === wanted.problem);
    if (place > 0) choose(place, true);
    ready = true;
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", (event) => {
      if (event.target.name === "setting") setConditions(condition());
      filter();
    });
    list.addEventListener("keydown", onKey);
    list.addEventListener("click", (event) => {
      const row = event.target.closest("li");
      if (row) choose(Number(row.id.slice(4)));
    });
    panel.addEventListener("keydown", (event) => {
      if (event.key === "Escape") list.focus();
    });
    further.addEventListener("click", more);
    document.documentElement.dataset.ready = "yes";
  }
  start();
})();
