package handlers

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/taskgate/taskgate/go/worker"
)

const (
	geminiBaseURL  = "https://generativelanguage.googleapis.com"
	storageBaseURL = "https://storage.googleapis.com"
)

// videoRoute is where a video is asked for, on whose account, and in which dialect.
type videoRoute struct {
	dialect
	upstream, endpoint, key string
	project, location       string
	credentials             *googleCredentials // nil: the key is all that is needed
	model                   string
}

// account says who pays. Two accounts are the same when all members are equal.
type account struct {
	Upstream string `json:"upstream"`
	API      string `json:"api"`
	Endpoint string `json:"endpoint"`
	Project  string `json:"project"`
	Location string `json:"location"`
	Key      string `json:"key"`
}

func (r *videoRoute) account() account {
	return account{r.upstream, r.name(), r.endpoint, r.project, r.location, digest(r.key)}
}

func digest(key string) string {
	if key == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(sum[:])[:16]
}

// parent is the path of the project, empty with a key that stands for it.
func (r *videoRoute) parent() string {
	if r.project == "" {
		return ""
	}
	return "projects/" + r.project + "/locations/" + r.location + "/"
}

// authorize puts the key or an access token into a request; it answers the token.
func (r *videoRoute) authorize(ctx context.Context, request *http.Request) (token string, err error) {
	if r.credentials == nil {
		if r.key != "" {
			request.Header.Set("X-Goog-Api-Key", r.key)
		}
		return "", nil
	}
	if token, err = r.credentials.get(ctx); err == nil {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	return token, err
}

func (r *videoRoute) secrets() []string {
	if r.key == "" {
		return nil
	}
	return []string{r.key}
}

// credentialStore has one googleCredentials a file, so that all tasks share its token.
type credentialStore struct {
	client *http.Client
	mu     sync.Mutex
	byFile map[string]*googleCredentials
}

func (c *credentialStore) of(file string) *googleCredentials {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byFile == nil {
		c.byFile = map[string]*googleCredentials{}
	}
	found := c.byFile[file]
	if found == nil {
		found = &googleCredentials{file: file, client: c.client}
		c.byFile[file] = found
	}
	return found
}

// place is the upstream as a row; that of the environment for no name.
func (v *videoProvider) place(ctx context.Context, task *worker.Task, name, api string) (worker.Upstream, string, error) {
	if name == "" {
		return v.environment(api)
	}
	found, err := findUpstream(ctx, task, name)
	if err != nil {
		return found, "", err
	}
	if found.API == "openai" {
		return found, "", notConfigured(fmt.Sprintf("upstream '%s' speaks openai, which makes no videos", name))
	}
	key, err := found.Key()
	if err != nil {
		return found, "", notConfigured(err.Error())
	}
	return found, key, nil
}

func (v *videoProvider) environment(api string) (worker.Upstream, string, error) {
	cfg := v.cfg
	if api == "" {
		api = cfg.VeoAPI
	}
	out := worker.Upstream{API: api, Model: cfg.VeoModel, BaseURL: cfg.GeminiBaseURL}
	if api == "vertex" {
		out.BaseURL, out.Project, out.CredentialsFile = cfg.GoogleBaseURL, cfg.GoogleProject, cfg.GoogleCredentials
		return out, "", nil
	}
	if cfg.GeminiAPIKey == "" && cfg.GeminiBaseURL == "" {
		return out, "", notConfigured("no video provider is configured: set GEMINI_API_KEY, or TASKGATE_VEO_API=vertex")
	}
	return out, cfg.GeminiAPIKey, nil
}

// route is where a request goes. api and model are those of an operation to be resumed, empty for a new one.
func (v *videoProvider) route(ctx context.Context, task *worker.Task, name, wanted, api, model string) (*videoRoute, error) {
	place, key, err := v.place(ctx, task, name, api)
	if err != nil {
		return nil, err
	}
	if model == "" {
		if model, err = v.model(cmp.Or(wanted, place.Model, v.cfg.VeoModel), place.API); err != nil {
			return nil, err
		}
	}
	out := &videoRoute{dialect: dialectOf(place.API, model), upstream: name, key: key, model: model}
	base := place.BaseURL
	if place.API == "vertex" {
		out.project = place.Project
		if out.project == "" && key == "" {
			return nil, notConfigured("Vertex wants a project: set GOOGLE_CLOUD_PROJECT, or project of the upstream")
		}
		if out.project != "" { // else the key says whose
			out.location = place.Location
			if out.location == "" {
				out.location = v.cfg.GoogleLocation
			}
			if key == "" {
				out.credentials = v.credentials.of(place.CredentialsFile)
			}
		}
		switch {
		case base != "":
		case out.location == "" || out.location == "global":
			base = "https://aiplatform.googleapis.com"
		default:
			base = "https://" + out.location + "-aiplatform.googleapis.com"
		}
	}
	if base == "" {
		base = geminiBaseURL
	}
	if out.endpoint = strings.TrimRight(base, "/"); !isHTTP(out.endpoint) {
		return nil, notConfigured(fmt.Sprintf("a provider's base URL must begin with http:// or https://, not '%s'", base[:min(len(base), 100)]))
	}
	if !printable(key) {
		return nil, notConfigured("the video provider's key holds characters that no HTTP header can carry")
	}
	return out, nil
}

func (v *videoProvider) model(name, api string) (string, error) {
	if alias, known := v.cfg.ModelAliases[name]; known {
		name = alias
	}
	switch {
	case name != "":
		// it becomes a part of a path
		if strings.ContainsAny(name, "/?#%\\ ") || strings.IndexFunc(name, func(char rune) bool { return char <= ' ' || char > '~' }) >= 0 {
			return "", invalid("model", "model is a name without blanks and slashes")
		}
		return name, nil
	case api == "vertex":
		return "veo-3.1-generate-001", nil
	case api == "interactions":
		return "gemini-omni-1.1-flash", nil
	}
	return "", worker.Permanent("no model is named, and the API %s has none that everybody has: set TASKGATE_VEO_MODEL", api).WithCode("no_model")
}

func isHTTP(address string) bool {
	parsed, err := url.Parse(address)
	return err == nil && (parsed.Scheme == "http" || parsed.Scheme == "https") && parsed.Hostname() != ""
}

// sameAccount is the route of an account that an earlier attempt used, if it is configured here.
func (v *videoProvider) sameAccount(ctx context.Context, task *worker.Task, text json.RawMessage, op operation) (*videoRoute, account, error) {
	var wanted account
	if err := json.Unmarshal(text, &wanted); err != nil {
		return nil, wanted, worker.Permanent("the account of the submitted video cannot be read").WithCode("account_not_configured")
	}
	route, err := v.route(ctx, task, wanted.Upstream, "", wanted.API, op.Model)
	if err != nil || route.account() != wanted {
		return nil, wanted, nil
	}
	return route, wanted, nil
}
