// Draws a page: its content, the tools of the header, dialogs and keys.
//
// Exports:
//   mount(Page)   draws the component Page into the shell, with the properties {id, session}
//   useParam(name, fallback)  hook: [value, set] of a parameter of the page's URL, so that what is
//                 shown can be shared and Back works; set(value, {replace: true}) adds no step

import { html, render, useEffect, useState } from './lib/htm-preact.js';
import { session } from './api.js';
import { ErrorNotice, Menu } from './basics.js';
import { Overlays } from './dialog.js';
import { setServerTime } from './format.js';
import { Keys } from './keys.js';
import { useConnection } from './live.js';
import { choices, setPref, usePrefs } from './prefs.js';

export function mount(Page) {
  const main = document.getElementById('page');
  main.replaceChildren();
  render(html`<${Root} page=${Page} id=${main.dataset.id} />`, main);
  render(html`<${Tools} />`, document.getElementById('tools'));
  render(html`<${Overlays} /><${Keys} />`, document.getElementById('overlays'));
}

function Root({ page, id }) {
  const [state, setState] = useState({ session: null, error: null });
  const load = () => session().then((answer) => {
    setServerTime(answer.time);
    setState({ session: answer, error: null });
  }, (error) => setState({ session: null, error }));
  useEffect(() => {
    load();
  }, []);
  usePrefs(); // redraws all times
  if (state.error) return html`<h1>Tenuto</h1><${ErrorNotice} error=${state.error} retry=${load} />`;
  if (!state.session) return html`<p class="loading" role="status">Loading…</p>`;
  return html`<${page} id=${id} session=${state.session} />`;
}

const connectionTexts = { connecting: 'Connecting', live: 'Live', lost: 'Not live' };
const connectionHelp = {
  connecting: 'The stream of changes is being opened.',
  live: 'Changes are shown as they happen.',
  lost: 'The stream of changes is broken. The page asks again every 10 s.',
};

function Tools() {
  const connection = useConnection();
  const [user, setUser] = useState(null);
  const { zone } = usePrefs();
  useEffect(() => {
    session().then(setUser, () => {});
  }, []);
  return html`
    ${connection !== 'none' && html`<span class=${`connection ${connection}`} role="status"
      title=${connectionHelp[connection]}>${connectionTexts[connection]}</span>`}
    ${zone === 'utc' && html`<span class="user" title="The zone of all times">UTC</span>`}
    ${user?.read_only && html`<span class="badge tone-quiet" title="This page changes nothing.">read-only</span>`}
    ${user?.principal && html`<span class="user" title="The principal of your calls">${user.principal}</span>`}
    <${Menu} label="View"><${Choices} /><//>`;
}

const choiceLabels = { theme: 'Colors', zone: 'Zone', times: 'Times' };

function Choices() {
  const chosen = usePrefs();
  return Object.entries(choices).map(([name, values]) => html`<fieldset key=${name}><legend>${choiceLabels[name]}</legend>
    ${values.map(([value, label]) => html`<label class="check" key=${value}><input type="radio" name=${`pref-${name}`} value=${value}
      checked=${chosen[name] === value} onChange=${() => setPref(name, value)} /> ${label}</label>`)}
  </fieldset>`);
}

function readParam(name, fallback) {
  return new URLSearchParams(location.search).get(name) ?? fallback;
}

export function useParam(name, fallback = '') {
  const [value, setValue] = useState(() => readParam(name, fallback));
  useEffect(() => {
    const listener = () => setValue(readParam(name, fallback));
    addEventListener('popstate', listener);
    return () => removeEventListener('popstate', listener);
  }, [name]);
  const set = (next, { replace = false } = {}) => {
    setValue(next);
    const url = new URL(location.href);
    if (next === fallback) url.searchParams.delete(name);
    else url.searchParams.set(name, next);
    if (url.href === location.href) return;
    history[replace ? 'replaceState' : 'pushState'](null, '', url);
  };
  return [value, set];
}
