// Command taskgate-worker runs `llm` and `veo` tasks from a taskgate database. Settings come from the environment, by the same
// names as the Python worker's.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/taskgate/taskgate/go/handlers"
	"github.com/taskgate/taskgate/go/worker"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(arguments []string) int {
	flags := flag.NewFlagSet("taskgate-worker", flag.ContinueOnError)
	types := flags.String("types", "", "serve these task types only, comma separated (default: all that this program has)")
	version := flags.Bool("version", false, "print the version and exit")
	if err := flags.Parse(arguments); err != nil {
		if err == flag.ErrHelp {
			return worker.ExitDone
		}
		return worker.ExitConfig
	}
	if *version {
		fmt.Println("taskgate-worker", worker.Version)
		return worker.ExitDone
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "taskgate-worker: unknown argument %q; see --help\n", flags.Arg(0))
		return worker.ExitConfig
	}
	cfg, err := worker.FromEnvironment()
	if err != nil {
		fmt.Fprintln(os.Stderr, "taskgate-worker:", err)
		return worker.ExitConfig
	}
	for _, name := range strings.Split(*types, ",") {
		if name = strings.TrimSpace(name); name != "" {
			cfg.Types = append(cfg.Types, name)
		}
	}
	llm, err := handlers.LLM(cfg)
	if err != nil {
		fmt.Fprintln(os.Stderr, "taskgate-worker:", err)
		return worker.ExitConfig
	}
	veo, err := handlers.Veo(cfg)
	if err != nil {
		fmt.Fprintln(os.Stderr, "taskgate-worker:", err)
		return worker.ExitConfig
	}
	w := worker.New(cfg)
	w.Handle("llm", llm, worker.WithDescription("A chat completion."))
	w.Handle("veo", veo, worker.WithDescription("A video."), worker.WithTimeout(cfg.VeoTimeout))
	return w.Main()
}
