// Where the timeline draws what, as pure functions of times and widths.
//
// Exports:
//   fit(bounds), zoom(view, bounds, factor, at), pan(view, bounds, fraction)   new views
//   position(time, view)             0 at the left edge, 1 at the right one
//   timeAt(fraction, view)           the inverse
//   place(segments, view)            the visible segments, with left and width in percent
//   ticks(view, start, width)        the lines of the scale, with labels relative to start
//   offsetLabel(ms, step)            a time relative to the start, as precise as the step
//   binMarks(marks, view, width)     marks joined where they would overlap
//   density(rows, bounds, columns, now)   how many operations are open in each column, and where failures are
//   firstVisible(rows, view, now)    the index of the first row with a part in the view, or -1
//   windowOf(top, height, rowHeight, count)   which rows of a long list to draw
//
// A view is {start, end} in Unix milliseconds.

const shortest = 0.02; // milliseconds that the narrowest view spans
const longest = 1.02; // the widest view, as a multiple of what there is to see

/** The view of all. */
export function fit(bounds) {
  const span = bounds.end - bounds.start;
  return { start: bounds.start - span * 0.005, end: bounds.end + span * 0.015 };
}

/** Zooms by a factor, below 1 to see more detail, and keeps the moment `at` where it is. */
export function zoom(view, bounds, factor, at = (view.start + view.end) / 2) {
  const whole = fit(bounds);
  const span = Math.min(Math.max((view.end - view.start) * factor, shortest), whole.end - whole.start);
  const left = (at - view.start) / (view.end - view.start);
  return clamp({ start: at - span * left, end: at + span * (1 - left) }, whole);
}

/** Moves by a fraction of what is visible. */
export function pan(view, bounds, fraction) {
  const by = (view.end - view.start) * fraction;
  return clamp({ start: view.start + by, end: view.end + by }, fit(bounds));
}

/** Returns whether a view shows all. */
export function showsAll(view, bounds) {
  return (view.end - view.start) * longest >= fit(bounds).end - fit(bounds).start;
}

function clamp(view, whole) {
  const span = Math.min(view.end - view.start, whole.end - whole.start);
  const start = Math.min(Math.max(view.start, whole.start), whole.end - span);
  return { start, end: start + span };
}

export function position(time, view) {
  return (time - view.start) / (view.end - view.start);
}

export function timeAt(fraction, view) {
  return view.start + fraction * (view.end - view.start);
}

/** Returns the visible segments with left and width in percent of the view. */
export function place(segments, view) {
  const placed = [];
  for (const segment of segments) {
    if (segment.to < view.start || segment.from > view.end) {
      continue;
    }
    const left = Math.max(0, position(segment.from, view));
    const right = Math.min(1, position(segment.to, view));
    placed.push({ ...segment, left: left * 100, width: (right - left) * 100 });
  }
  return placed;
}

const second = 1000;
const minute = 60 * second;
const hour = 60 * minute;
const day = 24 * hour;
const longSteps = [1, 2, 5, 10, 15, 30].map((n) => n * second)
  .concat([1, 2, 5, 10, 15, 30].map((n) => n * minute), [1, 2, 3, 6, 12].map((n) => n * hour), [1, 2, 7, 14, 30, 90, 365].map((n) => n * day));

function stepFor(span, count) {
  const wanted = span / Math.max(1, count);
  if (wanted >= second) {
    return longSteps.find((step) => step >= wanted) || longSteps[longSteps.length - 1];
  }
  const power = 10 ** Math.floor(Math.log10(wanted));
  return [1, 2, 5, 10].map((n) => n * power).find((step) => step >= wanted * 0.999);
}

/** Returns the lines of the scale, at most about one for 110 pixels. */
export function ticks(view, start, width) {
  const step = stepFor(view.end - view.start, Math.floor(width / 110));
  const lines = [];
  for (let n = Math.ceil((view.start - start) / step); start + n * step <= view.end && lines.length < 100; n++) {
    lines.push({ left: position(start + n * step, view) * 100, label: offsetLabel(n * step, step) });
  }
  return lines;
}

