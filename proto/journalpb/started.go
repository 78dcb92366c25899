package journalpb

// ShallowCopy returns a message with the same fields, which share what they point to. It is much
// cheaper than a copy by reflection.
func (s *OrchestrationStarted) ShallowCopy() *OrchestrationStarted {
	return &OrchestrationStarted{
		Name:              s.Name,
		Version:           s.Version,
		Input:             s.Input,
		Parent:            s.Parent,
		Inbox:             s.Inbox,
		Tags:              s.Tags,
		RequestId:         s.RequestId,
		Status:            s.Status,
		StartAt:           s.StartAt,
		CancelRequested:   s.CancelRequested,
		RequestIds:        s.RequestIds,
		Trace:             s.Trace,
		Incarnation:       s.Incarnation,
		CanceledByParent:  s.CanceledByParent,
		CountsAllPayloads: s.CountsAllPayloads,
		RequestIdMarks:    s.RequestIdMarks,
		RequestHorizon:    s.RequestHorizon,
		PayloadMax:        s.PayloadMax,
		Deadline:          s.Deadline,
		Attributes:        s.Attributes,
		Values:            s.Values,
		Headers:           s.Headers,
		Summary:           s.Summary,
		Retry:             s.Retry,
		Attempt:           s.Attempt,
		LastFailure:       s.LastFailure,
		Copied:            s.Copied,
	}
}
