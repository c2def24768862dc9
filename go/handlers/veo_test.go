package handlers

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/taskgate/taskgate/go/worker"
)

func TestEachDialect(t *testing.T) {
	inline := base64.StdEncoding.EncodeToString(mp4)
	for name, c := range map[string]struct {
		change          func(*worker.Config, *worker.Task)
		request, done   string
		submission      string
		poll            string
		account, result string
	}{
		"gemini": {
			nil, `{"prompt":"P","duration_seconds":8,"aspect_ratio":"16:9","sample_count":1}`, geminiDone,
			`POST /v1beta/models/m:predictLongRunning {"instances":[{"prompt":"P"}],"parameters":{"durationSeconds":8,"aspectRatio":"16:9","sampleCount":1}}`,
			"GET /v1beta/models/m/operations/op1 ",
			`{"upstream":"","api":"gemini","endpoint":"$","project":"","location":"","key":"sha256:95e22d5e8ee6a14f"}`,
			`"uri":"$/file?alt=media"}],"model":"m","api":"gemini","operation":"models/m/operations/op1","seconds":8,`,
		},
		"vertex": {
			func(cfg *worker.Config, _ *worker.Task) { cfg.VeoAPI, cfg.GoogleProject = "vertex", "p" },
			`{"prompt":"P","seed":3,"generate_audio":false,"compression_quality":"lossless","image":"gs://b/x.jpg"}`,
			`{"name":"x","done":true,"response":{"videos":[{"bytesBase64Encoded":"` + inline + `","mimeType":"video/mp4"}]}}`,
			`POST /v1beta1/projects/p/locations/us-central1/publishers/google/models/m:predictLongRunning {"instances":[{"prompt":"P","image":{"gcsUri":"gs://b/x.jpg","mimeType":"image/jpeg"}}],"parameters":{"seed":3,"generateAudio":false,"compressionQuality":"LOSSLESS"}}`,
			`POST /v1beta1/projects/p/locations/us-central1/publishers/google/models/m:fetchPredictOperation {"operationName":"projects/p/locations/us-central1/publishers/google/models/m/operations/op1"}`,
			`{"upstream":"","api":"vertex","endpoint":"$","project":"p","location":"us-central1","key":""}`,
			`"uri":null}],"model":"m","api":"vertex"`,
		},
		"interactions": {
			func(cfg *worker.Config, _ *worker.Task) { cfg.VeoAPI = "interactions" },
			`{"prompt":"P","duration_seconds":4,"seed":7,"resolution":"720p"}`,
			`{"id":"op1","status":"completed","usage":{"total_tokens":5},"steps":[{"type":"user_input","content":[{"type":"text","text":"P"}]},{"type":"model_output","content":[{"type":"video","mime_type":"video/mp4","data":"` + base64.StdEncoding.EncodeToString(mp4[:1000]) + `"}]}]}`,
			`POST /v1/interactions {"model":"m","background":true,"input":"P","response_format":{"type":"video","duration":"4s","resolution":"720p"},"generation_config":{"seed":7}}`,
			"GET /v1/interactions/op1?stream=false ",
			`{"upstream":"","api":"interactions","endpoint":"$","project":"","location":"","key":"sha256:95e22d5e8ee6a14f"}`,
			`"seconds":4,`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			tokens := newTokens(t)
			t.Setenv("GCE_METADATA_HOST", strings.TrimPrefix(tokens.URL, "http://"))
			s, db := newStudio(t, pending, c.done), newMemory()
			result, err := film(t, s, db, c.request, c.change)
			if err != nil {
				t.Fatal(err)
			}
			asked := s.requests()
			if asked[0] != c.submission || asked[1] != c.poll || asked[2] != c.poll {
				t.Errorf("asked %s", strings.Join(asked, "\n"))
			}
			if want := strings.ReplaceAll(c.account, "$", s.URL); string(db.account) != want && name == "vertex" || !regexp.MustCompile(`"key":"(sha256:[0-9a-f]{16})?"`).Match(db.account) {
				t.Errorf("account %s, want %s", db.account, want)
			}
			if !strings.Contains(result, strings.ReplaceAll(c.result, "$", s.URL)) || !strings.Contains(result, `"url":"/tasks/t/media/video-1.mp4"`) {
				t.Errorf("result %s", result)
			}
			if size := len(db.stored["video-1.mp4"]); size != len(mp4) && size != 1000 || db.kinds["video-1.mp4"] != "video/mp4" {
				t.Errorf("stored %d bytes, %v", size, db.kinds)
			}
			if !slices.Equal(db.events, []string{"intend", "save", "store"}) {
				t.Errorf("events %v", db.events)
			}
			var saved operation
			if json.Unmarshal(db.operation, &saved) != nil || saved.API != name || saved.Model != "m" || time.Since(saved.SubmittedAt) > time.Minute {
				t.Errorf("operation %s", db.operation)
			}
		})
	}
}

