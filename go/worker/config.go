package worker

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Version is this program's version.
const Version = "0.1.0"

// Config holds the settings of a worker: the names and defaults of src/taskgate/settings.py.
type Config struct {
	DatabaseURL    string
	Schema         string
	DatabasePooler bool

	Slots          int
	ClaimAhead     int
	Lease          time.Duration
	Timeout        time.Duration
	Grace          time.Duration
	Poll           time.Duration
	Host           string
	Port           int // of /healthz and /metrics; -1 is off, 0 takes a free one
	MaxResultBytes int
	MaxThrottle    time.Duration
	LogFormat      string
	LogLevel       string

	OpenAIAPIKey   string
	OpenAIBaseURL  string
	LLMModel       string
	LLMRawResponse bool
	InlineImages   bool
	MediaAllow     string
	MediaMaxBytes  int

	MediaMaxVideoBytes int
	MediaMaxPixels     int
	MediaStore         string
	MediaMaxStoreBytes int64

	GeminiAPIKey      string
	GeminiBaseURL     string
	VeoAPI            string
	VeoModel          string
	ModelAliases      map[string]string
	VeoPoll           time.Duration
	VeoSubmit         time.Duration
	VeoTimeout        time.Duration
	VeoAudioRetries   int
	RetryAmbiguous    bool // a video whose submission had no answer
	LLMFailAmbiguous  bool // a chat whose call had no answer
	AccountWait       time.Duration
	GoogleProject     string
	GoogleLocation    string
	GoogleBaseURL     string // of Vertex
	GoogleCredentials string // a file; empty: the metadata server
	GoogleStorageURL  string

	// Types limits the worker to some of its handlers; empty means all of them.
	Types []string

	slips map[string]string // what to say of names that are misspelt, see slips
}

