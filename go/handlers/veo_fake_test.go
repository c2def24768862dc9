package handlers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/taskgate/taskgate/go/worker"
)

var mp4 = append([]byte("\x00\x00\x00\x18ftypmp42\x00\x00\x00\x00mp42isom"), make([]byte, 200_000)...)

// studio is a video provider on a socket: it answers by the path, and keeps what it was asked.
type studio struct {
	*httptest.Server
	mu      sync.Mutex
	asked   []string // METHOD path body
	keys    []string
	submit  func(out http.ResponseWriter) // instead of the usual answer
	polls   []string                      // answers to polls, in order; the last one stays
	seen    chan struct{}                 // a poll has come
	headers http.Header

	cancelled int   // the status of answers to cancellations
	refusals  []int // the same of the next ones, before that
}

func newStudio(t *testing.T, polls ...string) *studio {
	s := &studio{polls: polls, seen: make(chan struct{}, 1000)}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

func (s *studio) serve(out http.ResponseWriter, request *http.Request) {
	body, _ := io.ReadAll(request.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, request.Method+" "+request.URL.RequestURI()+" "+string(body))
	s.keys = append(s.keys, request.Header.Get("X-Goog-Api-Key")+request.Header.Get("Authorization"))
	path := request.URL.Path
	switch {
	case strings.HasSuffix(path, ":predictLongRunning"), path == "/v1/interactions":
		if s.submit != nil {
			s.submit(out)
			return
		}
		model, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(path, "/v1beta/"), "/v1beta1/"), ":")
		fmt.Fprintf(out, `{"name":"%s/operations/op1","id":"op1","status":"in_progress"}`, model)
	case strings.HasPrefix(path, "/file"):
		_, _ = out.Write(mp4)
	case strings.HasPrefix(path, "/moved/"):
		http.Redirect(out, request, strings.TrimPrefix(request.URL.RequestURI(), "/moved/"), http.StatusFound)
	case strings.HasSuffix(path, "cancel"):
		if len(s.refusals) > 0 {
			out.WriteHeader(s.refusals[0])
			s.refusals = s.refusals[1:]
		} else if s.cancelled != 0 {
			out.WriteHeader(s.cancelled)
		}
		fmt.Fprint(out, `{}`)
	default:
		answer := s.polls[0]
		if len(s.polls) > 1 {
			s.polls = s.polls[1:]
		}
		s.seen <- struct{}{}
		if status := 0; len(answer) == 3 {
			_, _ = fmt.Sscan(answer, &status)
			out.WriteHeader(status)
			return
		}
		fmt.Fprint(out, strings.ReplaceAll(answer, "$", s.URL))
	}
}

func (s *studio) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.asked...)
}

// submissions are the requests that cost money.
func (s *studio) submissions() (found []string) {
	for _, each := range s.requests() {
		if strings.Contains(each, ":predictLongRunning ") || strings.HasPrefix(each, "POST /v1/interactions ") {
			found = append(found, each)
		}
	}
	return found
}

const (
	geminiDone = `{"done":true,"response":{"generateVideoResponse":{"generatedSamples":[{"video":{"uri":"$/file?alt=media"}}]}}}`
	pending    = `{"name":"x","done":false,"status":"in_progress"}`
)

// film runs the handler on a request, against the studio unless change says otherwise.
func film(t *testing.T, s *studio, db *memory, request string, change func(*worker.Config, *worker.Task)) (string, error) {
	t.Helper()
	handler, task := filming(t, s, db, request, change)
	value, err := handler(context.Background(), task)
	if err != nil {
		return "", err
	}
	return string(value.(json.RawMessage)), nil
}

func filming(t *testing.T, s *studio, db *memory, request string, change func(*worker.Config, *worker.Task)) (worker.Func, *worker.Task) {
	t.Helper()
	cfg := worker.Config{
		GeminiAPIKey: "key-of-gemini", GeminiBaseURL: s.URL, GoogleBaseURL: s.URL, GoogleLocation: "us-central1", VeoAPI: "gemini", VeoModel: "m",
		VeoPoll: 5 * time.Millisecond, VeoSubmit: 10 * time.Second, MediaMaxBytes: 1 << 20, MediaMaxVideoBytes: 1 << 20, MediaMaxPixels: 1 << 20, Slots: 4, MaxThrottle: time.Hour,
		AccountWait: time.Minute,
	}
	task := &worker.Task{ID: "t", Type: "veo", Request: json.RawMessage(request), Timeout: time.Minute, Backing: db}
	if change != nil {
		change(&cfg, task)
	}
	handler, err := Veo(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return handler, task
}

func steered(t *testing.T, err error, outcome, code, words string) {
	t.Helper()
	var steer *worker.TaskError
	if !errors.As(err, &steer) || steer.Outcome() != outcome || steer.Code != code || !strings.Contains(steer.Message, words) {
		t.Errorf("%v, want %s %s %q", err, outcome, code, words)
	}
}
