// Sorting, and the browser of samples. Everything that a model wrote becomes text nodes, never markup.
"use strict";
(() => {
  const SHOWN = 200; // rows of the list at once
  const $ = (selector, root = document) => root.querySelector(selector);

  // ---- completions --------------------------------------------------------------------------------------------------

  /** A completion: its answer's last box is marked, and where it begins to differ from another. */
  function written(text, answer, other) {
    const box = Math.max(...["\\boxed{", "\\fbox{"].map((begin) => (answer ? text.lastIndexOf(`${begin}${answer}}`) : -1)));
    const end = text.indexOf("{", box) + String(answer).length + 2;
    const fork = forkOf(text, other);
    const cuts = [0, ...(box < 0 ? [] : [box, end]), ...(fork < 0 ? [] : [fork]), text.length].sort((a, b) => a - b);
    const pieces = cuts.slice(1).map((to, place) => {
      const from = cuts[place];
      const piece = plain(text.slice(from, to));
      return [
        from === fork && to > from ? make("span", { class: "fork", title: "the completions differ from here on" }, "\u25b8") : null,
        box >= 0 && from >= box && to <= end ? make("mark", {}, piece) : piece,
      ];
    });
    return make("div", { class: "text", dir: "auto" }, pieces);
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

  document.querySelectorAll("table.sortable").forEach((table) => {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, place) => {
      const numeric = head.classList.contains("number");
      const key = (row) => row.cells[place].dataset.key;
      $("button", head).addEventListener("click", () => {
        const first = numeric ? "descending" : "ascending";
        const order = head.getAttribute("aria-sort") !== first ? first : numeric ? "ascending" : "descending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", order);
        const sign = order === "descending" ? -1 : 1;
        const rows = [...table.tBodies[0].rows].sort((a, b) => {
          if (!numeric) return sign * key(a).localeCompare(key(b), undefined, { numeric: true });
          const missing = Number.isNaN(Number(key(a))) - Number.isNaN(Number(key(b))); // these come last
          return missing || sign * (Number(key(a)) - Number(key(b)));
        });
        table.tBodies[0].append(...rows);
      });
    });
  });

  // ---- packed data --------------------------------------------------------------------------------------------------

  const blocks = new Map();
  async function look(problem) {
    const [block, number] = problem.at;
    if (!blocks.has(block)) blocks.set(block, unpack(`block-${block}`));
    return (await blocks.get(block))[number];
  }

  // ---- the list of problems -----------------------------------------------------------------------------------------

  const form = $(".samples .filters");
  if (!form) return; // a page without samples
  const list = $(".list tbody");
  const panel = $(".detail");
  const further = $(".further");
  let data = null;
  let rows = []; // problems that pass the filters, each with its outcome
  let shown = 0; // how many of them are in the list
  let chosen = -1; // which of them is looked at
  let asked = 0; // number of the last request, since answers may come late

  const wish = (name) => form.elements[name].value;
  const place = (name) => `${wish("setting")} ${name}`;
  const labelOf = (name) => data.conditions.find((one) => one.name === name).label;
  const pair = () => [...new Set([data.baseline, wish("condition")])];

  /** How a problem fared: up, down, right, wrong, same, or null where one of the two is missing. */
  function outcome(problem) {
    const [before, after] = [problem.right[place(data.baseline)], problem.right[place(wish("condition"))]];
    if (!before || !after) return null;
    if (after[0] !== before[0]) return after[0] > before[0] ? "up" : "down";
    return after[0] === after[1] ? "right" : after[0] === 0 ? "wrong" : "same";
  }

  const WORDS = { up: "wrong to right", down: "right to wrong", right: "right in both", wrong: "wrong in both", same: "equally often right" };
  const SEVERAL = { ...WORDS, up: "more often right", down: "less often right" };
  const SIGNS = { up: "\u25b2", down: "\u25bc", right: "\u25cf", wrong: "\u25cb", same: "\u25d0" };
  const words = () => (data.problems.some((one) => Object.values(one.right).some(([, samples]) => samples > 1)) ? SEVERAL : WORDS);

  function options(name, pairs, value) {
    form.elements[name].replaceChildren(...pairs.map(([key, text]) => make("option", { value: key }, plain(text))));
    if (pairs.some(([key]) => String(key) === String(value))) form.elements[name].value = value;
    form.elements[name].parentElement.hidden = pairs.length < 2;
  }

  function setUp(wanted) {
    options("setting", data.settings.map((one, number) => [number, `${one.model}, ${one.layout}`]), wanted.setting);
    setConditions(wanted.condition);
    const outcomes = [["changed", "changed"], ...Object.entries(words()), ["all", "all"]];
    options("outcome", outcomes, wanted.outcome || (data.conditions.length > 1 ? "changed" : "all"));
    for (const name of ["subject", "level"]) {
      const found = [...new Set(data.problems.map((problem) => problem[name]).filter((value) => value !== null))];
      found.sort((a, b) => String(a).localeCompare(String(b), undefined, { numeric: true }));
      options(name, [["", "all"], ...found.map((value) => [value, value])], wanted[name]);
    }
    form.elements.query.value = wanted.query || "";
  }

  function setConditions(value) {
    const there = data.conditions.filter((one) => data.problems.some((problem) => problem.right[place(one.name)]));
    const others = there.filter((one) => one.name !== data.baseline);
    options("condition", (others.length ? others : there).map((one) => [one.name, one.label]), value);
  }

  /** All that is searched of a problem: what the list shows of it, its text, and what is shown beside each other. */
  async function searched(problem) {
    const detail = await look(problem);
    const sides = pair().map((name) => [detail.prompts[place(name)], detail.samples[place(name)] || []]);
    const found = sides.flatMap(([prompt, samples]) => [
      ...(prompt ? prompt.parts.filter(([role]) => role === "problem" || role === "prompt").map(([, text]) => text) : []),
      ...samples.flatMap((sample) => [sample.completion, sample.answer]),
    ]);
    return [problem.id, problem.text, problem.target, ...found].join("\n").toLowerCase();
  }

  async function filter() {
    asked += 1;
    const mine = asked;
    const query = wish("query").trim().toLowerCase();
    form.elements.outcome.disabled = query !== "";
    const there = data.problems.filter(outcome);
    const found = [];
    for (const problem of there) {
      const kind = outcome(problem);
      const wanted = query || ["all", kind, { up: "changed", down: "changed" }[kind]].includes(wish("outcome"));
      const fits = ["subject", "level"].every((name) => !wish(name) || String(problem[name]) === wish(name));
      if (wanted && fits && (!query || (await searched(problem)).includes(query))) found.push([problem, kind]);
    }
    if (mine !== asked) return; // something else was asked for meanwhile
    rows = found;
    const sum = data.flips[place(wish("condition"))];
    const flips = data.conditions.length > 1 && sum ? ` Flips in the table above: ${data.define_flips}: ${sum.replaceAll(" ", "\u00a0")}.` : "";
    $(".count").textContent = rows.length
      ? `${rows.length} of ${there.length} problems listed${query ? " with any outcome" : ""}.${flips}`
      : query ? "Nothing matches: no problem, answer or completion of these two conditions has this text." : `No problem matches these filters.${flips}`;
    $(".before").textContent = labelOf(data.baseline);
    $(".after").textContent = labelOf(wish("condition"));
    $(".list").hidden = !rows.length;
    shown = 0;
    list.replaceChildren();
    more();
    choose(rows.length ? 0 : -1);
  }

  function more() {
    const next = rows.slice(shown, shown + SHOWN).map(([problem, kind], number) => {
      const of = (name) => problem.right[place(name)];
      const right = ([hits, samples]) => (samples > 1 ? `${hits} of ${samples}` : hits ? "right" : "wrong");
      const change = `${SIGNS[kind]} ${words()[kind]}`;
      return make(
        "tr",
        { id: `row-${shown + number}` },
        make("td", {}, make("button", { type: "button", tabindex: "-1" }, make("bdi", {}, plain(problem.id)))),
        make("td", { class: "extra" }, plain(problem.subject || "")),
        make("td", { class: "extra" }, plain(problem.level || "")),
        make("td", { class: "extra" }, make("bdi", {}, plain(problem.text))),
        [data.baseline, wish("condition")].map((name) => make("td", { class: "right" }, right(of(name)))),
        make("td", { class: kind }, change),
      );
    });
    list.append(...next);
    shown += next.length;
    further.hidden = shown >= rows.length;
  }

  function choose(number, focus = false) {
    for (const [row, on] of [[chosen, false], [number, true]]) {
      while (on && row >= shown && shown < rows.length) more();
      const button = document.querySelector(`#row-${row} button`);
      if (!button) continue;
      button.tabIndex = on ? 0 : -1;
      if (on) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
      if (on && focus) button.focus();
    }
    chosen = number;
    const state = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
    if (chosen >= 0) state.set("problem", rows[chosen][0].id);
    if (document.documentElement.dataset.ready) history.replaceState(null, "", `#?${state}`); // to be passed on
    return show();
  }

  // ---- one problem, two conditions side by side ---------------------------------------------------------------------

  async function show() {
    const mine = chosen;
    if (chosen < 0) {
      panel.replaceChildren();
      return;
    }
    const [problem] = rows[chosen];
    const detail = await look(problem);
    if (mine !== chosen) return;
    const about = [problem.subject, problem.level === null ? null : `level ${problem.level}`].filter(Boolean).join(", ");
    const names = pair();
    panel.replaceChildren(
      make("h3", {}, make("bdi", {}, plain(problem.id))),
      make("p", { class: "small" }, plain(about), about ? ". " : "", "Right answer: ", make("bdi", {}, plain(problem.target)), "."),
      make("p", { class: "roles" }, "Prompt: ", ["instruction", "filler", "problem"].map((role) => make("span", { class: role }, role)), "rest: separators, template"),
      make("div", { class: names.length > 1 ? "sides" : "sides one" }, names.map((name) => side(detail, name))),
    );
  }

  function side(detail, name) {
    const slot = data.conditions.find((one) => one.name === name).slot;
    const [prompt, bare] = [detail.prompts[place(name)], detail.prompts[place(data.baseline)]];
    const known = prompt && prompt.tokens !== null;
    const longer = known && bare && bare.tokens !== null ? prompt.tokens - bare.tokens : 0;
    const others = name === data.baseline ? [] : detail.samples[place(data.baseline)] || [];
    const samples = detail.samples[place(name)] || [];
    return make(
      "section",
      { class: `s${slot}` },
      make("h4", {}, plain(labelOf(name)), known ? ` \u00b7 prompt of ${prompt.tokens} tokens` : ""),
      prompt && prompt.parts.length ? promptText(prompt.parts, longer) : make("p", { class: "small" }, "The prompt was not recorded."),
      samples.map((sample, number) => sampleText(sample, others, samples.length > 1, number === 0)),
    );
  }

  function promptText(parts, longer) {
    const pieces = parts.map(([role, text]) => (role === "filler" ? folded(text, longer) : make("span", { class: role }, plain(text))));
    return make("div", { class: "text", dir: "auto" }, pieces);
  }

  /** A filler: a button until it is unfolded. */
  function folded(text, longer) {
    const begin = text.slice(0, 20).trim();
    const rest = make("span", { class: "filler", hidden: true }, plain(text));
    const size = longer > 0 ? ` (the prompt is ${longer} tokens longer)` : "";
    const button = make("button", { type: "button", class: "fold", "aria-expanded": "false" }, plain(`filler: ${begin} \u2026${size}`));
    button.addEventListener("click", () => {
      rest.hidden = !rest.hidden;
      button.setAttribute("aria-expanded", String(!rest.hidden));
    });
    return [button, rest];
  }

  const GRADES = new Map([[true, "right"], [false, "wrong"]]);

  function sampleText(sample, others, several, open) {
    const other = others.find((one) => one.number === sample.number && one.replicate === sample.replicate);
    const [verdict, ...grades] = sample.grades;
    const chip = make("span", { class: `chip ${verdict}` }, plain(verdict));
    const facts = [
      sample.finish && `ended by ${sample.finish}`,
      sample.tokens !== null && `${sample.tokens} tokens`,
      sample.seed !== null && `seed ${sample.seed}`,
      sample.boxes && `${sample.boxes} boxes after the first`,
      other && other.completion === sample.completion && "identical to the baseline's completion",
      ...sample.remarks,
      ...grades.map((grade, number) => GRADES.has(grade) && `${data.graders[number + 1]}: ${GRADES.get(grade)}`),
    ].filter(Boolean);
    const answer = sample.answer === null ? "none" : make("bdi", {}, make("code", {}, plain(sample.answer)));
    const body = [
      written(sample.completion || "", sample.answer, other && other.completion),
      make("p", {}, several ? "answer: " : [chip, " answer: "], answer),
      make("p", { class: "small" }, plain(facts.join(" \u00b7 "))),
    ];
    if (!several) return body;
    const title = `sample ${sample.number + 1}${sample.replicate ? `, replicate ${sample.replicate + 1}` : ""}: `;
    return make("details", { open }, make("summary", {}, title, chip), body);
  }

  // ---- events -------------------------------------------------------------------------------------------------------

  list.addEventListener("keydown", (event) => {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8, Home: -Infinity, End: Infinity };
    if (!(event.key in steps)) return;
    choose(Math.min(Math.max(chosen + steps[event.key], 0), rows.length - 1), true);
    event.preventDefault();
  });
  list.addEventListener("click", (event) => {
    const row = event.target.closest("tr");
    choose(Number(row.id.slice(4)), true);
    if (event.detail === 0) panel.focus(); // by Enter
  });
  panel.addEventListener("keydown", (event) => {
    if (event.key === "Escape") choose(chosen, true);
  });
  further.addEventListener("click", more);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", (event) => {
    if (event.target.name === "setting") setConditions(wish("condition"));
    filter();
  });

  async function start() {
    data = await unpack("index");
    const wanted = location.hash.startsWith("#?") ? Object.fromEntries(new URLSearchParams(location.hash.slice(2))) : {};
    setUp(wanted);
    form.hidden = false;
    $(".browser").hidden = false;
    await filter();
    const before = rows.findIndex(([problem]) => problem.id === wanted.problem);
    if (before > 0) choose(before);
    document.documentElement.dataset.ready = "yes";
  }
  start();
})();
