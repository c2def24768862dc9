package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/taskgate/taskgate/go/internal/testdb"
)

// The test binary is the program itself when this variable is set: real processes, real signals.
const asProgram = "TASKGATE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		os.Exit(run(os.Args[1:]))
	}
	os.Exit(m.Run())
}

type program struct {
	t     *testing.T
	cmd   *exec.Cmd
	mu    sync.Mutex
	lines []string
	ended chan struct{}
}

func begin(t *testing.T, environment []string, arguments ...string) *program {
	t.Helper()
	p := &program{t: t, cmd: exec.Command(os.Args[0], arguments...), ended: make(chan struct{})}
	p.cmd.Env = append([]string{asProgram + "=1", "PATH=" + os.Getenv("PATH"), "TASKGATE_LOG_FORMAT=json"}, environment...)
	output, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout = p.cmd.Stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		for scanner := bufio.NewScanner(output); scanner.Scan(); {
			p.mu.Lock()
			p.lines = append(p.lines, scanner.Text())
			p.mu.Unlock()
		}
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Log(p.text())
		}
	})
	return p
}

func (p *program) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

func (p *program) says(event string) {
	p.t.Helper()
	testdb.Until(p.t, event, func() bool { return strings.Contains(p.text(), `"event":"`+event+`"`) })
}

func (p *program) signal(which syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(which); err != nil {
		p.t.Fatal(err)
	}
}

func (p *program) code() int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
		p.t.Fatal("the program did not end")
	}
	return p.cmd.ProcessState.ExitCode()
}

// provider answers when told to; seen gets a value when a call arrives, closed when its connection is closed.
func provider(t *testing.T) (url string, answer chan struct{}, seen, closed chan struct{}) {
	answer, seen, closed = make(chan struct{}), make(chan struct{}, 10), make(chan struct{}, 10)
	server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
		seen <- struct{}{}
		// the server notices a closed connection once the body is read
		_, _ = bufio.NewReader(request.Body).WriteTo(new(strings.Builder))
		select {
		case <-answer:
			fmt.Fprint(out, `{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}`)
		case <-request.Context().Done():
			closed <- struct{}{}
		}
	}))
	t.Cleanup(server.Close)
	return server.URL + "/v1", answer, seen, closed
}

func TestSignals(t *testing.T) {
	for _, each := range []struct {
		name    string
		signals []syscall.Signal
		code    int
		finish  bool
	}{
		{"SIGTERM lets the call finish", []syscall.Signal{syscall.SIGTERM}, 0, true},
		{"SIGINT as well", []syscall.Signal{syscall.SIGINT}, 0, true},
		{"a second signal stops at once", []syscall.Signal{syscall.SIGTERM, syscall.SIGTERM}, 143, false},
		{"also Ctrl-C twice", []syscall.Signal{syscall.SIGINT, syscall.SIGINT}, 130, false},
	} {
		t.Run(each.name, func(t *testing.T) {
			dsn := testdb.New(t)
			url, answer, seen, closed := provider(t)
			db := testdb.Connect(t, dsn)
			if _, err := db.Exec(context.Background(), `INSERT INTO tasks (task_id, status, task_type, request) VALUES ('a', 'pending', 'llm', '{"prompt":"hi"}')`); err != nil {
				t.Fatal(err)
			}
			p := begin(t, []string{"DATABASE_URL=" + dsn, "OPENAI_BASE_URL=" + url, "TASKGATE_LLM_MODEL=m", "TASKGATE_GRACE_SECONDS=60"})
			<-seen
			p.signal(each.signals[0])
			p.says("draining")
			for _, more := range each.signals[1:] {
				p.signal(more)
			}
			if each.finish {
				close(answer)
			} else {
				<-closed
			}
			if code := p.code(); code != each.code {
				t.Errorf("exit code %d, want %d", code, each.code)
			}
			var status string
			var attempts int
			if err := db.QueryRow(context.Background(), "SELECT status, attempts FROM tasks").Scan(&status, &attempts); err != nil {
				t.Fatal(err)
			}
			if want := map[bool]string{true: "completed", false: "pending"}[each.finish]; status != want || attempts != map[bool]int{true: 1}[each.finish] {
				t.Errorf("%s after %d attempts, want %s", status, attempts, want)
			}
		})
	}
}

func TestExitCodes(t *testing.T) {
	for name, each := range map[string]struct {
		environment, arguments []string
		code                   int
		words                  string
	}{
		"no database":   {nil, nil, 2, "DATABASE_URL is not set"},
		"wrong setting": {[]string{"DATABASE_URL=postgresql://h/d", "TASKGATE_SLOTS=many"}, nil, 2, "TASKGATE_SLOTS"},
		"wrong allow":   {[]string{"DATABASE_URL=postgresql://h/d", "TASKGATE_MEDIA_ALLOW=1.2.3.4/99"}, nil, 2, "TASKGATE_MEDIA_ALLOW"},
		"unknown type":  {[]string{"DATABASE_URL=postgresql://h/d"}, []string{"--types", "llm,zzz"}, 2, "zzz"},
		"unknown flag":  {nil, []string{"--nonsense"}, 2, "nonsense"},
		"argument":      {nil, []string{"more"}, 2, "more"},
		"version":       {nil, []string{"--version"}, 0, "taskgate-worker"},
		"help":          {nil, []string{"--help"}, 0, "-types"},
	} {
		t.Run(name, func(t *testing.T) {
			p := begin(t, each.environment, each.arguments...)
			if code := p.code(); code != each.code || !strings.Contains(p.text(), each.words) {
				t.Errorf("exit code %d, want %d: %s", code, each.code, p.text())
			}
		})
	}
}

func TestSchemaMismatchIsExitCode3(t *testing.T) {
	dsn := testdb.New(t)
	if _, err := testdb.Connect(t, dsn).Exec(context.Background(), "DROP TABLE taskgate.schema_version"); err != nil {
		t.Fatal(err)
	}
	p := begin(t, []string{"DATABASE_URL=" + dsn})
	if code := p.code(); code != 3 || !strings.Contains(p.text(), "taskgate migrate") {
		t.Errorf("exit code %d", code)
	}
}

func TestWaitsForADatabaseThatIsNotThereYet(t *testing.T) {
	p := begin(t, []string{"DATABASE_URL=postgresql://u:secret@127.0.0.1:1/d"})
	p.says("database_lost")
	p.signal(syscall.SIGTERM)
	if code := p.code(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if strings.Contains(p.text(), "secret") {
		t.Error("the password is in the log")
	}
}
