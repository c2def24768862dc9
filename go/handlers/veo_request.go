package handlers

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// The request of a `veo` task: one model for every provider. The API has checked it, but a producer that knows only
// SQL has not.

type videoRequest struct {
	prompt          string
	image, last     string // addresses: a URL or a data: URI
	references      []reference
	video           string
	model           string
	durationSeconds int
	options         object // what else is given, in the caller's order, its values checked
}

type reference struct {
	address string
	style   bool // else an asset
}

const maxReferences = 3

// optionKinds are the fields that travel as they are, and what each holds: text, flag, the bounds of a whole number,
// one of some words, or text that fits a pattern.
var optionKinds = map[string]string{
	"aspect_ratio": `^\d{1,2}:\d{1,2}$`, "duration_seconds": "1 60", "resolution": `^(\d{3,4}p|4k)$`, "negative_prompt": "text", "seed": "0 4294967295",
	"person_generation": `^(dont_allow|allow_adult|allow_all)$`, "sample_count": "1 4", "enhance_prompt": "flag", "generate_audio": "flag", "fps": "1 120",
	"compression_quality": `^(optimized|lossless)$`, "resize_mode": `^(pad|crop)$`, "storage_uri": `^gs://.`,
}

// parseVideoRequest fails with a permanent error, code invalid_request, that names the wrong field.
func parseVideoRequest(text json.RawMessage) (videoRequest, error) {
	given, err := parseObject(text)
	if err != nil {
		return videoRequest{}, invalid("", "the request "+err.Error())
	}
	var out videoRequest
	for _, each := range given {
		if string(each.value) == "null" {
			continue
		}
		if err := out.take(each); err != nil {
			return videoRequest{}, err
		}
	}
	if strings.TrimSpace(out.prompt) == "" {
		return videoRequest{}, invalid("prompt", "prompt must be a string that holds more than blanks")
	}
	return out, nil
}

func (r *videoRequest) take(field member) error {
	name, value := field.key, field.value
	switch name {
	case "prompt":
		return setText(&r.prompt, name, value)
	case "model":
		return setText(&r.model, name, value)
	case "image":
		return setAddress(&r.image, name, value)
	case "last_frame":
		return setAddress(&r.last, name, value)
	case "video":
		return setAddress(&r.video, name, value)
	case "reference_images":
		return r.takeReferences(value)
	}
	kind, known := optionKinds[name]
	if !known {
		return invalid(name, name+" is not a field of a veo task")
	}
	if kind == "flag" {
		if string(value) != "true" && string(value) != "false" {
			return invalid(name, name+" is true or false")
		}
	} else if least, most := 0, 0; scan(kind, &least, &most) {
		number, err := strconv.ParseFloat(string(value), 64)
		if err != nil || number != math.Trunc(number) || number < float64(least) || number > float64(most) {
			return invalid(name, fmt.Sprintf("%s is a whole number from %d to %d", name, least, most))
		}
		value = encode(int64(number))
		if name == "duration_seconds" {
			r.durationSeconds = int(number)
		}
	} else {
		var text string
		if err := setText(&text, name, value); err != nil {
			return err
		}
		if kind != "text" && !regexp.MustCompile(kind).MatchString(text) {
			return invalid(name, fmt.Sprintf("%s %q does not match %s", name, text[:min(len(text), 100)], kind))
		}
	}
	r.options.set(name, value)
	return nil
}

func scan(text string, least, most *int) bool {
	count, _ := fmt.Sscan(text, least, most)
	return count == 2
}

func (r *videoRequest) takeReferences(value json.RawMessage) error {
	list, ok := asList(value)
	if !ok || len(list) == 0 || len(list) > maxReferences {
		return invalid("reference_images", fmt.Sprintf("reference_images is a list of 1 to %d images", maxReferences))
	}
	for _, each := range list {
		var one reference
		if isObject(each) {
			fields, _ := parseObject(each)
			kind, _ := asString(fields.get("type"))
			if kind != "" && kind != "asset" && kind != "style" {
				return invalid("reference_images", "the type of a reference image is asset or style")
			}
			one.style = kind == "style"
			each = orNull(fields.get("image"))
		}
		if err := setAddress(&one.address, "reference_images", each); err != nil {
			return err
		}
		r.references = append(r.references, one)
	}
	return nil
}

func setText(into *string, name string, value json.RawMessage) error {
	text, ok := asString(value)
	if !ok || text == "" {
		return invalid(name, name+" is a string that is not empty")
	}
	*into = text
	return nil
}

func setAddress(into *string, name string, value json.RawMessage) error {
	text, ok := asString(value)
	if !ok || text == "" {
		return invalid(name, name+" is a URL or a data: URI")
	}
	*into = text
	return nil
}

// fields are the names of what is given.
func (r videoRequest) fields() []string {
	out := make([]string, 0, 8)
	for _, each := range []struct {
		name  string
		given bool
	}{{"image", r.image != ""}, {"last_frame", r.last != ""}, {"reference_images", len(r.references) > 0}, {"video", r.video != ""}} {
		if each.given {
			out = append(out, each.name)
		}
	}
	for _, each := range r.options {
		out = append(out, each.key)
	}
	return out
}

// addresses are the media of a request, each with its JSON pointer.
func (r videoRequest) addresses() [][2]string {
	out := [][2]string{{"/image", r.image}, {"/last_frame", r.last}, {"/video", r.video}}
	for i, each := range r.references {
		out = append(out, [2]string{fmt.Sprintf("/reference_images/%d", i), each.address})
	}
	return out
}