func TestWhatBecomesOfASubmission(t *testing.T) {
	drop := func(out http.ResponseWriter) {
		conn, _, _ := out.(http.Hijacker).Hijack()
		_ = conn.Close()
	}
	status := func(code int, body string) func(http.ResponseWriter) {
		return func(out http.ResponseWriter) {
			out.WriteHeader(code)
			fmt.Fprint(out, body)
		}
	}
	half := func(out http.ResponseWriter) {
		out.Header().Set("Content-Length", "100")
		fmt.Fprint(out, `{"name":`)
	}
	for name, c := range map[string]struct {
		submit               func(http.ResponseWriter)
		outcome, code, words string
		withdrawn            bool
	}{
		"dropped":              {drop, "permanent", "submit_ambiguous", "submit_ambiguous", false},
		"half an answer":       {half, "permanent", "submit_ambiguous", "submit_ambiguous", false},
		"no operation":         {status(200, `{}`), "permanent", "submit_ambiguous", "submit_ambiguous", false},
		"a gateway's time":     {status(504, ``), "permanent", "submit_ambiguous", "submit_ambiguous", false},
		"408":                  {status(408, ``), "permanent", "submit_ambiguous", "submit_ambiguous", false},
		"499":                  {status(499, ``), "permanent", "submit_ambiguous", "submit_ambiguous", false},
		"502":                  {status(502, ``), "permanent", "submit_ambiguous", "submit_ambiguous", false},
		"520":                  {status(520, ``), "permanent", "submit_ambiguous", "submit_ambiguous", false},
		"524":                  {status(524, ``), "permanent", "submit_ambiguous", "submit_ambiguous", false},
		"503":                  {status(503, ``), "retry", "provider_unavailable", "", true},
		"500":                  {status(500, `{"error":{"message":"oops"}}`), "retry", "provider_error", "oops", true},
		"429":                  {status(429, `{"error":{"message":"slow","details":[{"retryDelay":"3s"}]}}`), "throttled", "throttled", "slow", true},
		"401":                  {status(401, `{}`), "permanent", "provider_auth", "", true},
		"no such model":        {status(404, `{"error":{"message":"gone"}}`), "permanent", "model_not_found", "'m' (404: gone)", true},
		"refused for its text": {status(400, `{"error":{"message":"violates our usage guidelines"}}`), "permanent", "content_filtered", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			s, db := newStudio(t, geminiDone), newMemory()
			s.submit = c.submit
			_, err := film(t, s, db, `{"prompt":"P"}`, nil)
			steered(t, err, c.outcome, c.code, c.words)
			if withdrawn := slices.Contains(db.events, "withdraw"); withdrawn != c.withdrawn || len(s.submissions()) != 1 {
				t.Errorf("%v %v", db.events, s.submissions())
			}
		})
	}
}

func TestAnUnknownSubmissionIsRepeatedWhereThatIsSet(t *testing.T) {
	s, db := newStudio(t, geminiDone), newMemory()
	s.submit = func(out http.ResponseWriter) { out.WriteHeader(504) }
	_, err := film(t, s, db, `{"prompt":"P"}`, func(cfg *worker.Config, _ *worker.Task) { cfg.RetryAmbiguous = true })
	steered(t, err, "retry", "submit_unknown", "sent again")
}

func TestASubmissionThatNobodyGotIsTakenBack(t *testing.T) {
	s, db := newStudio(t, geminiDone), newMemory()
	_, err := film(t, s, db, `{"prompt":"P"}`, func(cfg *worker.Config, _ *worker.Task) { cfg.GeminiBaseURL = "http://127.0.0.1:1" })
	steered(t, err, "retry", "provider_unavailable", "cannot be reached")
	if !slices.Equal(db.events, []string{"intend", "withdraw"}) {
		t.Error(db.events)
	}
}