var schemaName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,50}$`)

// FromEnvironment reads the settings from the environment; each may also come from a file that NAME_FILE names.
// It fails with a ConfigError that says which setting is wrong. Values of secrets are never in it.
func FromEnvironment() (Config, error) {
	r := reader{}
	cfg := Config{
		DatabaseURL:    r.text("DATABASE_URL", ""),
		Schema:         r.text("TASKGATE_SCHEMA", "public"),
		DatabasePooler: r.flag("TASKGATE_DATABASE_POOLER"),
		Slots:          r.integer("TASKGATE_SLOTS", 20, 1, 100_000),
		ClaimAhead:     r.integer("TASKGATE_CLAIM_AHEAD", 9, 0, 20),
		Lease:          r.seconds("TASKGATE_LEASE_SECONDS", 60, 1, 86400),
		Timeout:        r.seconds("TASKGATE_TIMEOUT_SECONDS", 600, 0.001, 1e9),
		Grace:          r.seconds("TASKGATE_GRACE_SECONDS", 30, 0, 1e9),
		Poll:           r.seconds("TASKGATE_POLL_SECONDS", 15, 0.001, 1e9),
		Host:           r.text("TASKGATE_HOST", "127.0.0.1"),
		Port:           r.integer("TASKGATE_WORKER_PORT", -1, 0, 65535),
		MaxResultBytes: r.integer("TASKGATE_MAX_RESULT_BYTES", 10<<20, 1024, math.MaxInt32),
		MaxThrottle:    r.seconds("TASKGATE_MAX_THROTTLE_SECONDS", 3600, 0, 1e9),
		LogFormat:      r.choice("TASKGATE_LOG_FORMAT", "auto", "console", "json"),
		LogLevel:       r.choice("TASKGATE_LOG_LEVEL", "info", "debug", "warning", "error"),
		OpenAIAPIKey:   r.text("OPENAI_API_KEY", ""),
		OpenAIBaseURL:  r.text("OPENAI_BASE_URL", ""),
		LLMModel:       r.text("TASKGATE_LLM_MODEL", ""),
		LLMRawResponse: r.flag("TASKGATE_LLM_RAW_RESPONSE"),
		InlineImages:   r.choice("TASKGATE_IMAGES", "inline", "pass") == "inline",
		MediaAllow:     r.text("TASKGATE_MEDIA_ALLOW", ""),
		MediaMaxBytes:  r.integer("TASKGATE_MEDIA_MAX_BYTES", 20<<20, 1024, math.MaxInt32),

		MediaMaxVideoBytes: r.integer("TASKGATE_MEDIA_MAX_VIDEO_BYTES", 50<<20, 1024, math.MaxInt32),
		MediaMaxPixels:     r.integer("TASKGATE_MEDIA_MAX_PIXELS", 50_000_000, 1, math.MaxInt),
		MediaStore:         r.text("TASKGATE_MEDIA_STORE", "postgres"),
		MediaMaxStoreBytes: int64(r.integer("TASKGATE_MEDIA_MAX_STORE_BYTES", maxStoreBytes, 1024, math.MaxInt)),

		GeminiAPIKey:      r.text("GOOGLE_API_KEY", r.text("GEMINI_API_KEY", "")),
		GeminiBaseURL:     r.text("GEMINI_BASE_URL", r.text("GOOGLE_GEMINI_BASE_URL", "")),
		VeoAPI:            r.choice("TASKGATE_VEO_API", "interactions", "gemini", "vertex"),
		VeoModel:          r.text("TASKGATE_VEO_MODEL", ""),
		ModelAliases:      r.pairs("TASKGATE_MODEL_ALIASES"),
		VeoPoll:           r.seconds("TASKGATE_VEO_POLL_SECONDS", 10, 0.01, 3600),
		VeoSubmit:         r.seconds("TASKGATE_VEO_SUBMIT_SECONDS", 120, 0.01, 1e9),
		VeoTimeout:        r.seconds("TASKGATE_VEO_TIMEOUT_SECONDS", 3600, 0.01, 1e9),
		VeoAudioRetries:   r.integer("TASKGATE_VEO_AUDIO_RETRIES", 0, 0, 20),
		RetryAmbiguous:    r.choice("TASKGATE_AMBIGUOUS_SUBMIT", "fail", "retry") == "retry",
		LLMFailAmbiguous:  r.choice("TASKGATE_LLM_AMBIGUOUS", "retry", "fail") == "fail",
		AccountWait:       r.seconds("TASKGATE_ACCOUNT_WAIT_SECONDS", 600, 0, 1e9),
		GoogleProject:     r.text("GOOGLE_CLOUD_PROJECT", ""),
		GoogleLocation:    r.text("GOOGLE_CLOUD_LOCATION", "us-central1"),
		GoogleBaseURL:     r.text("GOOGLE_VERTEX_BASE_URL", ""),
		GoogleCredentials: r.text("GOOGLE_APPLICATION_CREDENTIALS", ""),
		GoogleStorageURL:  r.text("STORAGE_EMULATOR_HOST", ""),
	}
	if r.err == nil {
		r.err = cfg.check()
	}
	cfg.slips = slips(os.Environ(), r.names)
	return cfg, r.err
}

func (c Config) check() error {
	switch {
	case c.DatabaseURL == "":
		return &ConfigError{"DATABASE_URL is not set: give a postgresql:// URL"}
	case !strings.HasPrefix(c.DatabaseURL, "postgresql://") && !strings.HasPrefix(c.DatabaseURL, "postgres://"):
		return &ConfigError{"DATABASE_URL must be a postgresql:// URL"}
	case !schemaName.MatchString(c.Schema):
		return &ConfigError{"TASKGATE_SCHEMA must be a plain lower-case name: a-z, 0-9 and _, at most 51 characters"}
	}
	return nil
}

// reader reads the environment and keeps the first error.
type reader struct {
	err   error
	names []string // what was asked for
}

func (r *reader) fail(name, words string) {
	if r.err == nil {
		r.err = &ConfigError{name + " " + words}
	}
}

func (r *reader) text(name, fallback string) string {
	r.names = append(r.names, name)
	if value := os.Getenv(name); value != "" {
		return value
	}
	path := os.Getenv(name + "_FILE")
	if path == "" {
		return fallback
	}
	content, err := os.ReadFile(path)
	if err != nil {
		r.fail(name+"_FILE", "cannot be read: "+err.Error())
		return fallback
	}
	if value := strings.TrimSpace(string(content)); value != "" {
		return value
	}
	return fallback
}

func (r *reader) integer(name string, fallback, least, most int) int {
	value := r.text(name, "")
	if value == "" {
		return fallback
	}
	number, err := strconv.Atoi(strings.TrimSpace(value))
	if err != nil || number < least || number > most {
		r.fail(name, fmt.Sprintf("must be a whole number from %d to %d", least, most))
		return fallback
	}
	return number
}

func (r *reader) seconds(name string, fallback, least, most float64) time.Duration {
	number := fallback
	if value := r.text(name, ""); value != "" {
		given, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil || !(given >= least && given <= most) {
			r.fail(name, fmt.Sprintf("must be a number of seconds from %g to %g", least, most))
		} else {
			number = given
		}
	}
	return time.Duration(number * float64(time.Second))
}

func (r *reader) flag(name string) bool {
	switch strings.ToLower(r.text(name, "")) {
	case "1", "true", "t", "yes", "y", "on":
		return true
	case "", "0", "false", "f", "no", "n", "off":
		return false
	}
	r.fail(name, "must be 1 or 0")
	return false
}

// pairs reads "old=new, old2=new2".
func (r *reader) pairs(name string) map[string]string {
	out := map[string]string{}
	for _, entry := range strings.Split(r.text(name, ""), ",") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		from, to, found := strings.Cut(entry, "=")
		if from, to = strings.TrimSpace(from), strings.TrimSpace(to); !found || from == "" || to == "" || from == to {
			r.fail(name, "must look like old=new, old2=new2")
		}
		out[from] = to
	}
	return out
}

// choice takes one of the options; the first is the default.
func (r *reader) choice(name string, options ...string) string {
	value := r.text(name, options[0])
	for _, option := range options {
		if value == option {
			return value
		}
	}
	r.fail(name, "must be one of "+strings.Join(options, ", "))
	return options[0]
}