/** Formats a time relative to the start of the run; the step says how precisely. */
export function offsetLabel(ms, step) {
  const sign = ms < 0 ? '−' : '+';
  const size = Math.abs(ms);
  if (step >= minute) {
    return sign + parts(Math.round(size / minute) * minute, [[day, 'd'], [hour, 'h'], [minute, 'm']]);
  }
  if (step >= second) {
    return sign + parts(Math.round(size / second) * second, [[day, 'd'], [hour, 'h'], [minute, 'm'], [second, 's']]);
  }
  const decimals = Math.max(0, -Math.floor(Math.log10(step / second) + 1e-9));
  if (size >= minute) {
    const seconds = ((size % minute) / second).toFixed(Math.min(decimals, 6));
    return `${sign}${parts(Math.floor(size / minute) * minute, [[day, 'd'], [hour, 'h'], [minute, 'm']])} ${seconds} s`;
  }
  if (size >= second) {
    return `${sign}${(size / second).toFixed(Math.min(decimals, 6))} s`;
  }
  return `${sign}${size.toFixed(Math.min(Math.max(0, decimals - 3), 3))} ms`;
}

function parts(ms, units) {
  const texts = [];
  let rest = ms;
  for (const [size, name] of units) {
    const n = Math.floor(rest / size);
    if (n > 0) {
      texts.push(`${n} ${name}`);
    }
    rest -= n * size;
  }
  return texts.join(' ') || `0 ${units[units.length - 1][1]}`;
}

/** Joins marks that would be less than `gap` pixels apart. */
export function binMarks(marks, view, width, gap = 9) {
  const bins = new Map();
  for (const mark of marks) {
    const x = position(mark.time, view);
    if (x < 0 || x > 1) {
      continue;
    }
    const column = Math.floor((x * width) / gap);
    const bin = bins.get(column);
    if (bin) {
      bin.marks++;
      bin.kind = bin.kind === mark.kind ? bin.kind : 'several';
      bin.last = mark;
    } else {
      bins.set(column, { left: x * 100, marks: 1, kind: mark.kind, first: mark, last: mark });
    }
  }
  return [...bins.values()];
}

/** Returns {open, failed, most}: for each column how many operations are open, and whether one fails in it. */
export function density(rows, bounds, columns, now) {
  const change = new Float64Array(columns + 1);
  const failed = new Uint8Array(columns);
  const column = (time) => Math.min(columns - 1, Math.max(0, Math.floor(((time - bounds.start) / (bounds.end - bounds.start)) * columns)));
  for (const row of rows) {
    const end = row.to === null ? now : row.to;
    change[column(row.from)]++;
    change[column(end) + 1]--;
    for (const attempt of row.attempts) {
      if (attempt.error && attempt.to !== null) {
        failed[column(attempt.to)] = 1;
      }
    }
    if (row.outcome === 'failed' || row.outcome === 'rejected') {
      failed[column(end)] = 1;
    }
  }
  const open = new Float64Array(columns);
  let sum = 0;
  let most = 0;
  for (let i = 0; i < columns; i++) {
    sum += change[i];
    open[i] = sum;
    most = Math.max(most, sum);
  }
  return { open, failed, most };
}

/** Returns the index of the first row with a part in the view, or -1. */
export function firstVisible(rows, view, now) {
  return rows.findIndex(({ row }) => row && row.from <= view.end && (row.to === null ? now : row.to) >= view.start);
}

/** Returns the rows [first, last) of a list to draw, with some more at both ends. */
export function windowOf(top, height, rowHeight, count, more = 8) {
  const first = Math.max(0, Math.floor(top / rowHeight) - more);
  return { first: Math.min(first, count), last: Math.min(count, Math.ceil((top + height) / rowHeight) + more) };
}