func TestNothingIsSentWithoutAnIntent(t *testing.T) {
	s, db := newStudio(t, geminiDone), newMemory()
	db.stale = true
	if _, err := film(t, s, db, `{"prompt":"P"}`, nil); !errors.Is(err, worker.ErrLeaseLost) || len(s.requests()) > 0 {
		t.Errorf("%v %v", err, s.requests())
	}
}

func TestAnOperationIsResumedOnItsAccountOnly(t *testing.T) {
	s, db := newStudio(t, "503", "404", "not json", `{}`, pending, geminiDone), newMemory()
	paid := func(key string) *worker.Paid {
		who := account{API: "gemini", Endpoint: s.URL, Key: digest(key)}
		return &worker.Paid{Account: encode(who), Operation: json.RawMessage(`{"name":"models/m/operations/op7","api":"gemini","model":"m","submitted_at":"2026-01-02T03:04:05.678+00:00"}`)}
	}
	result, err := film(t, s, db, `{"prompt":"P"}`, func(_ *worker.Config, task *worker.Task) { task.Paid = paid("key-of-gemini") })
	if err != nil || !strings.Contains(result, "op7") || len(s.submissions()) > 0 || !slices.Equal(db.events, []string{"store"}) {
		t.Errorf("%s %v %v %v", result, err, s.submissions(), db.events)
	}
	db.events = nil
	_, err = film(t, s, db, `{"prompt":"P"}`, func(_ *worker.Config, task *worker.Task) {
		task.Paid, task.Checkpoint = paid("key-of-gemini"), json.RawMessage(`{"account_missing_since":1}`)
	})
	if err != nil || string(db.checkpoint) != `{}` {
		t.Errorf("the wait for the account is not over: %v %s", err, db.checkpoint)
	}
	_, err = film(t, s, db, `{"prompt":"P"}`, func(_ *worker.Config, task *worker.Task) { task.Paid = paid("another") })
	steered(t, err, "snoozed", "account_not_here", "which this worker does not have")
	_, err = film(t, s, db, `{"prompt":"P"}`, func(cfg *worker.Config, task *worker.Task) {
		task.Paid, task.Checkpoint = paid("another"), json.RawMessage(`{"account_missing_since":1}`)
	})
	steered(t, err, "permanent", "account_not_configured", "which no worker has configured")
	if len(s.submissions()) > 0 {
		t.Error(s.submissions())
	}
}

func TestAnIntentOfAnEarlierAttempt(t *testing.T) {
	s, db := newStudio(t, geminiDone), newMemory()
	lost := func(policy bool, operation string) func(*worker.Config, *worker.Task) {
		return func(cfg *worker.Config, task *worker.Task) {
			cfg.RetryAmbiguous, task.Paid = policy, &worker.Paid{Account: json.RawMessage(`{}`), Operation: json.RawMessage(operation)}
		}
	}
	_, err := film(t, s, db, `{"prompt":"P"}`, lost(false, "null"))
	steered(t, err, "permanent", "submit_ambiguous", "submit_ambiguous")
	if len(s.requests()) > 0 {
		t.Error(s.requests())
	}
	for _, change := range []func(*worker.Config, *worker.Task){lost(true, "null"), lost(false, `{"name":"x","closed":"failed"}`)} {
		if _, err := film(t, s, db, `{"prompt":"P"}`, change); err != nil {
			t.Error(err)
		}
	}
	if len(s.submissions()) != 2 {
		t.Error(s.submissions())
	}
}

func TestFilteredVideos(t *testing.T) {
	filtered := func(words string) string {
		return `{"done":true,"response":{"generateVideoResponse":{"raiMediaFilteredCount":1,"raiMediaFilteredReasons":["` + words + `"]}}}`
	}
	s, db := newStudio(t, filtered("shows what must not be shown")), newMemory()
	_, err := film(t, s, db, `{"prompt":"P"}`, func(cfg *worker.Config, _ *worker.Task) { cfg.VeoAudioRetries = 3 })
	steered(t, err, "permanent", "content_filtered", "must not be shown")
	if !strings.Contains(string(db.operation), `"closed":"filtered"`) || len(s.submissions()) != 1 {
		t.Errorf("%s", db.operation)
	}
	s, db = newStudio(t, filtered("an issue with the audio"), filtered("an issue with the Audio"), geminiDone), newMemory()
	if _, err := film(t, s, db, `{"prompt":"P"}`, func(cfg *worker.Config, _ *worker.Task) { cfg.VeoAudioRetries = 2 }); err != nil || len(s.submissions()) != 3 {
		t.Errorf("%v %v", err, s.submissions())
	}
	s, db = newStudio(t, filtered("an issue with the audio")), newMemory()
	_, err = film(t, s, db, `{"prompt":"P"}`, func(cfg *worker.Config, _ *worker.Task) { cfg.VeoAudioRetries = 2 })
	steered(t, err, "permanent", "content_filtered", "audio")
	if len(s.submissions()) != 3 || !strings.Contains(string(db.operation), `"audio_retries":2`) {
		t.Errorf("%s %v", db.operation, s.submissions())
	}
}

