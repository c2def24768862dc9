package handlers

import (
	"encoding/json"
	"net/http"
	"strings"
)

// vertexDialect is `:predictLongRunning` and `:fetchPredictOperation` of Vertex. Source: google-genai 3, models.py;
// docs.cloud.google.com, VideoGenerationModelParams.
type vertexDialect struct{}

func (vertexDialect) name() string { return "vertex" }

func (vertexDialect) submission(route *videoRoute, request videoRequest, with videoInputs) (string, object) {
	content := func(from mediaInput) json.RawMessage {
		if from.uri != "" {
			return object{{"gcsUri", encode(from.uri)}, {"mimeType", encode(from.mime)}}.raw()
		}
		return object{{"bytesBase64Encoded", encode(from.data)}, {"mimeType", encode(from.mime)}}.raw()
	}
	return "/v1beta1/" + route.parent() + "publishers/google/models/" + route.model + ":predictLongRunning", operationBody(request, with, content, content)
}

func (vertexDialect) handle(body object) string {
	name := body.text("name")
	if !strings.Contains(name, "/operations/") {
		return ""
	}
	return name
}

// poll asks the model, not the operation: a GET of the operation is 404.
func (vertexDialect) poll(operation string) call {
	resource, _, _ := strings.Cut(operation, "/operations/")
	return call{http.MethodPost, "/v1beta1/" + resource + ":fetchPredictOperation", object{{"operationName", encode(operation)}}.raw()}
}

func (vertexDialect) cancel(operation string) call {
	return call{http.MethodPost, "/v1beta1/" + operation + ":cancel", []byte("{}")}
}

func (vertexDialect) read(body object) videoState {
	state, response := readOperation(body)
	videos, _ := asList(response.get("videos"))
	for _, each := range videos {
		video, _ := parseObject(each)
		state.add(video.text("gcsUri"), video.text("bytesBase64Encoded"), video.text("mimeType"))
	}
	state.readFiltered(response)
	return state
}
