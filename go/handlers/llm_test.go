package handlers

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/taskgate/taskgate/go/worker"
)

const okAnswer = `{"model":"m","choices":[{"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}`

var png = []byte("\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x10\x00\x00\x00\x10\x08\x02\x00\x00\x00rest")

// chat runs the handler against a provider on a socket, and gives what the provider received.
func chat(t *testing.T, change func(*worker.Config), request string) (sent string, result string, err error) {
	t.Helper()
	var body []byte
	server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
		if request.URL.Path != "/v1/chat/completions" || request.Header.Get("Authorization") != "Bearer sk-secret-key" {
			t.Errorf("%s %s", request.URL, request.Header)
		}
		body, _ = io.ReadAll(request.Body)
		fmt.Fprint(out, okAnswer)
	}))
	defer server.Close()
	result, err = ask(t, server.URL+"/v1", change, request)
	return string(body), result, err
}

func ask(t *testing.T, url string, change func(*worker.Config), request string) (string, error) {
	t.Helper()
	cfg := worker.Config{OpenAIBaseURL: url, OpenAIAPIKey: "sk-secret-key", LLMModel: "default", MaxResultBytes: 1 << 20, MediaMaxBytes: 1 << 10, MediaMaxPixels: 1 << 20, Slots: 1, MaxThrottle: time.Hour}
	if change != nil {
		change(&cfg)
	}
	handler, err := LLM(cfg)
	if err != nil {
		t.Fatal(err)
	}
	value, err := handler(context.Background(), &worker.Task{Type: "llm", Request: json.RawMessage(request), Timeout: 10 * time.Second})
	if err != nil {
		return "", err
	}
	return string(value.(json.RawMessage)), nil
}

func TestRequestReachesTheProviderInTheCallersOrder(t *testing.T) {
	for request, want := range map[string]string{
		`{"prompt":"a < b"}`:                                `{"messages":[{"role":"user","content":"a < b"}],"model":"default"}`,
		`{"system":"S","prompt":"P","model":"x"}`:           `{"messages":[{"role":"system","content":"S"},{"role":"user","content":"P"}],"model":"x"}`,
		`{"zeta":1.0,"prompt":"P","alpha":{"z":1,"a":[2]}}`: `{"messages":[{"role":"user","content":"P"}],"model":"default","zeta":1.0,"alpha":{"z":1,"a":[2]}}`,
		`{"messages":[{"role":"user","content":"x","name":"n"}],"model":"m","stream":false,"response_format":{"type":"json_schema","json_schema":{"schema":{"properties":{"reasoning":{},"answer":{}}}}}}`: `{"messages":[{"role":"user","content":"x","name":"n"}],"model":"m","response_format":{"type":"json_schema","json_schema":{"schema":{"properties":{"reasoning":{},"answer":{}}}}}}`,
		`{"prompt":"P","images":["https://h/x.png"]}`: `{"messages":[{"role":"user","content":[{"type":"text","text":"P"},{"type":"image_url","image_url":{"url":"https://h/x.png"}}]}],"model":"default"}`,
	} {
		sent, result, err := chat(t, nil, request)
		if err != nil || sent != want {
			t.Errorf("%s reached the provider as\n%s, want\n%s (%v)", request, sent, want, err)
		}
		if result != `{"text":"hi","message":{"role":"assistant","content":"hi"},"finish_reason":"stop","model":"m","usage":null}` {
			t.Errorf("result %s", result)
		}
	}
}

func TestRawAnswerIsKeptOnRequest(t *testing.T) {
	_, result, err := chat(t, func(cfg *worker.Config) { cfg.LLMRawResponse = true }, `{"prompt":"P"}`)
	if err != nil || !strings.HasSuffix(result, `"raw":`+okAnswer+`}`) {
		t.Errorf("%s %v", result, err)
	}
}

