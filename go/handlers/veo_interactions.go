package handlers

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
)

// interactionsDialect is the Interactions API in the background, which the Omni models speak. Source: google-genai 3,
// _gaos/types/interactions; ai.google.dev/gemini-api/docs/interactions.
type interactionsDialect struct{}

func (interactionsDialect) name() string { return "interactions" }

func (interactionsDialect) submission(route *videoRoute, request videoRequest, with videoInputs) (string, object) {
	body := object{{"model", encode(route.model)}, {"background", encode(true)}, {"input", interactionInput(request, with)}}
	format := object{{"type", encode("video")}}
	var generation, video object
	for _, each := range request.options {
		switch each.key {
		case "aspect_ratio", "resolution":
			format = append(format, each)
		case "duration_seconds":
			format = append(format, member{"duration", encode(strconv.Itoa(request.durationSeconds) + "s")})
		case "storage_uri":
			format = append(format, member{"delivery", encode("uri")}, member{"gcs_uri", each.value})
		case "seed":
			generation = append(generation, each)
		}
	}
	switch {
	case with.video != nil:
		video = object{{"task", encode("extend")}}
	case with.image != nil:
		video = object{{"task", encode("image_to_video")}}
	case len(with.references) > 0:
		video = object{{"task", encode("reference_to_video")}}
	}
	if video != nil {
		generation = append(generation, member{"video_config", video.raw()})
	}
	body = append(body, member{"response_format", format.raw()})
	if generation != nil {
		body = append(body, member{"generation_config", generation.raw()})
	}
	return "/v1/interactions", body
}

func interactionInput(request videoRequest, with videoInputs) json.RawMessage {
	content := []json.RawMessage{object{{"type", encode("text")}, {"text", encode(request.prompt)}}.raw()}
	add := func(kind string, from mediaInput) {
		part := object{{"type", encode(kind)}}
		if from.uri != "" {
			part = append(part, member{"uri", encode(from.uri)})
		} else {
			part = append(part, member{"data", encode(from.data)})
		}
		if from.mime != "" {
			part = append(part, member{"mime_type", encode(from.mime)})
		}
		content = append(content, part.raw())
	}
	if with.image != nil {
		add("image", *with.image)
	}
	for _, each := range with.references {
		add("image", each.mediaInput)
	}
	if with.video != nil {
		add("video", *with.video)
	}
	if len(content) == 1 {
		return encode(request.prompt)
	}
	return rawList([]json.RawMessage{object{{"type", encode("user_input")}, {"content", rawList(content)}}.raw()})
}

func (interactionsDialect) handle(body object) string { return body.text("id") }

func (interactionsDialect) poll(operation string) call {
	return call{http.MethodGet, "/v1/interactions/" + operation + "?stream=false", nil}
}

func (interactionsDialect) cancel(operation string) call {
	return call{http.MethodPost, "/v1/interactions/" + operation + "/cancel", nil}
}

func (interactionsDialect) read(body object) videoState {
	var state videoState
	switch status := body.text("status"); status {
	case "":
		state.strange = true
		return state
	case "queued", "in_progress", "idle", "requires_continuation":
		return state
	case "completed":
	default:
		state.cancelled = status == "cancelled"
		state.failed = &operationError{status: status, message: status + ": " + cmp.Or(strings.Join(interactionErrors(body), "; "), "no words")}
	}
	state.done, state.usage = true, body.get("usage")
	steps, _ := asList(body.get("steps"))
	for _, each := range steps {
		step, _ := parseObject(each)
		if step.text("type") != "user_input" { // an echo of what was asked
			state.readContent(step.get("content"))
		}
	}
	if len(state.videos) == 0 && body.get("output_video") != nil {
		state.addVideo(body.object("output_video"))
	}
	if len(state.videos) == 0 {
		state.texts = append(state.texts, interactionErrors(body)...)
	}
	return state
}

// interactionErrors are the provider's words of what went wrong, from all the places where they may be.
func interactionErrors(body object) (words []string) {
	found, _ := asList(body.get("errors"))
	if own := body.get("error"); own != nil {
		found = append(found, own)
	}
	steps, _ := asList(body.get("steps"))
	for _, each := range steps {
		step, _ := parseObject(each)
		if own := step.get("error"); own != nil {
			found = append(found, own)
		}
	}
	for _, each := range found {
		if fields, err := parseObject(each); err == nil {
			words = append(words, cmp.Or(fields.text("message"), scalar(fields.get("code")), compact(each)))
		}
	}
	return words
}

func (s *videoState) readContent(text json.RawMessage) {
	parts, _ := asList(text)
	for _, each := range parts {
		part, _ := parseObject(each)
		switch part.text("type") {
		case "video":
			s.addVideo(part)
		case "text":
			if words := part.text("text"); words != "" {
				s.texts = append(s.texts, words)
			}
		}
	}
}

func (s *videoState) addVideo(part object) {
	s.add(part.text("uri"), part.text("data"), part.text("mime_type"))
}
