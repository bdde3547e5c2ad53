// The arithmetic of the page: one state in, everything that is shown out. No document, no state.
// The operations and their order are those of the course: divide, round, clip, multiply.

const ROUNDINGS = {
  half_even(x) {
    const below = Math.floor(x);
    const rest = x - below; // exact for every quotient that is not a whole number already
    if (rest !== 0.5) return rest < 0.5 ? below : below + 1;
    return below % 2 === 0 ? below : below + 1;
  },
  half_away(x) {
    const below = Math.floor(Math.abs(x));
    const nearest = Math.abs(x) - below >= 0.5 ? below + 1 : below;
    return x < 0 ? -nearest : nearest;
  },
  half_up(x) {
    const below = Math.floor(x);
    return x - below >= 0.5 ? below + 1 : below;
  },
  toward_zero(x) {
    return Math.trunc(x);
  },
};

// How many of the eight values share a scale.
const GROUP_SIZES = { one: 8, rows: 4, pairs: 2 };

function largestMagnitude(values) {
  return values.reduce((largest, x) => Math.max(largest, Math.abs(x)), 0);
}

function scaleOf(values) {
  const scale = largestMagnitude(values) / 127;
  return scale === 0 ? 1 : scale;
}

function codeOf(x, scale, rounding) {
  const code = Math.min(127, Math.max(-127, ROUNDINGS[rounding](x / scale)));
  return code === 0 ? 0 : code; // never minus zero
}

function softmax(scores) {
  const largest = Math.max(...scores);
  const powers = scores.map((s) => Math.exp(s - largest));
  const total = powers.reduce((sum, p) => sum + p, 0);
  return powers.map((p) => p / total);
}

function relativeError(values, restored) {
  const unit = largestMagnitude([...values, ...restored]); // squares of tiny numbers would be 0
  if (unit === 0) return 0;
  const noise = values.reduce((sum, x, i) => sum + ((x - restored[i]) / unit) ** 2, 0);
  const size = values.reduce((sum, x) => sum + (x / unit) ** 2, 0);
  if (noise === 0) return 0;
  return size === 0 ? Infinity : Math.sqrt(noise / size);
}

// state: { values: eight numbers, outlier: a number or null, rounding, granularity }
// The outlier belongs to the group of the last value, and takes part in its scale only.
function compute(state) {
  const size = GROUP_SIZES[state.granularity];
  const scales = [];
  const codes = [];
  let used = 0;
  for (let start = 0; start < state.values.length; start += size) {
    const group = state.values.slice(start, start + size);
    const last = start + size >= state.values.length;
    const scale = scaleOf(last && state.outlier !== null ? [...group, state.outlier] : group);
    const own = group.map((x) => codeOf(x, scale, state.rounding));
    scales.push(scale);
    codes.push(...own);
    used += new Set(own).size;
  }
  const scaleAt = (index) => scales[Math.floor(index / size)];
  const restored = codes.map((code, index) => code * scaleAt(index));
  const right = softmax(state.values);
  const moved = softmax(restored);
  return {
    scales,
    codes,
    restored,
    used,
    quotients: state.values.map((x, index) => x / scaleAt(index)),
    largestError: state.values.reduce((e, x, i) => Math.max(e, Math.abs(x - restored[i])), 0),
    right,
    moved,
    errorIn: relativeError(state.values, restored),
    errorOut: relativeError(right, moved),
  };
}
