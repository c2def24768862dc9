package handlers

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/taskgate/taskgate/go/worker"
)

type expectation struct {
	Outcome      string          `json:"outcome"`
	Code         string          `json:"code"`
	After        json.RawMessage `json:"after"`
	AfterBetween []float64       `json:"after_between"`
	Info         map[string]any  `json:"info"`
	Words        string          `json:"words"`
	MessageHas   string          `json:"message_has"`
	MessageLacks string          `json:"message_lacks"`
	MessageMax   int             `json:"message_max"`
	Result       json.RawMessage `json:"result"`
	Text         *string         `json:"text"`
	Choices      int             `json:"choices"`
}

type providerCases struct {
	Answers []struct {
		Name    string            `json:"name"`
		Status  int               `json:"status"`
		Headers map[string]string `json:"headers"`
		Body    json.RawMessage   `json:"body"`
		Expect  expectation       `json:"expect"`
	} `json:"answers"`
	Failures []struct {
		Name    string      `json:"name"`
		Failure string      `json:"failure"`
		Expect  expectation `json:"expect"`
	} `json:"failures"`
}

// The cases are shared with every other worker.
func readCases(t *testing.T) (cases providerCases) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "conformance", "workers", "provider_answers.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases.Answers) == 0 || len(cases.Failures) == 0 {
		t.Fatal("the file of cases holds none")
	}
	return cases
}

func TestProviderAnswers(t *testing.T) {
	cases := readCases(t)
	for _, each := range cases.Answers {
		t.Run(each.Name, func(t *testing.T) {
			headers := http.Header{}
			for name, value := range each.Headers {
				headers.Set(name, value)
			}
			body := []byte(each.Body)
			if text, ok := asString(each.Body); ok {
				body = []byte(text)
			}
			result, err := rules{maxThrottle: time.Hour}.judge(answer{each.Status, headers, body})
			check(t, each.Expect, result, err)
		})
	}
	for _, each := range cases.Failures {
		t.Run(each.Name, func(t *testing.T) {
			check(t, each.Expect, nil, judgeFailure(each.Failure, "words", time.Second))
		})
	}
}

func check(t *testing.T, want expectation, result json.RawMessage, err error) {
	t.Helper()
	if want.Outcome == "completed" {
		if err != nil {
			t.Fatalf("want a result, have %v", err)
		}
		checkResult(t, want, result)
		return
	}
	var steer *worker.TaskError
	if !errors.As(err, &steer) {
		t.Fatalf("want %s, have %s, %v", want.Outcome, result, err)
	}
	if steer.Outcome() != want.Outcome || want.Code != "" && steer.Code != want.Code {
		t.Errorf("want %s %s, have %s %s", want.Outcome, want.Code, steer.Outcome(), steer.Code)
	}
	checkAfter(t, want, steer.After)
	if want.Words != "" && steer.Message != want.Words {
		t.Errorf("want %q, have %q", want.Words, steer.Message)
	}
	if want.MessageHas != "" && !strings.Contains(steer.Message, want.MessageHas) {
		t.Errorf("%q lacks %q", steer.Message, want.MessageHas)
	}
	told := string(encode(steer.Info))
	if want.MessageLacks != "" && (strings.Contains(steer.Message, want.MessageLacks) || strings.Contains(told, want.MessageLacks)) {
		t.Errorf("%q, %s holds %q", steer.Message, told, want.MessageLacks)
	}
	var info struct{ Provider map[string]any }
	if err := json.Unmarshal([]byte(told), &info); err != nil {
		t.Fatal(err)
	}
	for name, value := range want.Info {
		if info.Provider[name] != value {
			t.Errorf("info.provider.%s is %v, want %v", name, info.Provider[name], value)
		}
	}
	if words, _ := info.Provider["message"].(string); want.MessageMax > 0 && len([]rune(words)) > want.MessageMax {
		t.Errorf("%d characters, at most %d", len([]rune(words)), want.MessageMax)
	}
}

func checkAfter(t *testing.T, want expectation, after *time.Duration) {
	t.Helper()
	switch {
	case string(want.After) == "null":
		if after != nil {
			t.Errorf("want the worker's own backoff, have %s", after)
		}
	case want.After != nil:
		var seconds float64
		if err := json.Unmarshal(want.After, &seconds); err != nil {
			t.Fatal(err)
		}
		if after == nil || *after != time.Duration(seconds*float64(time.Second)) {
			t.Errorf("want %g s, have %v", seconds, after)
		}
	case want.AfterBetween != nil:
		if after == nil || after.Seconds() < want.AfterBetween[0] || after.Seconds() > want.AfterBetween[1] {
			t.Errorf("want a delay in %v, have %v", want.AfterBetween, after)
		}
	}
}

func checkResult(t *testing.T, want expectation, result json.RawMessage) {
	t.Helper()
	if want.Result != nil && compact(result) != compact(want.Result) {
		t.Errorf("want %s, have %s", compact(want.Result), result)
	}
	var have struct {
		Text    string            `json:"text"`
		Choices []json.RawMessage `json:"choices"`
	}
	if err := json.Unmarshal(result, &have); err != nil {
		t.Fatal(err)
	}
	if want.Text != nil && have.Text != *want.Text {
		t.Errorf("want text %q, have %q", *want.Text, have.Text)
	}
	if len(have.Choices) != want.Choices {
		t.Errorf("want %d choices, have %d", want.Choices, len(have.Choices))
	}
}
