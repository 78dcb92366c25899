package random

import (
	crypto "crypto/rand"
	"math/rand"
	v2 "math/rand/v2"

	"github.com/google/uuid"
	"github.com/tenuto-dev/tenuto/replay"
)

func buy(ctx *replay.Context, in string) (int, error) {
	_ = rand.Intn(3)     // want `calls rand\.Intn: use ctx\.Random\(\) or ctx\.UUID\(\), or replay\.SideEffect for a secret`
	_ = v2.N(3)          // want `calls rand\.N: use ctx\.Random`
	v2.Shuffle(1, nil)   // want `calls rand\.Shuffle`
	crypto.Read(nil)     // want `calls rand\.Read`
	_ = crypto.Reader    // want `uses rand\.Reader`
	_ = uuid.New()       // want `calls uuid\.New:`
	_ = uuid.NewString() // want `calls uuid\.NewString`

	_ = uuid.NewSHA1(uuid.UUID{}, []byte(in))
	_ = ctx.Random().IntN(3)
	_ = ctx.UUID()
	_ = rand.New(rand.NewSource(1)).Intn(3)
	_ = v2.New(v2.NewPCG(1, 2))
	return replay.SideEffect(ctx, "key", func() (int, error) {
		return crypto.Read(make([]byte, 8))
	})
}
