package handlers

import (
	"encoding/json"
	"strings"
)

// A video API has a dialect: how a request is spelled, and what its answers mean. The bodies are held against those
// that google-genai sends (tests/handlers/genai).

// dialect is one of the three.
type dialect interface {
	name() string
	// submission is the path below the base URL, and the body.
	submission(route *videoRoute, request videoRequest, with videoInputs) (string, object)
	// handle is the operation's name in the answer to a submission; empty if it has none.
	handle(body object) string
	poll(operation string) call
	cancel(operation string) call
	read(body object) videoState
}

// call is a request to the provider: path below the base URL, and a body if it has one.
type call struct {
	method, path string
	body         []byte
}

// videoInputs are the pictures and the video of a request, fetched.
type videoInputs struct {
	image, last, video *mediaInput
	references         []referenceInput
}

// mediaInput has content in base64, or the address of what the provider has already.
type mediaInput struct{ uri, data, mime string }

type referenceInput struct {
	mediaInput
	style bool
}

// videoState is what an answer to a poll says.
type videoState struct {
	strange   bool // it is no answer of this API
	done      bool
	failed    *operationError
	cancelled bool
	videos    []videoOut
	filtered  int
	reasons   []string
	usage     json.RawMessage
	texts     []string // the provider's words instead of a video
}

// videoOut is at the provider (uri), or came with the answer: mark is what it was stored as while the answer was
// read, or itself in base64 if it is small.
type videoOut struct{ uri, mark, mime string }

func (s *videoState) add(uri, mark, mime string) {
	if uri != "" || mark != "" {
		s.videos = append(s.videos, videoOut{uri, mark, mime})
	}
}

// operationError is a google.rpc.Status, or what stands for it.
type operationError struct {
	code    int
	message string
	status  string
}

// dialectOf is the dialect by which an API speaks to a model: Google serves both of its kinds under the same address
// and key.
func dialectOf(api, model string) dialect {
	switch {
	case api == "vertex":
		return vertexDialect{}
	case api == "gemini" && !strings.HasPrefix(model, "gemini-"), api == "interactions" && strings.HasPrefix(model, "veo-"):
		return geminiDialect{}
	}
	return interactionsDialect{}
}

// operationNames spells the options that the two dialects of operations share.
var operationNames = map[string]string{
	"aspect_ratio": "aspectRatio", "duration_seconds": "durationSeconds", "resolution": "resolution", "negative_prompt": "negativePrompt",
	"person_generation": "personGeneration", "sample_count": "sampleCount", "enhance_prompt": "enhancePrompt", "seed": "seed",
	"generate_audio": "generateAudio", "fps": "fps", "compression_quality": "compressionQuality", "resize_mode": "resizeMode", "storage_uri": "storageUri",
}

func operationBody(request videoRequest, with videoInputs, picture, video func(mediaInput) json.RawMessage) object {
	instance := object{{"prompt", encode(request.prompt)}}
	if with.image != nil {
		instance = append(instance, member{"image", picture(*with.image)})
	}
	if with.last != nil {
		instance = append(instance, member{"lastFrame", picture(*with.last)})
	}
	if len(with.references) > 0 {
		list := make([]json.RawMessage, len(with.references))
		for i, each := range with.references {
			kind := "ASSET"
			if each.style {
				kind = "STYLE"
			}
			list[i] = object{{"image", picture(each.mediaInput)}, {"referenceType", encode(kind)}}.raw()
		}
		instance = append(instance, member{"referenceImages", rawList(list)})
	}
	if with.video != nil {
		instance = append(instance, member{"video", video(*with.video)})
	}
	body := object{{"instances", rawList([]json.RawMessage{instance.raw()})}}
	var parameters object
	for _, each := range request.options {
		value := each.value
		if text, ok := asString(value); ok && (each.key == "compression_quality" || each.key == "resize_mode") {
			value = encode(strings.ToUpper(text))
		}
		parameters = append(parameters, member{operationNames[each.key], value})
	}
	if len(parameters) > 0 {
		body = append(body, member{"parameters", parameters.raw()})
	}
	return body
}

func readOperation(body object) (state videoState, response object) {
	if state.strange = body.text("name") == "" && !has(body, "done"); state.strange {
		return state, nil
	}
	if string(body.get("done")) != "true" {
		return state, nil
	}
	state.done = true
	if wrong := body.get("error"); wrong != nil {
		state.failed = readError(wrong)
		state.cancelled = state.failed.code == 1
		return state, nil
	}
	response, _ = parseObject(orNull(body.get("response")))
	return state, response
}

func readError(text json.RawMessage) *operationError {
	fields, _ := parseObject(text)
	var out operationError
	_ = json.Unmarshal(orNull(fields.get("code")), &out.code)
	out.message, _ = asString(fields.get("message"))
	out.status, _ = asString(fields.get("status"))
	if out.status == "" {
		out.status, _ = asString(fields.get("code"))
	}
	return &out
}

// readFiltered reads what both dialects of operations say of videos that were held back.
func (s *videoState) readFiltered(from object) {
	_ = json.Unmarshal(orNull(from.get("raiMediaFilteredCount")), &s.filtered)
	reasons, _ := asList(from.get("raiMediaFilteredReasons"))
	for _, each := range reasons {
		if words, ok := asString(each); ok {
			s.reasons = append(s.reasons, words)
		}
	}
	if s.filtered == 0 {
		s.filtered = len(s.reasons)
	}
}

// text is a text of an object, empty if there is none.
func (o object) text(key string) string {
	text, _ := asString(o.get(key))
	return text
}

func (o object) object(key string) object {
	inner, _ := parseObject(orNull(o.get(key)))
	return inner
}
