// Package judge says whether the evidence of a run fits what the system
// promises: invariants S1 to S26, each with its statement, judged from the
// outside alone. One that cannot be judged so says why.
package judge
