// The page: a state, its controls, and a view that is drawn anew from compute(state).

const STRINGS = JSON.parse(document.getElementById("strings").textContent);

const PRESETS = {
  step2: { values: [0.31, -1.27, 0.635, 0.004, -0.5, 0.9, 0, -0.085], reach: 1.5, outlier: 12.7 },
  close: { values: [10, 9.96, 0, -12.7, 3, -2, 5, 1], reach: 15, outlier: 127 },
  far: { values: [12.7, 0.04, -0.03, 0.02, 0, -0.04, 0.03, 0.01], reach: 15, outlier: 127 },
};

const state = { values: [], outlier: null, rounding: "half_even", granularity: "one" };
let reach = 1.5;
let planted = 12.7;

const element = (id) => document.getElementById(id);

function shown(number) {
  if (!Number.isFinite(number)) return "∞";
  if (number === 0) return "0";
  const size = Math.abs(number);
  if (size >= 1e6 || size < 1e-4) return number.toExponential(2);
  return String(Number(number.toPrecision(size < 1 ? 3 : 4)));
}

function read(input, fallback) {
  const number = Number.parseFloat(input.value);
  return Number.isFinite(number) && Math.abs(number) <= 1e9 ? number : fallback;
}

// A slider and a number field that show one value: whichever is touched, the other follows.
function couple(slider, field, get, set) {
  slider.addEventListener("input", () => {
    set(read(slider, get()));
    field.value = String(get());
    draw();
  });
  field.addEventListener("input", () => {
    set(read(field, get()));
    slider.value = String(get());
    draw();
  });
  field.addEventListener("change", () => {
    field.value = String(get());
  });
}

function buildRows() {
  const template = element("value-row");
  for (let index = 0; index < 8; index += 1) {
    const row = template.content.firstElementChild.cloneNode(true);
    const name = STRINGS.value.replace("{n}", String(index + 1));
    row.querySelector(".name").textContent = `x${index + 1}`;
    const slider = row.querySelector("input[type=range]");
    const field = row.querySelector("input[type=number]");
    slider.setAttribute("aria-label", name);
    field.setAttribute("aria-label", name);
    couple(slider, field, () => state.values[index], (x) => { state.values[index] = x; });
    element("values").append(row);
  }
}

function load(name) {
  const preset = PRESETS[name];
  state.values = [...preset.values];
  reach = preset.reach;
  planted = preset.outlier;
  if (state.outlier !== null) state.outlier = planted;
  document.querySelectorAll("#values .row").forEach((row, index) => {
    for (const input of row.querySelectorAll("input")) {
      if (input.type === "range") {
        input.min = String(-reach);
        input.max = String(reach);
        input.step = reach > 2 ? "0.01" : "0.001";
      }
      input.value = String(state.values[index]);
    }
  });
  const slider = element("outlier-slider");
  slider.min = String(-100 * reach);
  slider.max = String(100 * reach);
  slider.step = String(reach / 15);
  slider.value = element("outlier-number").value = String(planted);
  for (const button of document.querySelectorAll("[data-preset]")) {
    button.setAttribute("aria-pressed", String(button.dataset.preset === name));
  }
  draw();
}

function dot(position, label, kind) {
  const mark = document.createElement("span");
  mark.className = `dot ${kind}`;
  mark.style.left = `${(50 + (position / 127) * 48).toFixed(3)}%`;
  mark.textContent = label;
  return mark;
}

function drawStrips(result) {
  const strips = element("strips");
  strips.replaceChildren();
  const size = GROUP_SIZES[state.granularity];
  result.scales.forEach((scale, group) => {
    const strip = document.createElement("div");
    strip.className = "strip";
    const line = document.createElement("div");
    line.className = "line";
    for (const code of [-127, 0, 127]) {
      const tick = document.createElement("span");
      tick.className = "tick";
      tick.style.left = `${50 + (code / 127) * 48}%`;
      tick.textContent = String(code);
      line.append(tick);
    }
    for (let index = group * size; index < (group + 1) * size; index += 1) {
      line.append(dot(result.codes[index], "", "own"));
    }
    if (state.outlier !== null && group === result.scales.length - 1) {
      line.append(dot(codeOf(state.outlier, scale, state.rounding), "", "planted"));
    }
    const caption = document.createElement("p");
    const from = group * size + 1;
    const names = size === 8 ? "x1 – x8" : `x${from} – x${from + size - 1}`;
    caption.textContent = `${names}: ${STRINGS.scale} ${shown(scale)}`;
    strip.append(caption, line);
    strips.append(strip);
  });
}

function drawProbabilities(result) {
  const rows = result.right.map((right, index) => {
    const row = document.createElement("div");
    row.className = "bars";
    const name = document.createElement("span");
    name.className = "name";
    name.textContent = `x${index + 1}`;
    const bars = document.createElement("div");
    for (const [kind, p] of [["right", right], ["moved", result.moved[index]]]) {
      const bar = document.createElement("div");
      bar.className = `bar ${kind}`;
      bar.style.width = `${(100 * p).toFixed(2)}%`;
      bars.append(bar);
    }
    const text = document.createElement("span");
    text.className = "numbers";
    text.textContent = `${right.toFixed(4)} → ${result.moved[index].toFixed(4)}`;
    row.append(name, bars, text);
    return row;
  });
  element("probabilities").replaceChildren(...rows);
}

function fill(template, fields) {
  return template.replace(/\{(\w+)\}/g, (_, key) => fields[key]);
}

function draw() {
  const result = compute(state);
  document.querySelectorAll("#values .row").forEach((row, index) => {
    row.querySelector(".quotient").textContent = shown(result.quotients[index]);
    row.querySelector(".code").textContent = String(result.codes[index]);
    row.querySelector(".restored").textContent = shown(result.restored[index]);
  });
  drawStrips(result);
  drawProbabilities(result);
  element("summary").textContent = fill(STRINGS.summary, {
    used: String(result.used),
    largest: shown(result.largestError),
    relative: shown(result.errorIn),
  });
  const gain = result.errorIn === 0 ? 0 : result.errorOut / result.errorIn;
  const verdict = result.errorIn === 0 ? STRINGS.exact : gain > 1 ? STRINGS.grows : STRINGS.buried;
  element("softmax-summary").textContent = fill(verdict, {
    error_in: shown(result.errorIn),
    error_out: shown(result.errorOut),
    factor: shown(gain > 1 ? gain : 1 / gain),
  });
}

function start() {
  buildRows();
  const box = element("outlier-on");
  const slider = element("outlier-slider");
  const field = element("outlier-number");
  const toggle = () => {
    state.outlier = box.checked ? planted : null;
    slider.disabled = field.disabled = !box.checked;
    draw();
  };
  couple(slider, field, () => planted, (x) => {
    planted = x;
    if (box.checked) state.outlier = x;
  });
  box.addEventListener("change", toggle);
  for (const name of ["rounding", "granularity"]) {
    element(name).addEventListener("change", (event) => {
      state[name] = event.target.value;
      draw();
    });
  }
  for (const button of document.querySelectorAll("[data-preset]")) {
    button.addEventListener("click", () => load(button.dataset.preset));
  }
  slider.disabled = field.disabled = true;
  load("step2");
}

start();
