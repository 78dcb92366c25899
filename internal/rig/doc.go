// Package rig lets the harnesses of this module run a node under conditions that
// its Config does not offer, because no application should ask for them: a wall
// clock that is wrong, snapshots every few seconds. The node is started with a rig
// in its context.
package rig
