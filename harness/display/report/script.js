// Sorting, and the browser of samples. Everything that a model wrote becomes text nodes, never markup.
"use strict";
(() => {
  const SHOWN = 200; // rows of the list at once
  const $ = (selector, root = document) => root.querySelector(selector);

  // ---- completions --------------------------------------------------------------------------------------------------

  /** A completion: its answer's last box is marked, and where it begins to differ from another. */
  function written(text, answer, otherText) {
    const box = Math.max(...["\\boxed{", "\\fbox{"].map((begin) => (answer ? text.lastIndexOf(`${begin}${answer}}`) : -1)));
    const end = text.indexOf("{", box) + String(answer).length + 2;
    const fork = forkOf(text, otherText);
    const cuts = [0, ...(box < 0 ? [] : [box, end]), ...(fork < 0 ? [] : [fork]), text.length].sort((a, b) => a - b);
    const pieces = cuts.slice(1).map((to, index) => {
      const from = cuts[index];
      const piece = plain(text.slice(from, to));
      return [
        from === fork && to > from ? make("span", { class: "fork", title: "the completions differ from here on" }, "\u25b8") : null,
        box >= 0 && from >= box && to <= end ? make("mark", {}, piece) : piece,
      ];
    });
    return make("div", { class: "text", dir: "auto" }, pieces);
  }

  /** The first position, at the start of a word, where two texts differ; -1 if they are equal or there is only one. */
  function forkOf(text, otherText) {
    if (text === otherText || otherText === undefined) return -1;
    let at = 0;
    while (at < text.length && at < otherText.length && text[at] === otherText[at]) at += 1;
    while (at > 0 && /[\w.]/.test(text[at - 1])) at -= 1;
    return at;
  }

  // ---- tables -------------------------------------------------------------------------------------------------------

  document.querySelectorAll("table.sortable").forEach((table) => {
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, index) => {
      const numeric = heading.classList.contains("number");
      const key = (row) => row.cells[index].dataset.key;
      $("button", heading).addEventListener("click", () => {
        const first = numeric ? "descending" : "ascending";
        const order = heading.getAttribute("aria-sort") !== first ? first : numeric ? "ascending" : "descending";
        headings.forEach((sibling) => sibling.removeAttribute("aria-sort"));
        heading.setAttribute("aria-sort", order);
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
  async function readDetail(problem) {
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
  let listedCount = 0; // the number of them in the list
  let selected = -1; // the index of the one in the panel
  let filterCount = 0; // number of the last filtering: an earlier one may end later

  const fieldValue = (name) => form.elements[name].value;
  const groupOf = (name) => `${fieldValue("setting")} ${name}`;
  const labelOf = (name) => data.conditions.find((condition) => condition.name === name).label;
  const pair = () => [...new Set([data.baseline, fieldValue("condition")])];

  /** How a problem changed: up, down, right, wrong, same, or null where one of the two is missing. */
  function outcome(problem) {
    const [before, after] = [problem.right[groupOf(data.baseline)], problem.right[groupOf(fieldValue("condition"))]];
    if (!before || !after) return null;
    if (after[0] !== before[0]) return after[0] > before[0] ? "up" : "down";
    return after[0] === after[1] ? "right" : after[0] === 0 ? "wrong" : "same";
  }

  const WORDS = { up: "wrong to right", down: "right to wrong", right: "right in both", wrong: "wrong in both", same: "equally often right" };
  const SEVERAL = { ...WORDS, up: "more often right", down: "less often right" };
  const SIGNS = { up: "\u25b2", down: "\u25bc", right: "\u25cf", wrong: "\u25cb", same: "\u25d0" };
  const words = () => (data.problems.some((problem) => Object.values(problem.right).some(([, samples]) => samples > 1)) ? SEVERAL : WORDS);

  /** Fill a menu with pairs of value and text, and hide a menu without a choice. */
  function options(name, pairs, value) {
    form.elements[name].replaceChildren(...pairs.map(([key, text]) => make("option", { value: key }, plain(text))));
    if (pairs.some(([key]) => String(key) === String(value))) form.elements[name].value = value;
    form.elements[name].parentElement.hidden = pairs.length < 2;
  }

  function setUp(fields) {
    options("setting", data.settings.map((setting, number) => [number, `${setting.model}, ${setting.layout}`]), fields.setting);
    setConditions(fields.condition);
    const outcomes = [["changed", "changed"], ...Object.entries(words()), ["all", "all"]];
    options("outcome", outcomes, fields.outcome || (data.conditions.length > 1 ? "changed" : "all"));
    for (const name of ["subject", "level"]) {
      const values = [...new Set(data.problems.map((problem) => problem[name]).filter((value) => value !== null))];
      values.sort((a, b) => String(a).localeCompare(String(b), undefined, { numeric: true }));
      options(name, [["", "all"], ...values.map((value) => [value, value])], fields[name]);
    }
    form.elements.query.value = fields.query || "";
  }

  function setConditions(value) {
    const answered = data.conditions.filter((condition) => data.problems.some((problem) => problem.right[groupOf(condition.name)]));
    const compared = answered.filter((condition) => condition.name !== data.baseline);
    options("condition", (compared.length ? compared : answered).map((condition) => [condition.name, condition.label]), value);
  }

  /** The text of a problem that is searched: its row in the list, its question, and the samples of both conditions. */
  async function searchableText(problem) {
    const detail = await readDetail(problem);
    const sides = pair().map((name) => [detail.prompts[groupOf(name)], detail.samples[groupOf(name)] || []]);
    const texts = sides.flatMap(([prompt, samples]) => [
      ...(prompt ? prompt.parts.filter(([role]) => role === "problem" || role === "prompt").map(([, text]) => text) : []),
      ...samples.flatMap((sample) => [sample.completion, sample.answer]),
    ]);
    return [problem.id, problem.text, problem.target, ...texts].join("\n").toLowerCase();
  }

  /** List the problems that pass the filters. A search ignores the outcome. */
  async function filter() {
    filterCount += 1;
    const number = filterCount;
    const query = fieldValue("query").trim().toLowerCase();
    form.elements.outcome.disabled = query !== "";
    const answered = data.problems.filter(outcome);
    const matches = [];
    for (const problem of answered) {
      const kind = outcome(problem);
      const hasOutcome = query || ["all", kind, { up: "changed", down: "changed" }[kind]].includes(fieldValue("outcome"));
      const hasFields = ["subject", "level"].every((name) => !fieldValue(name) || String(problem[name]) === fieldValue(name));
      if (hasOutcome && hasFields && (!query || (await searchableText(problem)).includes(query))) matches.push([problem, kind]);
    }
    if (number !== filterCount) return; // the filters have changed meanwhile
    rows = matches;
    const sum = data.flips[groupOf(fieldValue("condition"))];
    const flips = data.conditions.length > 1 && sum ? ` Flips in the table above: ${data.define_flips}: ${sum.replaceAll(" ", "\u00a0")}.` : "";
    $(".count").textContent = rows.length
      ? `${rows.length} of ${answered.length} problems listed${query ? " with any outcome" : ""}.${flips}`
      : query ? "Nothing matches: no problem, answer or completion of these two conditions has this text." : `No problem matches these filters.${flips}`;
    $(".before").textContent = labelOf(data.baseline);
    $(".after").textContent = labelOf(fieldValue("condition"));
    $(".list").hidden = !rows.length;
    listedCount = 0;
    list.replaceChildren();
    more();
    choose(rows.length ? 0 : -1);
  }

  /** Add the next rows to the list. */
  function more() {
    const next = rows.slice(listedCount, listedCount + SHOWN).map(([problem, kind], number) => {
      const of = (name) => problem.right[groupOf(name)];
      const right = ([hits, samples]) => (samples > 1 ? `${hits} of ${samples}` : hits ? "right" : "wrong");
      const change = `${SIGNS[kind]} ${words()[kind]}`;
      return make(
        "tr",
        { id: `row-${listedCount + number}` },
        make("td", {}, make("button", { type: "button", tabindex: "-1" }, make("bdi", {}, plain(problem.id)))),
        make("td", { class: "extra" }, plain(problem.subject || "")),
        make("td", { class: "extra" }, plain(problem.level || "")),
        make("td", { class: "extra" }, make("bdi", {}, plain(problem.text))),
        [data.baseline, fieldValue("condition")].map((name) => make("td", { class: "right" }, right(of(name)))),
        make("td", { class: kind }, change),
      );
    });
    list.append(...next);
    listedCount += next.length;
    further.hidden = listedCount >= rows.length;
  }

  /** Select the row of this number, put it into the page's address, and show its problem; -1 selects none. */
  function choose(number, focus = false) {
    for (const [row, on] of [[selected, false], [number, true]]) {
      while (on && row >= listedCount && listedCount < rows.length) more();
      const button = document.querySelector(`#row-${row} button`);
      if (!button) continue;
      button.tabIndex = on ? 0 : -1;
      if (on) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
      if (on && focus) button.focus();
    }
    selected = number;
    const state = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
    if (selected >= 0) state.set("problem", rows[selected][0].id);
    if (document.documentElement.dataset.ready) history.replaceState(null, "", `#?${state}`); // to be passed on
    return show();
  }

  // ---- one problem, two conditions side by side ---------------------------------------------------------------------

  async function show() {
    const number = selected;
    if (selected < 0) {
      panel.replaceChildren();
      return;
    }
    const [problem] = rows[selected];
    const detail = await readDetail(problem);
    if (number !== selected) return;
    const about = [problem.subject, problem.level === null ? null : `level ${problem.level}`].filter(Boolean).join(", ");
    const names = pair();
    panel.replaceChildren(
      make("h3", {}, make("bdi", {}, plain(problem.id))),
      make("p", { class: "small" }, plain(about), about ? ". " : "", "Gold answer: ", make("bdi", {}, plain(problem.target)), "."),
      make("p", { class: "roles" }, "Prompt: ", ["instruction", "filler", "problem"].map((role) => make("span", { class: role }, role)), "rest: separators, template"),
      make("div", { class: names.length > 1 ? "sides" : "sides one" }, names.map((name) => side(detail, name))),
    );
  }

  function side(detail, name) {
    const slot = data.conditions.find((condition) => condition.name === name).slot;
    const [prompt, baselinePrompt] = [detail.prompts[groupOf(name)], detail.prompts[groupOf(data.baseline)]];
    const hasTokens = prompt && prompt.tokens !== null;
    const longer = hasTokens && baselinePrompt && baselinePrompt.tokens !== null ? prompt.tokens - baselinePrompt.tokens : 0;
    const baselineSamples = name === data.baseline ? [] : detail.samples[groupOf(data.baseline)] || [];
    const samples = detail.samples[groupOf(name)] || [];
    return make(
      "section",
      { class: `s${slot}` },
      make("h4", {}, plain(labelOf(name)), hasTokens ? ` \u00b7 prompt of ${prompt.tokens} tokens` : ""),
      prompt && prompt.parts.length ? promptText(prompt.parts, longer) : make("p", { class: "small" }, "The prompt was not recorded."),
      samples.map((sample, number) => sampleText(sample, baselineSamples, samples.length > 1, number === 0)),
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

  function sampleText(sample, baselineSamples, several, open) {
    const baselineSample = baselineSamples.find((candidate) => candidate.sample_index === sample.sample_index && candidate.replicate === sample.replicate);
    const chip = make("span", { class: `chip ${sample.verdict}` }, plain(sample.verdict));
    const facts = [
      sample.finish_reason && `ended by ${sample.finish_reason}`,
      sample.completion_tokens !== null && `${sample.completion_tokens} tokens`,
      sample.seed !== null && `seed ${sample.seed}`,
      baselineSample && baselineSample.completion === sample.completion && "identical to the baseline's completion",
      sample.reason,
      sample.audit_reason,
      ...data.graders.map((grader) => GRADES.has(sample[grader]) && `${grader}: ${GRADES.get(sample[grader])}`),
    ].filter(Boolean);
    const answer = sample.answer === null ? "none" : make("bdi", {}, make("code", {}, plain(sample.answer)));
    const body = [
      written(sample.completion || "", sample.answer, baselineSample && baselineSample.completion),
      make("p", {}, several ? "answer: " : [chip, " answer: "], answer),
      make("p", { class: "small" }, plain(facts.join(" \u00b7 "))),
    ];
    if (!several) return body;
    const title = `sample ${sample.sample_index + 1}${sample.replicate ? `, replicate ${sample.replicate + 1}` : ""}: `;
    return make("details", { open }, make("summary", {}, title, chip), body);
  }

  // ---- events -------------------------------------------------------------------------------------------------------

  list.addEventListener("keydown", (event) => {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8, Home: -Infinity, End: Infinity };
    if (!(event.key in steps)) return;
    choose(Math.min(Math.max(selected + steps[event.key], 0), rows.length - 1), true);
    event.preventDefault();
  });
  list.addEventListener("click", (event) => {
    const row = event.target.closest("tr");
    choose(Number(row.id.slice(4)), true);
    if (event.detail === 0) panel.focus(); // by Enter
  });
  panel.addEventListener("keydown", (event) => {
    if (event.key === "Escape") choose(selected, true);
  });
  further.addEventListener("click", more);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", (event) => {
    if (event.target.name === "setting") setConditions(fieldValue("condition"));
    filter();
  });

  async function start() {
    data = await unpack("index");
    const fields = location.hash.startsWith("#?") ? Object.fromEntries(new URLSearchParams(location.hash.slice(2))) : {};
    setUp(fields);
    form.hidden = false;
    $(".browser").hidden = false;
    await filter();
    const index = rows.findIndex(([problem]) => problem.id === fields.problem);
    if (index > 0) choose(index);
    document.documentElement.dataset.ready = "yes";
  }
  start();
})();