func TestOperationsThatBreak(t *testing.T) {
	for answer, want := range map[string][3]string{
		`{"done":true,"error":{"code":13,"message":"inside"}}`:              {"retry", "provider_error", "inside"},
		`{"done":true,"error":{"code":3,"message":"no such size"}}`:         {"permanent", "provider_refused", "no such size"},
		`{"done":true,"error":{"code":3,"message":"our usage guidelines"}}`: {"permanent", "content_filtered", "guidelines"},
		`{"done":true,"error":{"code":1,"message":"stop"}}`:                 {"permanent", "operation_cancelled", "stop"},
		`{"done":true,"response":{}}`:                                       {"permanent", "no_video", "without a video"},
	} {
		s, db := newStudio(t, answer), newMemory()
		_, err := film(t, s, db, `{"prompt":"P"}`, nil)
		steered(t, err, want[0], want[1], want[2])
		if !strings.Contains(string(db.operation), `"closed"`) {
			t.Errorf("still open: %s", db.operation)
		}
	}
}

func TestTheKeyStaysWithTheProvider(t *testing.T) {
	other, db := newStudio(t, pending), newMemory()
	s := newStudio(t, strings.ReplaceAll(geminiDone, "$/file", "$/moved/"+other.URL+"/file"))
	allow := func(cfg *worker.Config, _ *worker.Task) { cfg.MediaAllow = "127.0.0.1" }
	if _, err := film(t, s, db, `{"prompt":"P"}`, allow); err != nil {
		t.Fatal(err)
	}
	if slices.Contains(s.keys, "") || !slices.Equal(other.keys, []string{""}) {
		t.Errorf("%q %q", s.keys, other.keys)
	}
	s = newStudio(t, strings.ReplaceAll(geminiDone, "$/file", "$/moved/"+other.URL+"/file"))
	_, err := film(t, s, db, `{"prompt":"P"}`, nil)
	steered(t, err, "permanent", "media_refused", "not a public one")
	if len(other.requests()) != 1 {
		t.Error("a private host was asked")
	}
}

func TestUnsupportedFieldsAreRefusedBeforeAnythingIsPaid(t *testing.T) {
	s, db := newStudio(t, geminiDone), newMemory()
	for request, words := range map[string]string{
		`{"prompt":"P","seed":1}`:                 "seed is not supported by the API gemini (model m): leave it out; vertex and interactions take it",
		`{"prompt":"P","image":"gs://a/b.png"}`:   "takes no gs:// URL",
		`{"prompt":"P","resize_mode":"pad"}`:      "vertex takes it",
		`{"prompt":"P","seed":null,"fps":24}`:     "fps is not supported",
		`{"prompt":"P","generate_audio":true}`:    "generate_audio",
		`{"prompt":"P","storage_uri":"gs://b/x"}`: "storage_uri",
	} {
		_, err := film(t, s, db, request, nil)
		steered(t, err, "permanent", "unsupported_field", words)
	}
	for request, words := range map[string]string{
		`{}`: "prompt", `{"prompt":" "}`: "prompt", `{"prompt":"P","duration_seconds":4.5}`: "duration_seconds", `{"prompt":"P","zzz":1}`: "zzz", `{"prompt":"P","sample_count":9}`: "sample_count",
		`{"prompt":"P","aspect_ratio":"wide"}`: "aspect_ratio", `{"prompt":"P","reference_images":[]}`: "reference_images", `{"prompt":"P","model":"../x"}`: "model", `{"prompt":"P","image":7}`: "image",
	} {
		_, err := film(t, s, db, request, nil)
		steered(t, err, "permanent", "invalid_request", words)
	}
	if len(s.requests()) > 0 || len(db.events) > 0 {
		t.Error(s.requests(), db.events)
	}
}
