"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const SVG = "http://www.w3.org/2000/svg";
  const HEIGHT = 176, LEFT = 44, RIGHT = 10, TOP = 10, BOTTOM = 24;
  const hidden = new Set();  // groups that the legend has switched off
  const several = data.groups.length > 1;
  let epoch = null, active = null;  // where the line stands, and in which panel it is moved

  const make = (name, attributes = {}, inside = []) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...[].concat(inside));
    return element;
  };
  const draw = (name, attributes) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };
  const hue = (group) => `--light:${group.light};--dark:${group.dark}`;
  const inHue = (name, group, kind, attributes) => draw(name, { class: `${kind} hue`, style: hue(group), ...attributes });

  const bare = (value, unit) => {
    const size = Math.abs(value);
    if (unit === "%") return value.toFixed(1);
    return size !== 0 && (size < 0.001 || size >= 1e5) ? value.toExponential(2) : String(Number(value.toPrecision(4)));
  };
  const said = (value, unit, error = null) => `${bare(value, unit)}${error === null ? "" : ` ± ${bare(error, unit)}`}${unit ? ` ${unit}` : ""}`;

  // Ticks at round steps: these numbers times a power of ten.
  const ticks = (low, high, wanted, round = [1, 2, 2.5, 5, 10]) => {
    const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
    const step = round.map((each) => each * power).find((each) => each >= rough);
    const found = [];
    for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-6; at += step) found.push(Math.abs(at) < step * 1e-6 ? 0 : at);
    return found;
  };
  const bounds = (panel) => {
    const values = panel.lines.flatMap((line) => [...line.y.map((y, at) => y - (line.e ? line.e[at] : 0)), ...line.y.map((y, at) => y + (line.e ? line.e[at] : 0)), ...(line.singles || []).flatMap((one) => one.y)]);
    let low = Math.min(...values), high = Math.max(...values);
    if (panel.log) return [Math.min(...values.filter((one) => one > 0)), high];
    if (low >= 0 && low < 0.5 * high) low = 0;
    if (low === high) { low = low >= 0 ? 0 : low - 1; high = high === 0 ? 1 : high * (high > 0 ? 1.25 : 1); }
    const gap = 0.06 * (high - low);
    return [low === 0 ? 0 : low - gap, panel.unit === "%" ? Math.min(100, high + gap) : high + gap];
  };
  const near = (xs, at) => {
    let best = 0;
    for (let i = 1; i < xs.length; i++) if (Math.abs(xs[i] - at) < Math.abs(xs[best] - at)) best = i;
    return best;
  };

  const everyX = data.panels.flatMap((panel) => panel.lines.flatMap((line) => [line, ...(line.singles || [])].flatMap((one) => one.x)));
  const first = Math.min(...everyX), last = Math.max(...everyX);

  class Plot {
    constructor(panel, number) {
      this.panel = panel;
      this.xs = [...new Set(panel.lines.flatMap((line) => line.x))].sort((a, b) => a - b);
      this.output = make("output");
      const heading = make("h3", { id: `panel-${number}` }, [make("span", {}, panel.title), this.output]);
      this.box = make("div", {
        class: "plot", tabindex: 0, role: "slider", "aria-labelledby": `panel-${number}`, "aria-roledescription": "curve",
        "aria-valuemin": this.xs[0], "aria-valuemax": this.xs.at(-1), "aria-valuenow": this.xs.at(-1), "aria-valuetext": `epoch ${this.xs.at(-1)}`,
      });
      this.tip = make("div", { class: "tip", hidden: "" });
      this.figure = make("figure", { class: "panel" }, [heading, make("p", { class: "about" }, panel.about), this.box]);
      this.box.addEventListener("pointermove", (event) => this.point(event));
      this.box.addEventListener("pointerdown", (event) => this.point(event));
      this.box.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") move(null, null); });
      this.box.addEventListener("keydown", (event) => this.key(event));
      this.box.addEventListener("focus", () => { if (this.box.matches(":focus-visible")) this.tell(epoch ?? this.xs.at(-1)); });
      this.box.addEventListener("blur", () => { if (active === this) move(null, null); });
    }
    point(event) {
      const at = this.epochAt(event.clientX - this.box.getBoundingClientRect().left);
      move(this.xs[near(this.xs, at)], this);
    }
    key(event) {
      const here = epoch === null ? this.xs.length - 1 : near(this.xs, epoch);
      const steps = { ArrowLeft: here - 1, ArrowDown: here - 1, ArrowRight: here + 1, ArrowUp: here + 1, PageDown: here - 10, PageUp: here + 10, Home: 0, End: this.xs.length - 1 };
      if (event.key === "Escape") { move(null, null); return; }
      if (!(event.key in steps)) return;
      event.preventDefault();
      this.tell(this.xs[Math.max(0, Math.min(this.xs.length - 1, steps[event.key]))]);
    }
    tell(at) {
      move(at, this);
      const parts = this.values(at).map((one) => (several ? `${one.group.label} ` : "") + said(one.y, this.panel.unit, one.e) + one.of);
      document.getElementById("told").textContent = `Epoch ${at}, ${this.panel.title}: ${parts.join("; ")}`;
    }
    // The values of the groups that are shown, at an epoch or recorded close to it: what was not measured is not told.
    values(at, close = Math.max(2, 0.02 * (last - first))) {
      const found = [];
      for (const line of this.panel.lines) {
        const i = near(line.x, at);
        if (hidden.has(line.group) || Math.abs(line.x[i] - at) > close) continue;
        const group = data.groups[line.group], n = line.n ? line.n[i] : group.seeds.length;
        found.push({ group, x: line.x[i], y: line.y[i], e: line.e && n > 1 ? line.e[i] : null, of: n < group.seeds.length ? ` (${n} of ${group.seeds.length} seeds)` : "" });
      }
      return found;
    }
    epochAt(pixel) { return first + (pixel - LEFT) / Math.max(1, this.width - LEFT - RIGHT) * (last - first); }
    x(at) { return last === first ? LEFT + (this.width - LEFT - RIGHT) / 2 : LEFT + (at - first) / (last - first) * (this.width - LEFT - RIGHT); }
    y(value) {
      const [low, high] = this.bounds;
      const share = this.panel.log ? Math.log(Math.max(value, low) / low) / Math.log(high / low) : (value - low) / (high - low);
      return TOP + (1 - Math.max(0, Math.min(1, share))) * (HEIGHT - TOP - BOTTOM);
    }
    path(xs, ys) { return xs.map((x, i) => `${i ? "L" : "M"}${this.x(x).toFixed(1)} ${this.y(ys[i]).toFixed(1)}`).join(""); }
    draw() {
      this.width = Math.max(160, this.box.clientWidth || this.figure.clientWidth - 30);
      this.bounds = bounds(this.panel);
      const svg = draw("svg", { viewBox: `0 0 ${this.width} ${HEIGHT}`, height: HEIGHT, "aria-hidden": "true" });
      const [low, high] = this.bounds;
      const marks = this.panel.log ? powers(low, high) : ticks(low, high, 4.5);
      for (const value of marks) {
        const y = this.y(value);
        svg.append(draw("line", { class: "grid", x1: LEFT, x2: this.width - RIGHT, y1: y, y2: y }));
        const text = draw("text", { class: "tick", x: LEFT - 7, y: y + 4, "text-anchor": "end" });
        text.textContent = said(value, "").replace("e+", "e");
        svg.append(text);
      }
      const epochs = last - first < 2 ? [...new Set([first, last])] : ticks(first, last, Math.max(2, Math.min(6, last - first, this.width / 70)), [1, 2, 5, 10]).filter((one) => Number.isInteger(one));
      for (const at of epochs) {
        const text = draw("text", { class: "tick", x: this.x(at), y: HEIGHT - 6, "text-anchor": "middle" });
        text.textContent = at;
        svg.append(text);
      }
      const axis = draw("text", { class: "tick", x: LEFT - 7, y: HEIGHT - 6, "text-anchor": "end" });
      axis.textContent = "epoch";
      svg.append(axis);
      svg.append(draw("line", { class: "base", x1: LEFT, x2: this.width - RIGHT, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM }));
      for (const end of data.stages) svg.append(draw("line", { class: "stage", x1: this.x(end + 0.5), x2: this.x(end + 0.5), y1: TOP, y2: HEIGHT - BOTTOM }));
      const shown = this.panel.lines.filter((line) => !hidden.has(line.group));
      for (const line of shown) {
        const group = data.groups[line.group];
        for (const one of line.singles || []) svg.append(inHue("path", group, "single", { d: this.path(one.x, one.y) }));
        if (line.e) {
          const up = line.y.map((y, i) => y + line.e[i]), down = line.y.map((y, i) => y - line.e[i]);
          svg.append(inHue("path", group, "band", { d: `${this.path(line.x, up)}${this.path([...line.x].reverse(), down.reverse()).replace("M", "L")}Z` }));
        }
        svg.append(inHue("path", group, "line", { d: this.path(line.x, line.y), "stroke-width": group.width + 0.5, "stroke-dasharray": group.dash || "none" }));
        if (line.x.length <= 12) line.x.forEach((x, i) => svg.append(inHue("circle", group, "dot", { cx: this.x(x), cy: this.y(line.y[i]), r: 3.4 })));
      }
      for (const line of shown) {
        const group = data.groups[line.group];
        if (group.seeds.length > 1) continue;
        for (const at of group.chosen) {
          const i = line.x.indexOf(at);
          if (i >= 0) svg.append(inHue("circle", group, "ring", { cx: this.x(at), cy: this.y(line.y[i]), r: 3.6 }));
        }
      }
      this.over = draw("g", {});
      svg.append(this.over);
      this.box.replaceChildren(svg, this.tip);
      this.update();
    }
    update() {
      this.over.replaceChildren();
      this.tip.hidden = true;
      const at = epoch ?? this.xs.at(-1);
      const values = this.values(at);
      if (!several) {
        const [one] = this.values(at, Infinity);
        this.output.replaceChildren(...(one ? [make("small", {}, epoch === null ? "last" : `epoch ${one.x}`), said(one.y, this.panel.unit)] : []));
      }
      this.box.setAttribute("aria-valuenow", this.xs[near(this.xs, at)]);
      this.box.setAttribute("aria-valuetext", `epoch ${this.xs[near(this.xs, at)]}`);
      if (epoch === null) return;
      const x = this.x(epoch);
      this.over.append(draw("line", { class: "hair", x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM }));
      for (const one of values) this.over.append(inHue("circle", one.group, "dot", { cx: this.x(one.x), cy: this.y(one.y), r: 4.2 }));
      if (active !== this) return;
      const rows = [...values].sort((a, b) => b.y - a.y).map((one) => {
        const swatch = draw("svg", { class: "swatch hue", style: hue(one.group), viewBox: "0 0 24 10", width: 18, height: 8 });
        swatch.append(draw("line", { x1: 1, y1: 5, x2: 23, y2: 5, "stroke-width": 3, "stroke-dasharray": one.group.dash || "none" }));
        const words = `${several ? one.group.label : ""}${one.x === epoch ? "" : ` (epoch ${one.x})`}${one.of}`;
        const named = words ? [make("span", {}, words)] : [];
        return make("div", {}, [swatch, ...named, make("b", {}, said(one.y, this.panel.unit, one.e))]);
      });
      this.tip.replaceChildren(make("b", {}, `epoch ${epoch}`), ...rows);
      this.tip.hidden = false;
      const room = this.tip.offsetWidth;
      this.tip.style.left = `${Math.max(0, Math.min(this.width - room, x + 12 + room > this.width ? x - 12 - room : x + 12))}px`;
    }
  }
  const powers = (low, high) => {
    const found = [];
    for (let power = Math.ceil(Math.log10(low) - 1e-9); power <= Math.log10(high) + 1e-9; power++) found.push(10 ** power);
    return found.length > 1 ? found.filter((_, i) => i % Math.ceil(found.length / 5) === 0) : [low, high];
  };
  const move = (at, where) => {
    epoch = at;
    active = where;
    for (const plot of plots) plot.update();
  };

  const place = document.getElementById("panels");
  const plots = place ? data.panels.map((panel, number) => new Plot(panel, number)) : [];
  if (place) {
    place.append(...plots.map((plot) => plot.figure));
    let wide = 0;
    const redraw = () => { wide = place.clientWidth; for (const plot of plots) plot.draw(); };
    redraw();
    new ResizeObserver(() => { if (place.clientWidth !== wide) redraw(); }).observe(place);
    for (const key of document.querySelectorAll(".key")) {
      key.addEventListener("click", () => {
        const group = Number(key.dataset.group), on = hidden.has(group);
        if (on) hidden.delete(group); else hidden.add(group);
        key.setAttribute("aria-pressed", String(on));
        redraw();
      });
    }
  }

  // Images: which kind is shown.
  for (const button of document.querySelectorAll(".filters button")) {
    button.addEventListener("click", () => {
      for (const other of button.parentElement.children) other.setAttribute("aria-pressed", String(other === button));
      const wanted = button.dataset.filter;
      for (const card of button.closest(".one").querySelectorAll(".card")) card.hidden = wanted !== "all" && card.dataset.kind !== wanted;
    });
  }

  // Of several runs one is shown in detail.
  const which = document.getElementById("which");
  if (which) {
    const choose = () => { for (const one of document.querySelectorAll(".one")) one.hidden = one.dataset.run !== which.value; };
    which.addEventListener("change", choose);
    choose();
  }

  // Commands to the clipboard; where there is none, they are selected.
  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(code);
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }

  // Light, dark, or as the system has it; a browser that keeps nothing forgets the choice.
  const schemes = ["system", "light", "dark"];
  const remember = (value) => { try { return value === undefined ? localStorage.getItem("atcl-theme") : localStorage.setItem("atcl-theme", value); } catch { return null; } };
  const paint = (scheme) => {
    if (scheme === "system") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = scheme;
    document.getElementById("scheme").textContent = scheme;
  };
  let scheme = schemes.includes(remember()) ? remember() : "system";
  paint(scheme);
  document.getElementById("theme").addEventListener("click", () => {
    scheme = schemes[(schemes.indexOf(scheme) + 1) % schemes.length];
    remember(scheme);
    paint(scheme);
  });
})();
