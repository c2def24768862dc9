package handlers

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/taskgate/taskgate/go/worker"
)

// What a chat provider's answer means for the task. The cases are data, conformance/workers/provider_answers.json,
// which every worker must pass. Shapes: OpenAI's API reference (chat completions, error codes); Google's
// google.rpc.RetryInfo in an error's details.

// throttleSeconds puts a throttled task off without a word from the provider, half to one and a half times as long.
const throttleSeconds = 10.0

type answer struct {
	status  int
	headers http.Header
	body    []byte
}

// rules is what the judgement needs from outside.
type rules struct {
	maxThrottle time.Duration
	secrets     []string // words that no message may repeat, such as the key
	keepRaw     bool
}

// judge is the task's result, or the error that steers it.
func (r rules) judge(a answer) (json.RawMessage, error) {
	if a.status < 200 || a.status >= 300 {
		return nil, r.refusal(a, a.status, r.problemOf(a.body))
	}
	body, err := parseObject(a.body)
	if err != nil {
		words := redact(withoutTags(string(a.body)), r.secrets, 200)
		if words == "" {
			words = "(empty)"
		}
		return nil, r.incomplete(a, "the provider's answer is not a JSON object: "+words)
	}
	if truthy(body.get("error")) && !truthy(body.get("choices")) {
		// some relays answer 200 with the error of the provider behind them
		found := r.problemOf(a.body)
		if status, err := strconv.Atoi(found.code); err == nil && 400 <= status && status <= 599 {
			return nil, r.refusal(a, status, found)
		}
		return nil, r.incomplete(a, "the provider answered with an error: "+found.message)
	}
	return r.result(a, body)
}

type choice struct {
	text    string
	message json.RawMessage
	reason  string
}

func (c choice) members() object {
	return object{{"text", encode(c.text)}, {"message", c.message}, {"finish_reason", encode(c.reason)}}
}

func (r rules) result(a answer, body object) (json.RawMessage, error) {
	choices, _ := asList(body.get("choices"))
	if len(choices) == 0 {
		return nil, r.incomplete(a, "the provider's answer has no choices")
	}
	shown := make([]choice, len(choices))
	first := -1 // of several answers, the first that was let through stands for all
	for i, each := range choices {
		parsed, _ := parseObject(each)
		message := parsed.get("message")
		if message == nil || !isObject(message) {
			return nil, r.incomplete(a, "a choice of the provider's answer has no message")
		}
		reason, _ := asString(parsed.get("finish_reason"))
		if reason == "" {
			return nil, r.incomplete(a, "the provider's answer has no finish_reason, so it may be cut off")
		}
		shown[i] = choice{textOf(message), message, reason}
		if first < 0 && reason != "content_filter" {
			first = i
		}
	}
	if first < 0 {
		stopped := problem{message: "finish_reason content_filter", code: "content_filter"}
		return nil, worker.Permanent("the provider's content filter stopped the answer").WithCode("content_filtered").WithInfo(info(a, stopped, a.status))
	}
	result := shown[first].members()
	result.set("model", orNull(body.get("model")))
	result.set("usage", orNull(body.get("usage")))
	if len(shown) > 1 {
		all := make([]json.RawMessage, len(shown))
		for i := range shown {
			all[i] = shown[i].members().raw()
		}
		result.set("choices", rawList(all))
	}
	if r.keepRaw {
		result.set("raw", a.body)
	}
	return result.raw(), nil
}

func (r rules) refusal(a answer, status int, p problem) error {
	kind := ""
	for _, each := range []string{p.kind, p.code} {
		if each != "" && each != strconv.Itoa(status) {
			kind = " (" + each + ")"
		}
	}
	words := fmt.Sprintf("the provider answered %d%s: %s", status, kind, p.message)
	told := info(a, p, status)
	after := r.wait(a, p)
	permanent := func(code string) error { return worker.Permanent("%s", words).WithCode(code).WithInfo(told) }
	again := func(code string) error {
		e := worker.Retry("%s", words).WithCode(code).WithInfo(told)
		e.After = after
		return e
	}
	switch {
	case status == 402 || (status == 403 || status == 429) && named(p, "insufficient_quota", "billing_hard_limit_reached", "billing_not_active"):
		return permanent("insufficient_quota")
	case (status == 400 || status == 403) && named(p, "content_filter", "content_policy_violation", "responsibleaipolicyviolation"):
		return permanent("content_filtered")
	case status == 429 || status == 529 || status == 503 && after != nil:
		if after == nil {
			chance := min(time.Duration(throttleSeconds*(0.5+rand.Float64())*float64(time.Second)), r.maxThrottle)
			after = &chance
		}
		return worker.Throttled(*after, "%s", words).WithInfo(told)
	case status == 408 || status == 504:
		return again("provider_timeout")
	case status == 502 || status == 503:
		return again("provider_unavailable")
	case status == 409 || status >= 500:
		return again("provider_error")
	case status == 401 || status == 403:
		return permanent("provider_auth")
	}
	return permanent("provider_refused")
}

func named(p problem, names ...string) bool {
	for _, name := range names {
		if strings.EqualFold(p.code, name) || strings.EqualFold(p.kind, name) {
			return true
		}
	}
	return false
}

func (r rules) incomplete(a answer, words string) error {
	return worker.Retry("%s", words).WithCode("incomplete_answer").WithInfo(info(a, problem{message: words}, a.status))
}

// judgeFailure is the error for a call that had no answer: failure is connect, timeout or disconnect.
func judgeFailure(failure, words string, sentFor time.Duration) *worker.TaskError {
	told := map[string]any{
		"provider": map[string]any{"status": nil, "request_id": nil, "message": words, "type": failure, "code": nil}, "delivery": "unknown",
	}
	var err *worker.TaskError
	switch failure {
	case "timeout":
		err = worker.Retry("the provider did not answer in %.0f s: %s", sentFor.Seconds(), words).WithCode("provider_timeout")
	case "connect":
		told["delivery"] = "none"
		err = worker.Retry("the provider cannot be reached: %s", words).WithCode("provider_unavailable")
	default:
		err = worker.Retry("the provider closed the connection before its answer was complete: %s", words).WithCode("provider_unavailable")
	}
	return err.WithInfo(told)
}

func info(a answer, p problem, status int) any {
	id := a.headers.Get("x-request-id")
	if id == "" {
		id = a.headers.Get("request-id")
	}
	return map[string]any{"provider": map[string]any{
		"status": status, "request_id": orNil(id[:min(len(id), 200)]), "message": p.message, "type": orNil(p.kind), "code": orNil(p.code),
	}}
}

func textOf(message json.RawMessage) string {
	parsed, _ := parseObject(message)
	content := parsed.get("content")
	if whole, ok := asString(content); ok {
		return whole
	}
	var text strings.Builder
	parts, _ := asList(content)
	for _, part := range parts {
		if fields, err := parseObject(part); err == nil {
			piece, _ := asString(fields.get("text"))
			text.WriteString(piece)
		}
	}
	return text.String()
}
