// Package schedule starts runs of an orchestration at times: by cron expressions, at intervals and
// by calendars.
//
//	err := schedule.Create(ctx, client, "nightly-report", schedule.Spec{
//		Cron:     []string{"30 2 * * *"},
//		TimeZone: "Europe/Berlin",
//		Overlap:  schedule.BufferOne,
//	}, Report, Input{Region: "north"})
//
// A schedule is an instance of the orchestration "tenuto.schedule", which every node registers. Its
// ID is that of the schedule, its history says what it has done, and it survives what instances
// survive. Package cluster lists, suspends and terminates it like any other.
//
// # Due times
//
// A Spec selects due times. They are compared with the cluster time (see cluster/docs/time.md).
// Each due time is decided once, in order: it starts a run, is buffered or is skipped, as the
// [Overlap] policy says; or it is missed, if its turn comes later than the catch-up window allows,
// after an outage for example. Due times that pass while the schedule is paused, and those before
// its creation or the latest [Update], are not decided.
//
// The instance ID of a run follows from its due time. So no due time starts two runs while the
// first is kept, not even by [Backfill]. A run that cannot start because an instance has its ID gets
// the outcome [Exists]. No policy stops an instance that the schedule has not started.
//
// Starts that would record more than about 1 MiB at once, by large inputs, are decided a moment
// later, in order. Until then their outcome is [Buffered].
//
// # Daylight saving time
//
// Cron expressions and calendars select times of the wall clock of Spec.TimeZone:
//
//   - When the clock is set forward, a selected time that is skipped is due at the end of the
//     skipped time. Several of them are one due time.
//   - When the clock is set back, a selected time that is shown twice is due the first time.
//   - If every hour is selected ("*/15 * * * *", "@hourly"), a time is due whenever the clock shows
//     it: not if it is skipped, and twice if it is shown twice.
//
// Spec.Every does not depend on the wall clock. The leader's machine needs the time zone database of
// its operating system, or a program that imports time/tzdata; without the zone, the schedule shows
// it as Description.Problem and tries again. The timer for the next due time is set by the database
// at that time. When the timer fires, the database of the leader decides what is due.
//
// # What may not be assumed
//
//   - That a run starts at its due time: it starts then or later, by the jitter, and by the time
//     without a leader.
//   - That the leader has the code of the orchestration when the schedule is created: the run waits
//     for it.
//   - That [Cancel] and [Terminate] stop a run at once: they use an activity, which waits for a slot of
//     its node like any other.
//   - That a schedule with many runs in progress works if Settings.PayloadMax is below its default.
//   - That Config.Authorize is called for the runs: who may start or update a schedule chooses what
//     it starts.
//
// All functions may be called concurrently. They take a client of a node or of cluster.Dial and have
// its errors: cluster.ErrNotFound, cluster.ErrEnded, *cluster.UnavailableError and so on. For an
// instance that is no schedule they return a *replay.NotRegisteredError.
package schedule
