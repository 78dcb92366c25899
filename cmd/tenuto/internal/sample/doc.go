// Package sample holds orchestrations with which the command "tenuto dev" shows what an operator
// can do: a greeting, an order with a compensation that waits for an event, and a call that fails.
package sample
