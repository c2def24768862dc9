package handlers

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// problem is what a provider says of an error, its words fit to be stored.
type problem struct {
	message, kind, code string
	details             []json.RawMessage
}

func (r rules) problemOf(text []byte) problem {
	outer, err := parseObject(text)
	if list, ok := asList(text); ok && len(list) > 0 { // Google's OpenAI-shaped route wraps its error in a list
		outer, err = parseObject(list[0])
	}
	inner := outer
	var words string
	if err == nil {
		if wrapped := outer.get("error"); wrapped != nil {
			if inner, err = parseObject(wrapped); err != nil {
				words, _ = asString(wrapped)
			}
		} else if has(outer, "error") {
			err = errors.New("error is null")
		}
	}
	if err != nil {
		if words == "" {
			words = withoutTags(string(text))
		}
		return problem{message: orWords(redact(words, r.secrets, maxWords))}
	}
	for _, name := range []string{"message", "detail", "error_description"} {
		if value := inner.get(name); truthy(value) {
			var isText bool
			if words, isText = asString(value); !isText {
				words = compact(value)
			}
			break
		}
	}
	kind := scalar(inner.get("type"))
	if kind == "" {
		kind = scalar(inner.get("status"))
	}
	details, _ := asList(inner.get("details"))
	return problem{
		orWords(redact(words, r.secrets, maxWords)), redact(kind, r.secrets, 100), redact(scalar(inner.get("code")), r.secrets, 100), details,
	}
}

// wait is what the provider asks for, from 0 to the longest throttle; nil if it does not say.
func (r rules) wait(a answer, p problem) *time.Duration {
	seconds, known := decimal(a.headers.Get("retry-after-ms"))
	seconds /= 1000
	if !known {
		seconds, known = decimal(a.headers.Get("retry-after"))
	}
	if !known {
		seconds, known = until(a.headers.Get("retry-after"), a.headers.Get("date"))
	}
	if !known {
		for _, detail := range p.details {
			parsed, _ := parseObject(detail)
			if delay, ok := asString(parsed.get("retryDelay")); ok {
				seconds, known = decimal(strings.TrimSuffix(delay, "s"))
			}
		}
	}
	if !known {
		return nil
	}
	after := time.Duration(min(max(seconds, 0), r.maxThrottle.Seconds()) * float64(time.Second))
	return &after
}

func decimal(text string) (float64, bool) {
	number, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	return number, err == nil && !math.IsNaN(number) && !math.IsInf(number, 0)
}

// until is the time between two HTTP dates. The provider's own clock counts, ours only if it shows none.
func until(date, from string) (float64, bool) {
	end, err := http.ParseTime(date)
	if err != nil {
		return 0, false
	}
	start, err := http.ParseTime(from)
	if err != nil {
		start = time.Now()
	}
	return end.Sub(start).Seconds(), true
}

// truthy is false for what is missing, null, false, 0 and empty.
func truthy(value json.RawMessage) bool {
	switch compact(value) {
	case "", "null", "false", "0", `""`, "[]", "{}":
		return false
	}
	return true
}

func compact(value json.RawMessage) string {
	var out bytes.Buffer
	if json.Compact(&out, value) != nil {
		return ""
	}
	return out.String()
}

// scalar is a string or number as text; empty for anything else.
func scalar(value json.RawMessage) string {
	if text, ok := asString(value); ok {
		return text
	}
	if text := compact(value); text != "true" && text != "false" && text != "null" {
		return text
	}
	return ""
}

func has(o object, key string) bool {
	for _, each := range o {
		if each.key == key {
			return true
		}
	}
	return false
}

func orNull(value json.RawMessage) json.RawMessage {
	if value == nil {
		return json.RawMessage("null")
	}
	return value
}

func orNil(text string) any {
	if text == "" {
		return nil
	}
	return text
}

func orWords(text string) string {
	if text == "" {
		return "(no words)"
	}
	return text
}
