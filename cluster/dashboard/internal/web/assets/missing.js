// The page of an address that has none.

import { html } from './lib/htm-preact.js';
import { pageURL } from './api.js';
import { Empty } from './components.js';
import { mount } from './page.js';

mount(() => html`<h1>Not found</h1>
  <${Empty} title="There is no page at this address.">
    Begin at the <a href=${pageURL([])}>overview</a>, or find an instance in
    ${' '}<a href=${pageURL(['instances'])}>the list</a>.
  <//>`);
