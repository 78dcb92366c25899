// Command hello runs one orchestration and prints what it returns.
package main

import (
	"context"
	"fmt"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/replay"
)

var Greet, Hello = replay.Activity[string, string]("greet"), replay.Orchestration[string, string]("hello")

func greet(_ context.Context, name string) (string, error) { return "Hello, " + name + "!", nil }

func hello(ctx *replay.Context, name string) (string, error) { return Greet.Call(ctx, name) }

func main() {
	ctx, code := context.Background(), []replay.Definition{Greet.Bind(greet), Hello.Bind(hello)}
	node, err := cluster.Start(ctx, cluster.Config{Dir: "data/hello", Definitions: code})
	if err != nil {
		panic(err)
	}
	defer node.Close()
	greeting, err := cluster.Call(ctx, node.Client(), Hello, "hello-1", "Ada", cluster.Attach())
	if err != nil {
		panic(err)
	}
	fmt.Println(greeting)
}
