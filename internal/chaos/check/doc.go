// Package check reports whether the evidence of a run satisfies what the system promises:
// invariants S1 to S35, L2 and L9 to L11. It uses only what is visible from outside the nodes.
package check