func TestWrongRequestsArePermanent(t *testing.T) {
	for request, words := range map[string]string{
		`[]`: "not a JSON object", `{}`: "either prompt or messages", `{"prompt":"a","messages":[]}`: "not both", `{"prompt":" "}`: "blanks",
		`{"prompt":1}`: "prompt", `{"prompt":"a","stream":true}`: "not streamed", `{"messages":[]}`: "at least one", `{"messages":[{}]}`: "role",
		`{"messages":[{"role":"user","content":[1]}]}`: "content", `{"messages":[{"role":"user"}],"images":["https://a/b"]}`: "images goes with prompt",
		`{"prompt":"a","images":["ftp://a/b"]}`: "image", `{"prompt":"a","model":""}`: "model", `{"prompt":"a","system":7}`: "system",
	} {
		_, err := ask(t, "http://127.0.0.1:1", nil, request)
		var steer *worker.TaskError
		if !errors.As(err, &steer) || steer.Outcome() != "permanent" || steer.Code != "invalid_request" || !strings.Contains(steer.Message, words) {
			t.Errorf("%s: %v, want %q", request, err, words)
		}
	}
}

func TestWhatIsNotConfiguredIsPermanent(t *testing.T) {
	for code, change := range map[string]func(*worker.Config){
		"not_configured": func(cfg *worker.Config) { cfg.OpenAIBaseURL, cfg.OpenAIAPIKey = "", "" },
		"no_model":       func(cfg *worker.Config) { cfg.LLMModel = "" },
	} {
		_, err := ask(t, "http://127.0.0.1:1", change, `{"prompt":"a"}`)
		var steer *worker.TaskError
		if !errors.As(err, &steer) || steer.Outcome() != "permanent" || steer.Code != code {
			t.Errorf("%v, want %s", err, code)
		}
	}
}

func TestFailuresOfTheConnection(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 4096))
			fmt.Fprint(conn, "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"choices\":")
			_ = conn.Close()
		}
	}()
	defer listener.Close()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	for url, words := range map[string]string{
		"http://127.0.0.1:1/v1":                         "cannot be reached",
		"http://" + listener.Addr().String():            "closed the connection",
		"https" + strings.TrimPrefix(plain.URL, "http"): "cannot be reached",
	} {
		_, err := ask(t, url, nil, `{"prompt":"a"}`)
		var steer *worker.TaskError
		if !errors.As(err, &steer) || steer.Outcome() != "retry" || steer.Code != "provider_unavailable" || !strings.Contains(steer.Message, words) {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestHugeAnswerIsRefused(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
		for range 50 {
			_, _ = out.Write(make([]byte, 100<<10))
		}
	}))
	defer server.Close()
	_, err := ask(t, server.URL, nil, `{"prompt":"a"}`)
	var steer *worker.TaskError
	if !errors.As(err, &steer) || steer.Code != "answer_too_large" {
		t.Errorf("%v", err)
	}
}

func TestStoppedCallClosesItsConnection(t *testing.T) {
	seen, closed := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		_, _ = io.ReadAll(request.Body)
		close(seen)
		<-request.Context().Done()
		close(closed)
	}))
	defer server.Close()
	handler, err := LLM(worker.Config{OpenAIBaseURL: server.URL, LLMModel: "m", MaxResultBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancelCause(context.Background())
	go func() { <-seen; stop(worker.ErrCancelled) }()
	_, err = handler(ctx, &worker.Task{Request: json.RawMessage(`{"prompt":"a"}`), Timeout: time.Minute})
	if !errors.Is(err, worker.ErrCancelled) {
		t.Errorf("%v", err)
	}
	select {
	case <-closed:
	case <-time.After(30 * time.Second):
		t.Error("the provider does not know that nobody waits")
	}
}

func TestImagesAreInlined(t *testing.T) {
	images := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
		if request.URL.Path == "/moved" {
			http.Redirect(out, request, "/x.png", http.StatusFound)
			return
		}
		_, _ = out.Write(png)
	}))
	defer images.Close()
	inline := func(cfg *worker.Config) { cfg.InlineImages, cfg.MediaAllow = true, "127.0.0.0/8" }
	uri := "data:image/png;base64," + base64.StdEncoding.EncodeToString(png)
	request := fmt.Sprintf(`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"detail":"low","url":"%[1]s/moved"},"k":1},{"type":"image_url","image_url":"%[1]s/x.png"},{"z":1,"type":"text"}]}]}`, images.URL)
	sent, _, err := chat(t, inline, request)
	want := fmt.Sprintf(`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"detail":"low","url":"%[1]s"},"k":1},{"type":"image_url","image_url":"%[1]s"},{"z":1,"type":"text"}]}],"model":"default"}`, uri)
	if err != nil || sent != want {
		t.Errorf("sent\n%s, want\n%s (%v)", sent, want, err)
	}
}
