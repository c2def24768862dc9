package handlers

import (
	"encoding/json"
	"net/url"
	"strings"

	"github.com/taskgate/taskgate/go/worker"
)

// The request of an `llm` task. Two forms: {"prompt", "images"?, "system"?, "model"?, …} or {"messages", "model"?, …}.
// Every other key is a Chat Completions parameter and reaches the provider unchanged, in the caller's order. The API
// has checked it, but a producer that knows only SQL has not.

const maxImages = 100

type chatRequest struct {
	model      string
	messages   []json.RawMessage
	parameters object
}

var ownKeys = map[string]bool{"prompt": true, "images": true, "system": true, "messages": true, "model": true, "stream": true}

// parseRequest fails with a permanent error, code invalid_request, that names the wrong field.
func parseRequest(text json.RawMessage) (chatRequest, error) {
	given, err := parseObject(text)
	if err != nil {
		return chatRequest{}, invalid("", "the request "+err.Error())
	}
	prompt, messages := given.get("prompt"), given.get("messages")
	switch {
	case prompt == nil && messages == nil:
		return chatRequest{}, invalid("", "give either prompt or messages")
	case prompt != nil && messages != nil:
		return chatRequest{}, invalid("prompt", "give either prompt or messages, not both")
	case given.get("stream") != nil && string(given.get("stream")) != "false":
		return chatRequest{}, invalid("stream", "a task is not streamed: leave stream out, and read the result with GET /tasks/{task_id}?wait=30")
	}
	var out chatRequest
	for _, each := range given {
		if !ownKeys[each.key] {
			out.parameters = append(out.parameters, each)
		}
	}
	if model := given.get("model"); model != nil {
		var ok bool
		if out.model, ok = asString(model); !ok || out.model == "" {
			return chatRequest{}, invalid("model", "model is a string that is not empty")
		}
	}
	if messages != nil {
		for _, name := range []string{"images", "system"} {
			if given.get(name) != nil {
				return chatRequest{}, invalid(name, name+" goes with prompt; with messages, put it into the messages")
			}
		}
		out.messages, err = parseMessages(messages)
	} else {
		out.messages, err = promptMessages(given)
	}
	return out, err
}

func parseMessages(text json.RawMessage) ([]json.RawMessage, error) {
	messages, ok := asList(text)
	if !ok || len(messages) == 0 {
		return nil, invalid("messages", "messages is a list of at least one message")
	}
	for _, each := range messages {
		message, err := parseObject(each)
		if err != nil {
			return nil, invalid("messages", "a message is an object")
		}
		if role, _ := asString(message.get("role")); role == "" {
			return nil, invalid("messages", "each message has a role, a string")
		}
		content := message.get("content")
		if content == nil {
			continue
		}
		if _, isText := asString(content); isText {
			continue
		}
		parts, isList := asList(content)
		for _, part := range parts {
			isList = isList && isObject(part)
		}
		if !isList {
			return nil, invalid("messages", "content is a string, or a list of parts, each an object")
		}
	}
	return messages, nil
}

func promptMessages(given object) ([]json.RawMessage, error) {
	prompt, ok := asString(given.get("prompt"))
	if !ok || strings.TrimSpace(prompt) == "" {
		return nil, invalid("prompt", "prompt must be a string that holds more than blanks")
	}
	var messages []json.RawMessage
	if system := given.get("system"); system != nil {
		if text, ok := asString(system); !ok || text == "" {
			return nil, invalid("system", "system is a string that is not empty")
		}
		messages = append(messages, object{{"role", encode("system")}, {"content", system}}.raw())
	}
	content := given.get("prompt")
	if images := given.get("images"); images != nil {
		urls, ok := asList(images)
		if !ok || len(urls) > maxImages {
			return nil, invalid("images", "images is a list of at most 100 URLs or data: URIs")
		}
		parts := []json.RawMessage{object{{"type", encode("text")}, {"text", content}}.raw()}
		for _, each := range urls {
			if address, ok := asString(each); !ok || !isImage(address) {
				return nil, invalid("images", "an image is an http or https URL, or a data: URI")
			}
			parts = append(parts, object{{"type", encode("image_url")}, {"image_url", object{{"url", each}}.raw()}}.raw())
		}
		if len(urls) > 0 {
			content = rawList(parts)
		}
	}
	return append(messages, object{{"role", encode("user")}, {"content", content}}.raw()), nil
}

func isImage(address string) bool {
	if strings.HasPrefix(address, "data:") {
		return strings.HasPrefix(strings.ToLower(address[:min(len(address), 100)]), "data:image/") &&
			strings.Contains(address[:min(len(address), 200)], ";base64,")
	}
	parsed, err := url.Parse(address)
	return err == nil && (parsed.Scheme == "http" || parsed.Scheme == "https") && parsed.Hostname() != ""
}

func invalid(field, words string) error {
	place := []string{}
	if field != "" {
		place = append(place, field)
	}
	told := map[string]any{"errors": []any{map[string]any{"loc": place, "msg": words}}}
	return worker.Permanent("the request does not fit the handler: %s", words).WithCode("invalid_request").WithInfo(told)
}
