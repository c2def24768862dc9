package handlers

import (
	"fmt"
	"slices"
	"strings"

	"github.com/taskgate/taskgate/go/worker"
)

// Which fields each API takes: those that google-genai sends there. Any other is refused, never dropped.

var videoAPIs = []string{"gemini", "vertex", "interactions"}

var videoFields = func() map[string][]string {
	common := strings.Fields("image reference_images video aspect_ratio duration_seconds resolution")
	gemini := append(strings.Fields("last_frame negative_prompt person_generation sample_count enhance_prompt"), common...)
	return map[string][]string{
		"gemini":       gemini,
		"vertex":       append(strings.Fields("seed generate_audio fps compression_quality resize_mode storage_uri"), gemini...),
		"interactions": append(strings.Fields("seed storage_uri sample_count"), common...),
	}
}()

type fieldError struct {
	Pointer string `json:"pointer"`
	Detail  string `json:"detail"`
}

// checkFields fails, permanently with code unsupported_field, for what an API cannot carry.
func checkFields(api string, request videoRequest, model string) error {
	var wrong []fieldError
	where := fmt.Sprintf("the API %s (model %s)", api, model)
	refuse := func(pointer, format string, args ...any) {
		wrong = append(wrong, fieldError{pointer, fmt.Sprintf(format, args...)})
	}
	for _, name := range request.fields() {
		if !slices.Contains(videoFields[api], name) {
			refuse("/"+name, "%s is not supported by %s: leave it out%s", name, where, whoTakes(name))
		}
	}
	if api == "interactions" {
		if count := request.options.get("sample_count"); count != nil && string(count) != "1" {
			refuse("/sample_count", "%s makes one video a task: post one task for each", where)
		}
		if request.image != "" && len(request.references) > 0 {
			refuse("/reference_images", "%s takes image or reference_images, not both", where)
		}
		if slices.ContainsFunc(request.references, func(each reference) bool { return each.style }) {
			refuse("/reference_images", "%s knows no style references: leave out type", where)
		}
	}
	if api == "gemini" {
		for _, each := range request.addresses() {
			if strings.HasPrefix(each[1], "gs://") {
				refuse(each[0], "%s takes no gs:// URL: give an http(s) URL or a data: URI", where)
			}
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return worker.Permanent("%s", wrong[0].Detail).WithCode("unsupported_field").WithInfo(map[string]any{"errors": wrong})
}

func whoTakes(name string) string {
	var able []string
	for _, api := range videoAPIs {
		if slices.Contains(videoFields[api], name) {
			able = append(able, api)
		}
	}
	switch len(able) {
	case 0:
		return ""
	case 1:
		return "; " + able[0] + " takes it"
	}
	return "; " + strings.Join(able, " and ") + " take it"
}
