package replay

// Asked returns how many actions are queued.
func (x *Execution) Asked() int { return len(x.queue) }
