// Dialogs that ask before something is done, and short notices of what was done.
//
// Exports:
//   ask(options)  opens a dialog; promise of the answer of run, or null if the user canceled:
//     title, text      text may be an element
//     fields           [{name, label, type, value, help, required, options, rows}]; types: text, number,
//                      json (value parsed), area, select (options: [[value, label]]), checkbox, time
//     reason           adds the field 'reason'. true: the history records it; a text: the help that
//                      says where else it is kept
//     confirm          label of the button, default the title
//     danger           true: the button has the tone of danger
//     typed            a text that the user must type first
//     preview(values)  promise of an element that shows what would happen; the user sees it before
//                      the button can be used
//     run(values)      does it; if it throws, the dialog shows the error and stays
//   logged         that text for changes that only the log records
//   notify(text, tone)  shows a notice for a while: good, bad or quiet
//   Overlays()     draws both; page.js mounts it

import { html, useEffect, useRef, useState } from './lib/htm-preact.js';

let show = () => {};
let addNotice = () => {};

export const logged = 'It is written to the log of the program that serves this page.';

export function ask(options) {
  return new Promise((resolve) => show({ ...options, resolve }));
}

export function notify(text, tone = 'good') {
  addNotice({ text, tone });
}

export function Overlays() {
  const [dialog, setDialog] = useState(null);
  show = setDialog;
  return html`<${Notices} />${dialog && html`<${Dialog} options=${dialog} close=${(answer) => {
    setDialog(null);
    dialog.resolve(answer);
  }} />`}`;
}

const noticeLasts = 6000; // ms

function Notices() {
  const [list, setList] = useState([]);
  const next = useRef(1);
  const drop = (id) => setList((old) => old.filter((each) => each.id !== id));
  addNotice = (notice) => {
    const id = next.current++;
    setList((old) => [...old.slice(-3), { ...notice, id }]);
    setTimeout(() => drop(id), noticeLasts);
  };
  return html`<div class="notices" role="status" aria-live="polite">
    ${list.map((notice) => html`<div key=${notice.id} class=${`notice tone-${notice.tone}`}>${notice.text}
      <button type="button" class="plain" aria-label="Dismiss" onClick=${() => drop(notice.id)}>×</button></div>`)}
  </div>`;
}

function initialValues(fields) {
  return Object.fromEntries(fields.map((field) => [field.name, field.value ?? (field.type === 'checkbox' ? false : '')]));
}

function fieldsOf({ fields = [], reason }) {
  if (!reason) return fields;
  const help = reason === true ? 'It is recorded in the history.' : reason;
  return [...fields, { name: 'reason', label: 'Reason', help }];
}

// The values as the API takes them. Fields that are empty are left out.
function converted(fields, values) {
  const result = {};
  for (const field of fields) {
    const value = values[field.name];
    if (value === '') continue;
    if (field.type === 'number') result[field.name] = Number(value);
    else if (field.type === 'time') result[field.name] = new Date(value).toISOString();
    else if (field.type === 'json') result[field.name] = parsed(field, value);
    else result[field.name] = value;
  }
  return result;
}

function parsed(field, text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw Object.assign(new Error(`${field.label} is not JSON: ${error.message}`), { field: field.name });
  }
}

function Dialog({ options, close }) {
  const fields = fieldsOf(options);
  const element = useRef(null);
  const [values, setValues] = useState(() => initialValues(fields));
  const [typed, setTyped] = useState('');
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const [preview, setPreview] = useState(null);
  useEffect(() => element.current.showModal(), []);
  const change = (name, value) => {
    setValues((old) => ({ ...old, [name]: value }));
    setPreview(null);
  };
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      const answer = converted(fields, values);
      if (options.preview && !preview) setPreview(await options.preview(answer));
      else close(options.run ? (await options.run(answer)) ?? {} : answer);
    } catch (problem) {
      setError(problem);
    }
    setBusy(false);
  };
  const ready = !busy && (!options.typed || typed === options.typed);
  const isLast = !options.preview || preview;
  const label = isLast ? options.confirm ?? options.title : 'Show what would happen';
  return html`<dialog ref=${element} class="dialog" aria-labelledby="dialog-title" onClose=${() => close(null)}>
    <form onSubmit=${submit}>
      <h2 id="dialog-title">${options.title}</h2>
      ${options.text && html`<div class="dialog-text">${options.text}</div>`}
      ${fields.map((field) => html`<${Field} key=${field.name} field=${field} value=${values[field.name]}
        invalid=${error?.field === field.name} onChange=${(value) => change(field.name, value)} />`)}
      ${preview && html`<div class="preview" role="status">${preview}</div>`}
      ${options.typed && html`<label class="field"><span>Type <strong>${options.typed}</strong> to confirm</span>
        <input value=${typed} autocomplete="off" onInput=${(event) => setTyped(event.target.value)} /></label>`}
      ${error && html`<div class="notice tone-bad" role="alert">${error.message}
        ${error.outcome === 'unknown' ? ' The outcome is unknown: look before you repeat it.' : ''}</div>`}
      <div class="dialog-buttons">
        <button type="button" onClick=${() => close(null)}>Back</button>
        <button type="submit" class=${options.danger ? 'primary danger' : 'primary'} disabled=${!ready} data-action=${isLast ? 'confirm' : undefined}>
          ${busy ? 'Working…' : label}</button>
      </div>
    </form>
  </dialog>`;
}

function Field({ field, value, invalid, onChange }) {
  const id = `field-${field.name}`;
  const help = field.help && `${id}-help`;
  const common = { id, required: field.required, 'aria-describedby': help, 'aria-invalid': invalid ? 'true' : undefined };
  if (field.type === 'checkbox') {
    return html`<div class="field"><label class="check"><input type="checkbox" ...${common} checked=${value}
      onChange=${(event) => onChange(event.target.checked)} /> ${field.label}</label>
      ${help && html`<small id=${help}>${field.help}</small>`}</div>`;
  }
  return html`<div class="field"><label for=${id}>${field.label}${field.required ? '' : html` <small>optional</small>`}</label>
    <${Input} field=${field} value=${value} common=${common} onChange=${(event) => onChange(event.target.value)} />
    ${help && html`<small id=${help}>${field.help}</small>`}</div>`;
}

const inputTypes = { number: 'number', time: 'datetime-local' };

function Input({ field, value, common, onChange }) {
  if (field.type === 'select') {
    return html`<select ...${common} value=${value} onChange=${onChange}>
      ${field.options.map(([each, label]) => html`<option key=${each} value=${each}>${label}</option>`)}</select>`;
  }
  if (field.type === 'area' || field.type === 'json') {
    return html`<textarea ...${common} class=${field.type === 'json' ? 'code' : ''} rows=${field.rows ?? 4} spellcheck="false"
      value=${value} onInput=${onChange}></textarea>`;
  }
  return html`<input ...${common} type=${inputTypes[field.type] ?? 'text'} step=${field.type === 'time' ? 1 : 'any'}
    autocomplete="off" value=${value} onInput=${onChange} />`;
}
