// Package operate lets operators repair one operation of one instance: an activity, a timer, a
// child or a subscription. Each action is recorded in the history with who and why.
package operate
