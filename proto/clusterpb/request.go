package clusterpb

// ShallowCopy returns a request with the same fields, which share what they point to. It is much
// cheaper than a copy by reflection.
func (r *Request) ShallowCopy() *Request {
	return &Request{
		Protocol:        r.Protocol,
		Node:            r.Node,
		Instance:        r.Instance,
		Retried:         r.Retried,
		Stale:           r.Stale,
		SeenIndex:       r.SeenIndex,
		Partition:       r.Partition,
		SeenIndexes:     r.SeenIndexes,
		FirstIndex:      r.FirstIndex,
		RejectIfStalled: r.RejectIfStalled,
		Principal:       r.Principal,
		User:            r.User,
		Reason:          r.Reason,
		Incarnation:     r.Incarnation,
		Cut:             r.Cut,
		Lineage:         r.Lineage,
		Call:            r.Call,
	}
}
