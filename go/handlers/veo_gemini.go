package handlers

import (
	"encoding/json"
	"net/http"
)

// geminiDialect is `:predictLongRunning` of the Gemini API, which relays still speak. Source: google-genai 2.34.0,
// models.py and _operations_converters.py; ai.google.dev/gemini-api/docs/video.
type geminiDialect struct{}

func (geminiDialect) name() string { return "gemini" }

func (geminiDialect) submission(route *videoRoute, request videoRequest, with videoInputs) (string, object) {
	picture := func(from mediaInput) json.RawMessage {
		return object{{"bytesBase64Encoded", encode(from.data)}, {"mimeType", encode(from.mime)}}.raw()
	}
	video := func(from mediaInput) json.RawMessage {
		if from.uri != "" {
			return object{{"uri", encode(from.uri)}}.raw()
		}
		return object{{"encodedVideo", encode(from.data)}, {"encoding", encode(from.mime)}}.raw()
	}
	return "/v1beta/models/" + route.model + ":predictLongRunning", operationBody(request, with, picture, video)
}

func (geminiDialect) handle(body object) string { return body.text("name") }

func (geminiDialect) poll(operation string) call {
	return call{http.MethodGet, "/v1beta/" + operation, nil}
}

func (geminiDialect) cancel(operation string) call {
	return call{http.MethodPost, "/v1beta/" + operation + ":cancel", []byte("{}")}
}

func (geminiDialect) read(body object) videoState {
	state, response := readOperation(body)
	found := response.object("generateVideoResponse")
	samples, _ := asList(found.get("generatedSamples"))
	for _, each := range samples {
		sample, _ := parseObject(each)
		video := sample.object("video")
		state.add(video.text("uri"), video.text("encodedVideo"), video.text("encoding"))
	}
	state.readFiltered(found)
	return state
}
