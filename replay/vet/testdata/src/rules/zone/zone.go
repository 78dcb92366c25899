package zone

import (
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"rules/shop"
)

func buy(ctx *replay.Context, in string) (int, error) {
	berlin, err := time.LoadLocation("Europe/Berlin") // want `^calls time\.LoadLocation: each node has its own time zone and time zone database; use UTC or time\.FixedZone, or convert in an activity$`
	if err != nil {
		return 0, err
	}
	_ = ctx.Now().In(berlin)
	_ = noon(ctx.Now())                                        // want `calls noon, which uses time\.Local`
	_, _ = time.ParseInLocation(time.DateOnly, in, time.Local) // want `uses time\.Local`
	_, _ = time.ParseInLocation(time.DateOnly, in, time.UTC)
	hour, err := replay.SideEffect(ctx, "hour", func() (int, error) { return noon(time.Now()).Hour(), nil })
	return hour + ctx.Now().In(time.FixedZone("CET", 3600)).Hour(), err
}

func noon(day time.Time) time.Time { // want noon:`zone: uses time\.Local`
	return time.Date(day.Year(), day.Month(), day.Day(), 12, 0, 0, 0, time.Local)
}

var _ = shop.Buy.Bind(buy)
