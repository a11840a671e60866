// The view of attention: a grid of heads, and a prompt's tokens under two conditions side by side.
(() => {
  const root = document.querySelector(".attention");
  if (!root) return;
  const $ = (selector) => root.querySelector(selector);
  const NAMES = { first: "first token", other: "template, separators", demonstration: "examples", format: "template" };
  const STRONGEST = 5; // tokens in each list
  const choice = Object.fromEntries([...root.querySelectorAll("select")].map((select) => [select.name, select]));
  const nameOf = (region) => NAMES[region] || region;
  const spaced = (outcome) => outcome.replaceAll("_", " ");

  let facts = null; // of all views
  let view = null; // the facts of the chosen traces
  let sides = []; // each condition with its prompt; one, or two side by side
  let pairs = []; // for each place in the text, the element of each side, or null
  let head = [0, 0]; // indices of the chosen layer and head
  let query = null; // the chosen place whose attention is shown; null for the mean
  let earlier = null; // the place that was chosen before the mean
  let key = null; // the place that is read out
  let cells = []; // the elements on the page: [side][place]

  // ---- numbers ------------------------------------------------------------------------------------------------------

  const digits = (share) => (Math.abs(share) < 0.01 ? 2 : 1);
  const percent = (share) => `${(100 * share).toFixed(digits(share))} %`;
  function points(change) {
    const text = (100 * change).toFixed(digits(change));
    return Number(text) > 0 ? `+${text}` : text.replace("-", "\u2212");
  }
  const weightOf = (level) => (level / facts.levels) ** 2;
  const errorOf = (level) => (level + 0.25) / facts.levels ** 2; // half a step up, which is more than half a step down
  const measured = (level) => (level === null ? "no weight" : `${percent(weightOf(level))} \u00b1 ${(100 * errorOf(level)).toFixed(2)}`);

  // ---- elements of a prompt -----------------------------------------------------------------------------------------

  const roleOf = (prompt, index) => facts.roles[prompt.role[index]];
  const isGroup = (prompt, index) => prompt.position[index] === prompt.position[index + 1];
  const isFolded = (prompt, index) => roleOf(prompt, index) === "filler" && !isGroup(prompt, index);

  /** Where an element stands in the prompt without filler: below 0 if it is inserted. */
  const orderOf = (prompt, index) => index === prompt.text.length ? Infinity : prompt.original[index];

  /**
   * The elements of two prompts place by place: pairs of indices, null where a prompt has no element.
   *
   * Two elements share a place if they are the same token of the prompt without filler, or both a whole
   * filler. Every other element has a place of its own, inserted ones before the next original token.
   */
  function pairUp(left, right) {
    if (!right) return left.text.map((_, index) => [index]);
    const places = [];
    let [i, j] = [0, 0];
    while (i < left.text.length || j < right.text.length) {
      const [a, b] = [orderOf(left, i), orderOf(right, j)];
      const both = a === b && (a >= 0 || (isGroup(left, i) && isGroup(right, j)));
      // inserted elements come before the original token that the other prompt has next
      const onlyLeft = !both && (a < 0 || (b >= 0 && a < b));
      places.push([both || onlyLeft ? i++ : null, both || !onlyLeft ? j++ : null]);
    }
    return places;
  }

  /** The number of the query in a prompt's bytes, from 0 for the mean; null if its row is not stored. */
  function queryIn(side, place) {
    if (place === null) return 0;
    const { prompt, number } = side;
    const index = pairs[place][number];
    if (index === null || isGroup(prompt, index)) return null;
    const row = prompt.position[index] + prompt.size[index] - 1 - (prompt.tokens - prompt.rows);
    return row < 0 ? null : row + 1;
  }

  /** The bytes of a head and a query, of all elements; null if there are none. */
  function levelsOf({ prompt }, [layer, head], number) {
    if (number === null) return null;
    prompt.bytes ||= [];
    prompt.bytes[layer] ||= Uint8Array.from(atob(prompt.layers[layer]), (letter) => letter.charCodeAt(0));
    const width = prompt.text.length;
    const start = (head * (prompt.rows + 1) + number) * width;
    return prompt.bytes[layer].subarray(start, start + width);
  }

  /** The byte of an element's weight; null if the side has no such element, no row of the query, or the query does not see it. */
  function levelAt(side, place) {
    const index = pairs[place][side.number];
    if (!side.levels || index === null || side.levels[index] === facts.missing) return null;
    return side.levels[index];
  }

  /** A token's text, in which blanks and line breaks are visible. */
  function spell(text) {
    const SIGNS = { " ": "\u00b7", "\n": "\u21b5", "\t": "\u21e5" };
    const pieces = text.split(/([ \n\t])/).filter(Boolean);
    return pieces.map((piece) => (piece in SIGNS ? make("span", { class: "blank" }, SIGNS[piece]) : plain(piece)));
  }

  /** What stands at a place, as nodes: the token, then its number and role; or a filler as a whole. */
  function describe(place) {
    const side = sides.find(({ number }) => pairs[place][number] !== null);
    const { prompt, number } = side;
    const index = pairs[place][number];
    if (isGroup(prompt, index)) return [`filler of ${prompt.size[index]} tokens`];
    return [make("code", {}, spell(prompt.text[index])), ` token ${prompt.position[index] + 1}, ${nameOf(index ? roleOf(prompt, index) : "first")}`];
  }

  // ---- the problem --------------------------------------------------------------------------------------------------

  /** The question, its gold answer, and whether it flipped between the two conditions by which problems were selected. */
  function drawAbout() {
    const { gold_answer: gold, outcome, control } = problem();
    const { prompt } = sides[0];
    const question = prompt.text.filter((_, index) => roleOf(prompt, index) === "problem").join("").trim();
    const facts = gold ? [`Gold answer: ${gold}.`] : [];
    if (outcome) {
      const { baseline, condition, flip } = view.selection.criterion;
      const labelOf = (wanted) => view.conditions.find(({ name }) => name === wanted)?.label ?? wanted;
      const note = control ? " (control)" : flip ? " (selected on outcome)" : "";
      facts.push(`${labelOf(baseline)} to ${labelOf(condition)}: ${spaced(outcome)}${note}.`);
    }
    $(".about").replaceChildren(make("strong", {}, plain(question)), ...plain(facts.join(" ")));
  }

  // ---- the grid of heads --------------------------------------------------------------------------------------------

  const problem = () => view.problems[choice.problem.value];
  /** The measured mass of a head, or that of the mean over all later tokens. */
  function massOf(side, region, cell) {
    const { masses } = problem();
    if (masses) return masses[side.name][region][cell[0]][cell[1]];
    return side.prompt.sums[cell[0]][cell[1]][0][region];
  }
  /** The cells of the grid, row by row: the indices of layer and head. */
  function grid() {
    return sides[0].prompt.sums.map((heads, layer) => heads.map((_, number) => [layer, number]));
  }

  /** A mass in percent, or "none" if the prompt has no token of the region. */
  function shareOf({ prompt }, region, mass) {
    const role = facts.roles.indexOf(facts.regions[region]);
    return role === -1 || prompt.role.includes(role) ? percent(mass) : "none";
  }

  /** The mass in a cell of the grid, of the chosen region: under one condition, or the difference. */
  function shownMass(cell) {
    const region = choice.region.value;
    const masses = sides.map((side) => massOf(side, region, cell));
    return choice.shown.value === "difference" ? masses[1] - masses[0] : masses[choice.shown.value];
  }

  function drawGrid() {
    const rows = grid();
    const largest = Math.max(...rows.flat().map((cell) => Math.abs(shownMass(cell))), 1e-9);
    const isDifference = choice.shown.value === "difference";
    const region = nameOf(facts.regions[choice.region.value]);
    const under = choice.shown.selectedOptions[0].textContent;
    $(".heads caption").replaceChildren(...plain(`Attention on: ${region}; ${under}${isDifference ? ", in points" : ", in percent"} (mean over the ${view.queried}'s tokens)`));
    $(".meaning").replaceChildren(...plain(view.meanings[choice.region.value] ?? ""));
    $(".heads thead").replaceChildren(make("tr", {}, make("td", {}, "Head"), rows[0].map(([, number]) => make("th", { scope: "col", "aria-label": `Head ${number + 1}` }, String(number + 1)))));
    $(".heads tbody").replaceChildren(...rows.map((row, layer) => make("tr", {}, make("th", { scope: "row" }, `Layer ${view.layers[layer]}`), row.map((cell) => {
      const mass = shownMass(cell);
      const isChosen = String(cell) === String(head);
      const text = isDifference ? points(mass) : shareOf(sides[choice.shown.value], choice.region.value, mass);
      const button = make("button", {
        type: "button", "data-cell": cell.join(), "aria-pressed": String(isChosen), tabindex: isChosen ? "0" : "-1",
        class: !isDifference ? `s${sides[choice.shown.value].slot}` : mass < 0 ? "less" : "more",
        "aria-label": `Layer ${view.layers[layer]} Head ${cell[1] + 1}: ${text}`,
      }, text.replace(" %", "").replace(/[\d.]+$/, (number) => Number(number).toFixed(number < 9.95 ? 1 : 0)));
      button.style.setProperty("--w", (Math.abs(mass) / largest).toFixed(3));
      return make("td", {}, button);
    }))));
  }

  function readCell(cell) {
    const region = choice.region.value;
    const masses = sides.map((side) => massOf(side, region, cell));
    const parts = sides.map((side, number) => `${side.label} ${shareOf(side, region, masses[number])}`);
    if (sides.length > 1) parts.push(`difference ${points(masses[1] - masses[0])} points`);
    readOut([`Layer ${view.layers[cell[0]]} Head ${cell[1] + 1}, ${nameOf(facts.regions[region])}: ${parts.join("; ")}`]);
  }

  function chooseHead(cell, focus) {
    head = cell;
    drawGrid();
    if (focus) $(`[data-cell="${cell}"]`).focus();
    readCell(cell);
    paint();
  }

  // ---- the tokens ---------------------------------------------------------------------------------------------------

  /** The tokens of one side. A place without an element of this side keeps its width, so that both sides break alike. */
  function drawSide(side) {
    const { prompt, number } = side;
    const otherSide = sides[1 - number];
    const nodes = pairs.map((pair, place) => {
      const owner = pair[number] === null ? otherSide.prompt : prompt;
      const index = pair[number] === null ? pair[1 - number] : pair[number];
      const isAbsent = pair[number] === null;
      const role = roleOf(owner, index);
      const attributes = { "data-place": place, class: `token ${role}${isAbsent ? " absent" : ""}`, "aria-hidden": isAbsent && "true" };
      if (isGroup(owner, index)) return make(isAbsent ? "span" : "button", { ...attributes, type: "button", class: `${attributes.class} group`, "aria-expanded": isAbsent ? null : "false" });
      const token = make("span", { ...attributes, hidden: isFolded(owner, index) }, spell(owner.text[index]));
      if (!isAbsent && queryIn(side, place) !== null) token.classList.add("asks");
      return owner.text[index].includes("\n") ? [token, make("br", {})] : token;
    });
    const name = make("h4", {}, plain(side.label), make("span", { class: "small" }, ` \u00b7 ${prompt.tokens} tokens`));
    const text = make("div", {
      class: "text tokens", tabindex: "0", role: "group", "data-side": number,
      "aria-label": `Tokens, ${side.label}. Left and right arrow: whose attention is shown. Up and down: read a token. Escape: mean.`,
    }, nodes.flat().filter(Boolean));
    return make("section", { class: `s${side.slot}` }, name, text, make("p", { class: "small" }, "The five strongest tokens"), make("ol", { class: "strongest" }));
  }

  /** Shade the tokens by their weights for the chosen head and query, and write what follows from these. */
  function paint() {
    for (const side of sides) side.levels = levelsOf(side, head, queryIn(side, query));
    const top = Math.max(1, ...sides.flatMap((side) => strongest(side).map(([level]) => level)));
    for (const side of sides) {
      const { prompt, number } = side;
      pairs.forEach((pair, place) => {
        const token = cells[number].get(place);
        if (!token) return;
        const level = levelAt(side, place);
        const isShaded = level !== null && !token.classList.contains("group");
        token.style.setProperty("--w", isShaded ? (level / top).toFixed(3) : "0");
        token.classList.toggle("unseen", pair[number] !== null && level === null);
        token.classList.toggle("query", place === query);
        if (token.classList.contains("group")) {
          const index = pair[number] === null ? pair[1 - number] : pair[number];
          const size = (pair[number] === null ? sides[1 - number].prompt : prompt).size[index];
          // means of single tokens are over different queries, so their sum is not a share of any query
          const share = query === null ? "" : `: ${level === null ? "\u2013" : percent(weightOf(level))}`;
          token.replaceChildren(`filler, ${size} tokens${share}`);
        }
      });
      const items = strongest(side).map(([level, place]) => make("li", { "data-place": place }, describe(place), make("strong", {}, percent(weightOf(level)))));
      $(`.pair > section:nth-child(${number + 1}) .strongest`).replaceChildren(...items);
    }
    drawSums();
    $(".head").replaceChildren(`2. Layer ${view.layers[head[0]]} Head ${head[1] + 1}`);
    choice.query.value = query === null ? "" : query;
    const darkest = `Darkest: ${percent(weightOf(top))}. Shades follow the square root of the weight.`;
    const asked = view.problems[choice.problem.value].hasRows
      ? "To see another token's attention, click on an underlined token, or press the arrow keys in the text." : "";
    $(".explain").replaceChildren(`${asked} ${darkest} Click on the filler to unfold it. Hatched: not in this prompt. Grey: not seen, because it comes later.`);
    if (key !== null) inspect(key);
  }

  /** The strongest tokens of a side as level and place, without fillers as a whole. */
  function strongest(side) {
    const found = pairs.map((_, place) => [levelAt(side, place), place]);
    const tokens = found.filter(([level, place]) => level !== null && !isGroup(side.prompt, pairs[place][side.number]));
    return tokens.sort((a, b) => b[0] - a[0]).slice(0, STRONGEST);
  }

  /** The table of attention by region, and the tokens whose attention changes most. */
  function drawSums() {
    const names = sides.map((side) => side.label);
    const asking = query === null ? [`the ${view.queried}'s tokens`, " (mean)"] : describe(query);
    $(".masses caption").replaceChildren("Where the attention goes: ", ...asking);
    const heading = ["", ...names, ...(sides.length > 1 ? ["change"] : [])];
    $(".masses thead").replaceChildren(make("tr", {}, heading.map((text) => make("th", { scope: "col", class: "number" }, plain(text)))));
    const rows = facts.regions.map((_, region) => [region, sides.map((side) => sumOf(side, region))]);
    $(".masses tbody").replaceChildren(...rows.filter(([, sums]) => sums.some(Boolean)).map(([region, sums]) => make("tr", {},
      make("th", { scope: "row" }, nameOf(facts.regions[region])),
      sums.map((sum, number) => make("td", { class: "number" }, sum === null ? "\u2013" : shareOf(sides[number], region, sum))),
      sides.length > 1 ? make("td", { class: "number" }, sums.includes(null) ? "\u2013" : points(sums[1] - sums[0])) : null,
    )));
    const changes = sides.length < 2 ? [] : pairs.map((_, place) => [sides.map((side) => levelAt(side, place)), place])
      .filter(([levels, place]) => !levels.includes(null) && !isGroup(sides[0].prompt, pairs[place][0]))
      .map(([levels, place]) => [weightOf(levels[1]) - weightOf(levels[0]), place, errorOf(levels[0]) + errorOf(levels[1])])
      .filter(([change, , error]) => Math.abs(change) > error) // not due to the rounding of weights alone
      .sort((a, b) => Math.abs(b[0]) - Math.abs(a[0])).slice(0, STRONGEST);
    const items = changes.map(([change, place]) => make("li", { "data-place": place }, describe(place), make("strong", {}, points(change))));
    $(".changes").replaceChildren(...(items.length ? [make("p", { class: "caption" }, plain(`Largest changes from ${names[0]} to ${names[1]}, in points`)), make("ol", { class: "strongest" }, items)] : []));
  }

  /** The attention on a region: of the mean as the grid has it; null if there is no row. */
  function sumOf(side, region) {
    if (query === null) return massOf(side, region, head);
    const number = queryIn(side, query);
    return number === null ? null : side.prompt.sums[head[0]][head[1]][number][region];
  }

  function readOut(nodes) {
    $(".readout").replaceChildren(...nodes.flat(Infinity));
  }

  /** Mark the tokens at a place, and read out their weights. */
  function inspect(place) {
    for (const old of root.querySelectorAll(".inspected")) old.classList.remove("inspected");
    key = place;
    for (const side of cells) side.get(place)?.classList.add("inspected");
    const levels = sides.map((side) => levelAt(side, place));
    const parts = sides.map((side, number) => {
      const isAbsent = pairs[place][number] === null;
      return `${side.label} ${isAbsent ? "has no such token" : measured(levels[number])}`;
    });
    if (sides.length > 1 && !levels.includes(null)) parts.push(`change ${points(weightOf(levels[1]) - weightOf(levels[0]))} points`);
    readOut([describe(place), ": ", plain(parts.join("; "))]);
  }

  /** Show the attention of the token at a place; null shows the mean. */
  function ask(place) {
    earlier = query ?? earlier;
    query = place;
    paint();
  }

  // ---- choices ------------------------------------------------------------------------------------------------------

  /** Fill a menu, keep the value if it is an option, and hide a menu without a choice. */
  function fill(select, options, value) {
    select.replaceChildren(...options.map(([name, text]) => make("option", { value: name }, plain(text))));
    if (options.some(([name]) => String(name) === String(value))) select.value = value;
    select.parentElement.hidden = options.length < 2;
  }

  function setView() {
    view = facts.views[choice.view.value];
    const options = view.problems.map(({ id, outcome }, number) => [number, outcome ? `${id}, ${spaced(outcome)}` : id]);
    fill(choice.problem, options.sort(([a], [b]) => Boolean(view.problems[a].control) - Boolean(view.problems[b].control)));
    const names = view.conditions.map(({ name, label }) => [name, label]);
    fill(choice.left, names);
    fill(choice.right, names, names[1]?.[0]);
    $(".notes").replaceChildren(...[view.model, ...view.notes].map((note) => make("p", { class: "small" }, plain(note))));
    head = [0, 0];
    return setProblem();
  }

  async function setProblem() {
    const before = facts.views.slice(0, choice.view.value).reduce((sum, { problems }) => sum + problems.length, 0);
    const wanted = problem();
    const prompts = await unpack(`attention-${before + Number(choice.problem.value)}`);
    if (wanted !== problem()) return; // another problem was chosen meanwhile
    const names = [...new Set([choice.left.value, choice.right.value])].filter((name) => name in prompts);
    sides = names.map((name, number) => ({ ...view.conditions.find((condition) => condition.name === name), number, prompt: prompts[name] }));
    pairs = pairUp(...sides.map((side) => side.prompt));
    const labels = sides.map((side, number) => [number, side.label]);
    if (sides.length > 1) labels.push(["difference", `difference: ${sides[1].label} \u2212 ${sides[0].label}`]);
    fill(choice.shown, labels, choice.shown.value || sides.length - 1);
    const regions = facts.regions.map((name, region) => [region, nameOf(name)])
      .filter(([region]) => grid().flat().some((cell) => sides.some((side) => massOf(side, region, cell))));
    fill(choice.region, regions, choice.region.value || facts.regions.indexOf("filler"));
    const queries = pairs.map((_, place) => place).filter((place) => sides.some((side) => queryIn(side, place) !== null));
    wanted.hasRows = queries.length > 0;
    query = queries.at(-1) ?? null;
    earlier = null;
    const titles = queries.map((place) => {
      const [text, facts] = describe(place).map((node) => node.textContent ?? node);
      return [place, `\u201c${text}\u201d${facts}${place === query ? ": the answer begins after it" : ""}`];
    });
    fill(choice.query, [["", "mean over all later tokens"], ...titles], query);
    $(".pair").replaceChildren(...sides.map(drawSide));
    $(".pair").classList.toggle("one", sides.length < 2);
    cells = sides.map(({ number }) => new Map([...$(`.pair > section:nth-child(${number + 1})`).querySelectorAll(".token")].map((token) => [Number(token.dataset.place), token])));
    key = null;
    drawAbout();
    drawGrid();
    paint();
    readOut(["Point at a token or a head to read its numbers."]);
    root.dataset.ready = "yes";
  }

  // ---- events -------------------------------------------------------------------------------------------------------

  function follow(event) {
    const button = event.target.closest("[data-cell]");
    const token = event.target.closest("[data-place]");
    if (button) readCell(button.dataset.cell.split(",").map(Number));
    else if (token) inspect(Number(token.dataset.place));
  }
  root.addEventListener("pointerover", follow);
  root.addEventListener("focusin", follow);

  root.addEventListener("click", (event) => {
    const button = event.target.closest("[data-cell]");
    const token = event.target.closest(".token");
    if (button) {
      chooseHead(button.dataset.cell.split(",").map(Number), true);
      return $(".head").scrollIntoView({ block: "nearest" });
    }
    if (!token) return;
    if (token.classList.contains("group")) {
      const folded = token.getAttribute("aria-expanded") === "false";
      for (const group of root.querySelectorAll("button.group")) group.setAttribute("aria-expanded", String(folded));
      for (const hidden of root.querySelectorAll(".filler:not(.group)")) hidden.hidden = !folded;
    } else if (sides.some((side) => queryIn(side, Number(token.dataset.place)) !== null)) ask(Number(token.dataset.place));
  });

  $(".heads").addEventListener("keydown", (event) => {
    const [down, right] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key] || [0, 0];
    if (!(down || right)) return;
    event.preventDefault();
    const next = [head[0] + down, head[1] + right];
    if ($(`[data-cell="${next}"]`)) chooseHead(next, true);
  });

  $(".pair").addEventListener("keydown", (event) => {
    const side = event.target.closest(".tokens")?.dataset.side;
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1 };
    if (event.key === "Escape") ask(null);
    if (!(event.key in steps) || side === undefined) return;
    event.preventDefault();
    const reads = ["ArrowDown", "ArrowUp"].includes(event.key);
    const places = pairs.map((_, place) => place).filter((place) => (reads
      ? !cells[side].get(place)?.hidden && pairs[place][side] !== null
      : sides.some((one) => queryIn(one, place) !== null)));
    const start = (reads ? key ?? query : query ?? earlier) ?? -1;
    const next = steps[event.key] > 0 ? places.find((place) => place > start) : places.findLast((place) => place < start);
    if (next === undefined) return;
    if (!reads) ask(next);
    inspect(next);
    cells[side].get(next)?.scrollIntoView({ block: "nearest" });
  });

  for (const form of root.querySelectorAll("form")) form.addEventListener("submit", (event) => event.preventDefault());
  root.addEventListener("input", ({ target }) => {
    if (target === choice.view) setView();
    else if (target === choice.query) ask(target.value === "" ? null : Number(target.value));
    else if ([choice.problem, choice.left, choice.right].includes(target)) setProblem();
    else drawGrid();
  });

  async function start() {
    facts = await unpack("attention-facts");
    fill(choice.view, facts.views.map(({ name }, number) => [number, name]));
    root.hidden = false;
    await setView();
  }
  start();
})();
