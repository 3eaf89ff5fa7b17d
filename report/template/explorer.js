// The explorer: reads the one question from its controls or the address, answers it from the limits of every level
// that the page carries, and says so. It compares, multiplies and divides; every limit was computed in Python, and
// lib/analyse/whatif.py answers the same question the same way. No request, no storage, no markup from data.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("explorer-data").textContent);
  const at = (name) => document.getElementById(`ask-${name}`);
  const NUMBERS = ["ttft_ms", "tpot_ms", "sessions", "usd_per_hour", "floor"];
  const METRICS = [["ttft", "ttft_ms"], ["tpot", "tpot_ms"]];
  const STEPS = 1000, MAYBE_EMPTY = ["usd_per_hour", "floor"], WHOLE = "sessions", SHARE = "floor", START = "#ask?";
  const WORST_FIRST = ["no", "undecided", "yes"];
  let work, asked, drawn = null, chart = null;

  // Numbers as lib/show/numbers.py writes them: three significant digits, thousands apart, whole numbers whole.
  const rounded = (value, decimals) => {
    const up = value.toFixed(decimals), [whole, rest] = value.toFixed(decimals + 40).split(".");
    if (!/^50*$/.test(rest.slice(decimals))) return up;
    const down = decimals ? `${whole}.${rest.slice(0, decimals)}` : whole; // exactly half: to the even digit, as Python
    return Number(down.at(-1)) % 2 ? up : down;
  };
  const grouped = (value, decimals) => {
    const [whole, rest] = rounded(value, decimals).split(".");
    return whole.replace(/\B(?=(\d{3})+(?!\d))/g, ",") + (rest ? `.${rest}` : "");
  };
  const digits = (value, like) => {
    const size = Math.abs(like === undefined ? value : like), near = Math.round(value);
    const slack = Math.max(1e-9 * Math.max(Math.abs(value), Math.abs(near)), 1e-12);
    if (like === undefined && Math.abs(value - near) <= slack) return grouped(near, 0);
    const decimals = size >= 100 ? 0 : size > 0 ? 2 - Math.floor(Math.log10(size)) : 2;
    return grouped(value, Math.max(0, decimals));
  };
  const limits = ([value, low, high]) => {
    if (low === null || high === null) return "";
    const like = Number.isInteger(value) && Math.abs(value) < 100 ? undefined : value;
    return `${digits(low, like)} to ${digits(high, like)}`;
  };
  const listed = (words) => words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;

  // The answer, as lib/analyse/whatif.py gives it.
  const judge = (level) => {
    if (!level.n) return ["undecided", "no request was measured"];
    if (level.failed / level.n > data.budget) return ["no", `${level.failed} of ${level.n} requests failed`];
    const doubts = [];
    for (const [metric, key] of METRICS) {
      const limit = asked[key], wanted = level[metric][asked.by], median = level[metric].p50, name = metric.toUpperCase();
      if ([wanted, median].some((e) => e[1] !== null && e[1] > limit)) return ["no", `${name} is above ${limit} ms even at its lower limit`];
      if (wanted[2] === null) doubts.push(`${name}: ${wanted[3] || "no upper limit"}`);
      else if (wanted[2] > limit) doubts.push(`${name}: ${limit} ms lies within its interval`);
    }
    if (!level.reached) doubts.push("the load was not reached");
    return doubts.length ? ["undecided", doubts.join("; ")] : ["yes", ""];
  };
  const faithful = (contender) => {
    if (asked.floor === null) return ["yes", ""];
    const [, low, high, reason] = contender.quality;
    if (low === null || high === null) return ["undecided", `same next token: ${reason || "no interval"}`];
    if (high < asked.floor) return ["no", `same next token is below ${asked.floor} % even at its upper limit`];
    return low < asked.floor ? ["undecided", `same next token: ${asked.floor} % lies within its interval`] : ["yes", ""];
  };
  const both = (quality, speed) => WORST_FIRST.indexOf(speed[0]) < WORST_FIRST.indexOf(quality[0]) ? speed : quality;
  const onOne = (levels, place, ends) => {
    const top = place < 0 ? 0 : levels[place].load;
    if (top >= asked.sessions) return ["yes", ""];
    if (!ends) return ["undecided", `${top} at once is the highest level taken`];
    const above = levels[place + 1].load;
    if (place >= 0 && ends[0] === "no" && above > asked.sessions) return ["undecided", `between ${top} at once, which keeps it, and ${above}, which does not`];
    return [ends[0], `${above} at once: ${ends[1]}`];
  };
  const answerOf = (contender) => {
    let best = null;
    for (const variant of contender.variants) {
      const verdicts = variant.levels.map(judge);
      const place = verdicts.map((v) => v[0]).lastIndexOf("yes");
      const ends = verdicts[place + 1] || null, level = place < 0 ? null : variant.levels[place];
      const rank = [level ? level.load : 0, level ? level.out[0] || 0 : 0, ends && ends[0] === "undecided" ? 1 : 0];
      const better = best && rank.findIndex((r, i) => r !== best.rank[i]);
      if (!best || (better >= 0 && rank[better] > best.rank[better])) best = { variant, place, ends, level, rank };
    }
    const quality = faithful(contender), level = quality[0] === "yes" ? best.level : null;
    const [answer, why] = both(quality, onOne(best.variant.levels, best.place, best.ends));
    const out = level && level.out[0] ? level.out : null, node = (asked.usd_per_hour || 0) * work.units;
    const each = out && node ? out.map((x) => (x ? (node / (x * 3600)) * 1e6 : null)) : null;
    return {
      contender, answer, why, out, layout: best.variant.name, source: best.variant.source, carries: level ? level.load : null, doubts: level ? level.doubts : "",
      nodes: level ? Math.ceil(asked.sessions / level.load) : null, cost: each && [each[0], each[2], each[1]],
    };
  };
  const points = (chosen) => {
    const all = chosen.flatMap((contender) => contender.variants.flatMap((variant) => variant.levels
      .filter((level) => level.out[0] && level.ttft.p50[0])
      .map((level) => ({ contender, variant, level, x: level.out[0], y: level.ttft.p50[0], keeps: both(faithful(contender), judge(level))[0] === "yes" }))));
    let best = Infinity;
    for (const point of all.filter((p) => p.keeps).sort((a, b) => b.x - a.x || a.y - b.y)) {
      point.frontier = point.y < best;
      best = Math.min(best, point.y);
    }
    return all;
  };

  // The words, as lib/show/explorer.py writes them: pieces of text, each with the mark of the number it ends in.
  const costMark = () => work.mark === "rehearsed" ? "rehearsed" : work.weakest[asked.usd_per_hour === work.stated.usd_per_hour ? "stated" : "moved"];
  const nameOf = (row) => row.contender.name + (row.layout && ` in ${row.layout}`);
  const said = (rows) => {
    if (!rows.length) return [["No contender is selected: choose at least one engine and one precision.", ""]];
    const parts = [
      [`Asked: a first token within ${digits(asked.ttft_ms)} ms`, "assumed"], [` and then a token every ${digits(asked.tpot_ms)} ms`, "assumed"],
      [`, for ${digits(asked.sessions)} at once`, "assumed"],
    ];
    if (asked.floor !== null) parts.push([`, and ${digits(asked.floor)} % of next tokens as the 16-bit model has them`, "assumed"]);
    parts.push([`. ${work.subject}: `, ""]);
    const keep = rows.filter((r) => r.answer === "yes"), some = rows.filter((r) => r.carries);
    if (keep.length) {
      parts.push([`${listed(keep.map(nameOf))} ${keep.length === 1 ? "keeps" : "keep"} it on one node`, work.mark], [".", ""]);
      const priced = keep.filter((r) => r.cost);
      if (priced.length) {
        const least = priced.reduce((a, b) => (b.cost[0] < a.cost[0] ? b : a));
        parts.push([` Lowest cost: ${nameOf(least)}, ${digits(least.cost[0])} USD per million output tokens`, costMark()], [".", ""]);
      }
    } else if (some.length) {
      const least = some.reduce((a, b) => (b.nodes < a.nodes ? b : a));
      parts.push(["no contender is shown to keep it on one node. Fewest nodes: ", ""], [`${nameOf(least)}, ${digits(least.nodes)}`, work.mark], [` with ${digits(least.carries)} at once on each`, work.mark], [".", ""]);
    } else if (rows.some((r) => r.answer === "undecided")) {
      parts.push(["no level is shown to keep it, and some are undecided.", ""]);
    } else parts.push(["no contender keeps it.", ""]);
    if (asked.by === "p50") parts.push([" Judged by medians, which are not the promise.", ""]);
    return parts;
  };
  const beneath = (why, doubts) => [why, doubts && `Warning: ${doubts}`].filter(Boolean).join(". ");
  const missing = (text) => ({ text, of: "num missing" });
  const cells = (row) => {
    const number = (value, mark) => ({ text: digits(value[0]), mark, small: limits(value), of: "num" });
    return [
      { text: row.contender.name, small: row.layout, head: true, look: row.contender, source: row.source },
      row.carries ? { text: digits(row.carries), mark: work.mark, of: "num" } : missing("none shown"),
      { text: row.answer, small: beneath(row.why, row.doubts), of: row.answer },
      row.nodes ? { text: digits(row.nodes), mark: work.mark, of: "num" } : missing("none shown"),
      row.out ? number(row.out, work.mark) : missing("none shown"),
      row.cost ? number(row.cost, costMark()) : missing(row.out ? "no price" : "none shown"),
      row.contender.quality[0] === null ? missing("not scored") : number(row.contender.quality, work.mark),
    ];
  };
  const findingOf = (all) => {
    const on = [...new Set(all.filter((p) => p.frontier).sort((a, b) => b.x - a.x).map((p) => p.contender.name))];
    return on.length ? `On the frontier of what keeps it: ${listed(on)}` : "No level shown keeps it, so there is no frontier";
  };

  // From words to the page.
  const element = (tag, text = "", name = "") => {
    const made = document.createElement(tag);
    if (name) made.className = name;
    made.textContent = text;
    return made;
  };
  const markOf = (kind) => {
    const made = element("span", "", `mark ${kind}`), glyph = element("span", data.kinds[kind].mark);
    made.title = `${kind}: ${data.kinds[kind].means}`;
    glyph.setAttribute("aria-hidden", "true");
    made.append(glyph, element("span", ` (${kind})`, "aloud"));
    return made;
  };
  const cellOf = (cell) => {
    const made = element(cell.head ? "th" : "td", "", cell.of || "");
    if (cell.head) Object.assign(made, { scope: "row", title: cell.source });
    if (cell.look) made.append(swatch(cell.look));
    made.append(cell.text);
    if (cell.mark) made.append(markOf(cell.mark));
    if (cell.small) made.append(element("span", cell.small, "ci"));
    return made;
  };
  const swatch = (contender) => {
    const made = element("span", contender.glyph, `swatch ${contender.colour.slice(2)}`);
    made.setAttribute("aria-hidden", "true");
    return made;
  };
  const fill = (body, lines) => body.replaceChildren(...lines.map((line) => {
    const row = document.createElement("tr");
    row.append(...line.map(cellOf));
    return row;
  }));
  const levelLines = (all) => all.map(({ contender, variant, level }) => {
    const [answer, why] = both(faithful(contender), judge(level)), p95 = (e) => e[2] === null ? missing(e[3] ? "unsupported" : "missing") : { text: digits(e[2]), mark: work.mark, of: "num" };
    return [
      { text: contender.name, small: variant.name, head: true, look: contender, source: variant.source }, { text: digits(level.load), mark: "assumed", of: "num" },
      p95(level.ttft[asked.by]), p95(level.tpot[asked.by]), { text: digits(level.out[0]), mark: work.mark, of: "num" }, { text: answer, small: beneath(why, level.doubts), of: answer },
    ];
  });

  // The picture: uPlot gives axes, scales and ticks; shapes and colours are those of the study's figures.
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const SIDES = { h: [6, 0], s: [4, Math.PI / 4], D: [4, 0], "^": [3, -Math.PI / 2], v: [3, Math.PI / 2] };
  const shape = (pen, kind, x, y, r) => {
    const [sides, turn] = SIDES[kind] || [0, 0];
    pen.beginPath();
    if (!sides) pen.arc(x, y, r, 0, 2 * Math.PI);
    for (let i = 0; i < sides; i++) pen.lineTo(x + 1.15 * r * Math.cos(turn + (2 * Math.PI * i) / sides), y + 1.15 * r * Math.sin(turn + (2 * Math.PI * i) / sides));
    pen.closePath();
  };
  const paint = (plot) => {
    const pen = plot.ctx, ratio = uPlot.pxRatio;
    pen.save();
    pen.setLineDash([]);
    pen.lineWidth = 1.4 * ratio;
    pen.font = `${10 * ratio}px ${css("--sans")}`;
    for (const point of drawn) {
      const x = plot.valToPos(point.x, "x", true), y = plot.valToPos(point.y, "y", true);
      shape(pen, point.contender.shape, x, y, (point.keeps ? 4.5 : 3) * ratio);
      pen.strokeStyle = pen.fillStyle = css(point.contender.colour);
      pen.globalAlpha = point.keeps ? 1 : 0.55;
      if (point.keeps) pen.fill();
      pen.stroke();
      pen.fillStyle = css("--muted");
      if (point.frontier) pen.fillText(digits(point.level.load), x + 7 * ratio, y - 5 * ratio);
    }
    pen.restore();
  };
  const ends = (key) => () => {
    const values = drawn.map((p) => p[key]);
    return values.length ? [Math.min(...values) * 0.75, Math.max(...values) * 1.33] : [1, 10];
  };
  const STEPPED = [[1, 1.5, 2, 3, 4, 5, 7], [1, 2, 5], [1, 3], [1]];
  const stepped = (steps, low, high) => {
    const all = [];
    for (let power = Math.floor(Math.log10(low)); 10 ** power < high; power++) all.push(...steps.map((s) => s * 10 ** power));
    return all.filter((v) => v >= low && v <= high);
  };
  const ticks = (low, high, room) => {
    const all = STEPPED.map((steps) => stepped(steps, low, high));
    return all.find((found) => found.length <= room) || all.at(-1);
  };
  const axis = (label, more) => ({
    label, stroke: () => css("--muted"), font: `11px ${css("--sans")}`, labelFont: `11px ${css("--sans")}`,
    grid: { stroke: () => css("--grid"), width: 1 }, ticks: { stroke: () => css("--grid"), width: 1 },
    splits: (plot, which, low, high) => ticks(low, high, (which ? 270 / 30 : (size().width - 90) / 52)), filter: (plot, all) => all, values: (plot, all) => all.map((v) => digits(v)), ...more,
  });
  const series = () => {
    const sorted = [...drawn].sort((a, b) => a.x - b.x);
    return [sorted.map((p) => p.x), sorted.map((p) => p.y), sorted.map((p) => (p.frontier ? p.y : null))];
  };
  const size = () => ({ width: Math.max(280, at("chart").clientWidth), height: 300 });
  const draw = () => {
    if (chart) return chart.setData(series());
    chart = new uPlot({
      ...size(), legend: { show: false }, cursor: { show: false }, padding: [14, 26, 0, 0],
      scales: { x: { time: false, distr: 3, range: ends("x") }, y: { distr: 3, range: ends("y") } },
      axes: [axis("output of one node, tok/s", {}), axis("TTFT median, ms", { size: 62 })],
      series: [{}, { paths: () => null, points: { show: false } }, { stroke: () => css("--ink"), width: 1.2, dash: [5, 4], spanGaps: true, points: { show: false } }],
      hooks: { draw: [paint] },
    }, series(), at("chart"));
    return chart;
  };

  // From the page to the question, and back.
  const slider = (name) => at(`${name}-slide`);
  const toSlide = (name) => {
    const [low, high] = work.ranges[name] || [];
    const share = name === SHARE ? asked[name] / 100 : Math.log(asked[name] / low) / Math.log(high / low);
    slider(name).value = asked[name] ? Math.round(STEPS * share) : 0;
    slider(name).setAttribute("aria-valuetext", asked[name] ? String(asked[name]) : "none");
  };
  const fromSlide = (name) => {
    if (name === SHARE) return Number(slider(name).value) ? (100 * slider(name).value) / STEPS : null;
    const [low, high] = work.ranges[name], value = low * (high / low) ** (slider(name).value / STEPS);
    return name === WHOLE ? Math.round(value) : Number(value.toPrecision(3));
  };
  const usable = (name, text) => {
    const value = Number(text);
    if (text.trim() === "") return MAYBE_EMPTY.includes(name) ? null : undefined;
    return Number.isFinite(value) && value > 0 && (name !== WHOLE || Number.isInteger(value)) && (name !== SHARE || value <= 100) ? value : undefined;
  };
  const has = (key, contender) => !asked[key] || asked[key].has(contender[key.slice(0, -1)]);
  const allOf = (key) => [...new Set(work.contenders.map((c) => c[key.slice(0, -1)]))];
  const boxes = (key) => at(key).replaceChildren(...allOf(key).map((value) => {
    const label = element("label"), box = document.createElement("input");
    box.type = "checkbox";
    box.value = value;
    box.checked = !asked[key] || asked[key].has(value);
    box.addEventListener("change", () => {
      const on = [...at(key).querySelectorAll("input:checked")].map((b) => b.value);
      asked[key] = on.length === allOf(key).length ? null : new Set(on);
      update();
    });
    label.append(box, ` ${key === "engines" ? data.engines[value] : value}`);
    return label;
  }));
  const address = () => {
    const query = new URLSearchParams({ work: work.key });
    for (const name of NUMBERS) if (asked[name] !== work.stated[name]) query.set(name, asked[name] === null ? "" : asked[name]);
    for (const key of ["engines", "precisions"]) if (asked[key]) query.set(key, [...asked[key]].join(","));
    if (asked.by !== "p95") query.set("by", asked.by);
    return START + query;
  };
  const choose = (key) => {
    work = data.works.find((w) => w.key === key) || data.works[0];
    asked = { ...work.stated, engines: null, precisions: null, by: "p95" };
  };
  const read = () => {
    if (!location.hash.startsWith(START)) return choose(data.works[0].key);
    const query = new URLSearchParams(location.hash.slice(START.length));
    choose(query.get("work"));
    for (const name of NUMBERS) {
      const value = query.has(name) ? usable(name, query.get(name)) : undefined;
      if (value !== undefined && (name !== SHARE || work.scored)) asked[name] = value;
    }
    for (const key of ["engines", "precisions"]) {
      if (query.has(key)) asked[key] = new Set(query.get(key).split(",").filter((v) => allOf(key).includes(v)));
    }
    if (query.get("by") === "p50") asked.by = "p50";
  };
  const show = () => {
    at("work").value = work.key;
    at("says").textContent = `${work.says}. Model: ${work.model}.`;
    at("unit").textContent = `Price per ${work.unit}-hour, USD`;
    at("price").textContent = `Stated: ${work.price_source}.`;
    at("about-floor").textContent = work.about_floor;
    at("floor").disabled = slider("floor").disabled = !work.scored;
    for (const name of NUMBERS) {
      at(name).value = asked[name] === null ? "" : asked[name];
      at(name).removeAttribute("aria-invalid");
      toSlide(name);
    }
    at("by").checked = asked.by === "p50";
    boxes("engines");
    boxes("precisions");
  };
  const update = (keep = true) => {
    const chosen = work.contenders.filter((c) => has("engines", c) && has("precisions", c));
    const rows = chosen.map(answerOf).sort((a, b) => (b.carries || 0) - (a.carries || 0) || ((b.out || [0])[0] - (a.out || [0])[0]));
    drawn = points(chosen);
    at("said").replaceChildren(...said(rows).flatMap(([text, mark]) => (mark ? [text, markOf(mark)] : [text])));
    fill(at("rows"), rows.map(cells));
    at("finding").textContent = findingOf(drawn);
    at("chart").setAttribute("aria-label", `${findingOf(drawn)}. The tables below say the same in numbers.`);
    if (at("levels").open) fill(at("level-rows"), levelLines(drawn));
    draw();
    if (keep) history.replaceState(null, "", address());
  };
  const type = (name) => {
    const value = usable(name, at(name).value);
    at(name).setAttribute("aria-invalid", String(value === undefined));
    if (value === undefined) {
      at("said").textContent = `${at(name).labels[0].textContent}: give a number above zero${name === WHOLE ? ", a whole one" : name === SHARE ? " and up to 100, or none" : ""}.`;
      return;
    }
    asked[name] = value;
    toSlide(name);
    update();
  };
  const slide = (name) => {
    asked[name] = fromSlide(name);
    at(name).value = asked[name] === null ? "" : asked[name];
    at(name).removeAttribute("aria-invalid");
    slider(name).setAttribute("aria-valuetext", asked[name] === null ? "none" : String(asked[name]));
    update();
  };

  for (const machine of new Set(data.works.map((w) => w.machine))) {
    const group = document.createElement("optgroup");
    group.label = machine;
    for (const w of data.works.filter((x) => x.machine === machine)) group.append(new Option(`${w.title} (${w.mark})`, w.key));
    at("work").append(group);
  }
  for (const name of NUMBERS) {
    at(name).addEventListener("input", () => type(name));
    slider(name).addEventListener("input", () => slide(name));
  }
  at("work").addEventListener("change", () => { choose(at("work").value); show(); update(); });
  at("by").addEventListener("change", () => { asked.by = at("by").checked ? "p50" : "p95"; update(); });
  at("reset").addEventListener("click", () => { choose(work.key); show(); update(); });
  at("levels").addEventListener("toggle", () => update(false));
  addEventListener("hashchange", () => { if (location.hash.startsWith(START)) { read(); show(); update(false); } });
  addEventListener("resize", () => chart.setSize(size()));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => chart.redraw());
  read();
  at("off").hidden = true;
  for (const name of ["controls", "picture", "levels"]) at(name).hidden = false;
  show();
  update(false);
  if (location.hash.startsWith(START)) at("said").scrollIntoView();
})();
