package handlers

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"testing"

	"github.com/taskgate/taskgate/go/worker"
)

// The requests of each dialect are those that google-genai sends for the same video, as it was recorded.
func TestRequestsAreThoseOfGoogleGenai(t *testing.T) {
	for _, api := range videoAPIs {
		text, err := os.ReadFile(filepath.Join("..", "..", "tests", "handlers", "genai", api+".json"))
		if err != nil {
			t.Fatal(err)
		}
		var recorded struct {
			Cases []struct {
				Request json.RawMessage
				Sent    []struct {
					Method, Path string
					Body         any
				}
			}
		}
		text = bytes.ReplaceAll(text, []byte("${base}"), []byte(geminiBaseURL))
		if err := json.Unmarshal(text, &recorded); err != nil || len(recorded.Cases) == 0 {
			t.Fatal(api, err)
		}
		for _, c := range recorded.Cases {
			request, err := parseVideoRequest(c.Request)
			if err != nil {
				t.Fatalf("%s %s: %v", api, c.Request, err)
			}
			if err := checkFields(api, request, request.model); err != nil {
				t.Errorf("%s %s: %v", api, c.Request, err)
			}
			provider := &videoProvider{cfg: worker.Config{MediaMaxBytes: 1 << 20}}
			if provider.images, err = newDownloader("", 1<<20, 1<<30); err != nil {
				t.Fatal(err)
			}
			provider.videos = provider.images
			d := dialectOf(api, request.model)
			route := &videoRoute{dialect: d, endpoint: geminiBaseURL, model: request.model}
			if api == "vertex" {
				route.project, route.location = projectIn(c.Sent[0].Path)
			}
			with, err := provider.inputs(t.Context(), route, request)
			if err != nil {
				t.Fatal(err)
			}
			path, body := d.submission(route, request, with)
			calls := []call{{"POST", path, body.raw()}}
			name := map[string]string{"gemini": "models/" + request.model + "/operations/op1", "interactions": "int1", "vertex": operationIn(c.Sent[1].Body)}[api]
			calls = append(calls, d.poll(name), d.cancel(name))
			for i, sent := range c.Sent {
				var found any
				if calls[i].body != nil {
					_ = json.Unmarshal(calls[i].body, &found)
				}
				if calls[i].method != sent.Method || calls[i].path != sent.Path || !reflect.DeepEqual(found, sent.Body) {
					t.Errorf("%s sends\n%s %s %s, google-genai\n%s %s %v", api, calls[i].method, calls[i].path, calls[i].body, sent.Method, sent.Path, sent.Body)
				}
			}
		}
	}
}

func operationIn(body any) string {
	fields, _ := body.(map[string]any)
	name, _ := fields["operationName"].(string)
	return name
}

func projectIn(path string) (project, location string) {
	if found := regexp.MustCompile(`/projects/([^/]+)/locations/([^/]+)/`).FindStringSubmatch(path); found != nil {
		return found[1], found[2]
	}
	return "", ""
}
