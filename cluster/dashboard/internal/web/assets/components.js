// What pages are made of. One import for all of:
//   basics.js   StateBadge, Badge, Empty, ErrorNotice, Loading, Fetched, Tabs, Menu, Copy, Meter, Facts, Texts
//   table.js    Table, Pages (infinite list), useSelection
//   virtual.js  VirtualList
//   dialog.js   ask, notify, Overlays
//   keys.js     useKeys, moveRow

export * from './basics.js';
export * from './table.js';
export * from './virtual.js';
export * from './dialog.js';
export * from './keys.js';
