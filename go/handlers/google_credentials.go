package handlers

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/taskgate/taskgate/go/worker"
)

// Access tokens for Vertex. Sources: RFC 7523 (service account), RFC 8693 (workload identity federation), the
// metadata server's `instance/service-accounts/default/token`; the files are those that google-auth reads.

const (
	googleScope   = "https://www.googleapis.com/auth/cloud-platform"
	tokenMargin   = 4 * time.Minute  // a token is renewed so long before its end
	tokenLasts    = 10 * time.Minute // if the answer does not say
	tokenPatience = 30 * time.Second
	maxTokenBytes = 1 << 20
)

// googleCredentials gives access tokens, and renews them. One may be used by any number of calls at once.
type googleCredentials struct {
	file   string // of a service account or an external account; empty: the metadata server
	client *http.Client

	mu      sync.Mutex
	token   string
	renewAt time.Time
	until   time.Time
	asked   chan struct{} // closed when the request under way has ended
	wrong   error         // of the last request
}

// credentialsFile is the part of the file's JSON that is used here.
type credentialsFile struct {
	Type string `json:"type"`
	// service_account
	ClientEmail  string `json:"client_email"`
	PrivateKey   string `json:"private_key"`
	PrivateKeyID string `json:"private_key_id"`
	TokenURI     string `json:"token_uri"`
	// external_account
	Audience         string           `json:"audience"`
	SubjectTokenType string           `json:"subject_token_type"`
	TokenURL         string           `json:"token_url"`
	Impersonation    string           `json:"service_account_impersonation_url"`
	Source           credentialSource `json:"credential_source"`
	// authorized_user
	ClientID     string `json:"client_id"`
	ClientSecret string `json:"client_secret"`
	RefreshToken string `json:"refresh_token"`
}

type credentialSource struct {
	File   string `json:"file"`
	Format struct {
		Type  string `json:"type"`
		Field string `json:"subject_token_field_name"`
	} `json:"format"`
}

// get is a token that is good for some minutes yet. One caller asks for a new one, the others wait for it; while the
// old one still counts, a request that fails does not matter.
func (g *googleCredentials) get(ctx context.Context) (string, error) {
	for {
		g.mu.Lock()
		if g.token != "" && time.Now().Before(g.renewAt) {
			defer g.mu.Unlock()
			return g.token, nil
		}
		if g.asked == nil {
			g.asked = make(chan struct{})
			go g.renew() // not under the caller's context: the others wait for it too
		}
		asked := g.asked
		g.mu.Unlock()
		select {
		case <-asked:
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
		g.mu.Lock()
		token, wrong, good := g.token, g.wrong, g.token != "" && time.Now().Before(g.until)
		g.mu.Unlock()
		if good {
			return token, nil
		}
		if wrong != nil {
			return "", wrong
		}
	}
}

// forget drops a token that the provider has refused.
func (g *googleCredentials) forget(token string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.token == token {
		g.token = ""
	}
}

func (g *googleCredentials) renew() {
	ctx, cancel := context.WithTimeout(context.Background(), tokenPatience)
	defer cancel()
	token, lasts, err := g.fetch(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.wrong = err; err == nil {
		if lasts <= 0 {
			lasts = tokenLasts
		}
		g.token, g.until = token, time.Now().Add(lasts)
		g.renewAt = time.Now().Add(max(lasts-tokenMargin, lasts/2))
	}
	close(g.asked)
	g.asked = nil
}

func (g *googleCredentials) fetch(ctx context.Context) (string, time.Duration, error) {
	if g.file == "" {
		return g.fromMetadata(ctx)
	}
	text, err := os.ReadFile(g.file) // anew at each renewal: it may be a mounted secret that changes
	if err != nil {
		return "", 0, badCredentials("the credentials file cannot be read: %v", err)
	}
	var file credentialsFile
	if json.Unmarshal(text, &file) != nil {
		return "", 0, badCredentials("the credentials file is not JSON")
	}
	switch file.Type {
	case "service_account":
		return g.fromServiceAccount(ctx, file)
	case "external_account":
		return g.fromExternalAccount(ctx, file)
	case "authorized_user":
		return g.exchange(ctx, cmp.Or(file.TokenURI, "https://oauth2.googleapis.com/token"), url.Values{
			"grant_type": {"refresh_token"}, "client_id": {file.ClientID}, "client_secret": {file.ClientSecret}, "refresh_token": {file.RefreshToken},
		})
	}
	return "", 0, badCredentials("the credentials file is of type %q: use service_account, external_account or authorized_user", file.Type)
}

// tokenTransport keeps the environment's proxies away from the metadata server.
func tokenTransport() *http.Transport {
	out := providerTransport(1)
	out.DisableKeepAlives = true // a token is asked for once an hour
	out.Proxy = func(request *http.Request) (*url.URL, error) {
		if request.Header.Get("Metadata-Flavor") != "" {
			return nil, nil
		}
		return http.ProxyFromEnvironment(request)
	}
	return out
}

func badCredentials(format string, args ...any) error {
	return worker.Permanent(format, args...).WithCode("not_configured")
}

func (g *googleCredentials) fromMetadata(ctx context.Context) (string, time.Duration, error) {
	host := cmp.Or(os.Getenv("GCE_METADATA_HOST"), "metadata.google.internal")
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+"/computeMetadata/v1/instance/service-accounts/default/token", nil)
	if err != nil {
		return "", 0, badCredentials("GCE_METADATA_HOST is no host name")
	}
	request.Header.Set("Metadata-Flavor", "Google")
	return g.ask(request)
}

// fromExternalAccount changes the platform's own token, which is in a file, for Google's, and that for a service
// account's if the file names one.
func (g *googleCredentials) fromExternalAccount(ctx context.Context, file credentialsFile) (string, time.Duration, error) {
	subject, err := file.Source.read()
	if err != nil {
		return "", 0, err
	}
	scope := googleScope
	if file.Impersonation != "" {
		scope = "https://www.googleapis.com/auth/iam"
	}
	token, lasts, err := g.exchange(ctx, file.TokenURL, url.Values{
		"grant_type":           {"urn:ietf:params:oauth:grant-type:token-exchange"},
		"audience":             {file.Audience},
		"scope":                {scope},
		"requested_token_type": {"urn:ietf:params:oauth:token-type:access_token"},
		"subject_token":        {subject},
		"subject_token_type":   {file.SubjectTokenType},
	})
	if err != nil || file.Impersonation == "" {
		return token, lasts, err
	}
	body := encode(map[string]any{"delegates": nil, "lifetime": "3600s", "scope": []string{googleScope}})
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, file.Impersonation, strings.NewReader(string(body)))
	if err != nil {
		return "", 0, badCredentials("service_account_impersonation_url is no URL")
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer "+token)
	return g.ask(request)
}

func (s credentialSource) read() (string, error) {
	if s.File == "" {
		return "", badCredentials("credential_source of the credentials file must name a file: other sources are not supported")
	}
	text, err := os.ReadFile(s.File)
	if err != nil {
		return "", badCredentials("the subject token cannot be read: %v", err)
	}
	if s.Format.Type != "json" {
		return strings.TrimSpace(string(text)), nil
	}
	fields, err := parseObject(text)
	token, ok := asString(fields.get(s.Format.Field))
	if err != nil || !ok {
		return "", badCredentials("the subject token's file has no %q", s.Format.Field)
	}
	return token, nil
}

func (g *googleCredentials) exchange(ctx context.Context, address string, form url.Values) (string, time.Duration, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(form.Encode()))
	if err != nil {
		return "", 0, badCredentials("the credentials file's token URL is no URL")
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return g.ask(request)
}

// ask sends a request for a token. Both spellings of the answer are known: OAuth's and the IAM API's.
func (g *googleCredentials) ask(request *http.Request) (string, time.Duration, error) {
	request.Header.Set("Accept", "application/json")
	response, err := g.client.Do(request)
	if err != nil {
		return "", 0, worker.Retry("no access token: %s cannot be reached: %s", request.URL.Host, redact(withoutURL(err).Error(), nil, maxWords)).WithCode("provider_unavailable")
	}
	defer response.Body.Close()
	content, err := io.ReadAll(io.LimitReader(response.Body, maxTokenBytes))
	if err != nil {
		return "", 0, worker.Retry("no access token: %s broke off", request.URL.Host).WithCode("provider_unavailable")
	}
	var told struct {
		AccessToken  string  `json:"access_token"`
		ExpiresIn    float64 `json:"expires_in"`
		AccessToken2 string  `json:"accessToken"`
		ExpireTime   string  `json:"expireTime"`
		Error        any     `json:"error"`
		Description  string  `json:"error_description"`
	}
	_ = json.Unmarshal(content, &told)
	status := response.StatusCode
	switch {
	case status == 200 && told.AccessToken != "":
		return told.AccessToken, time.Duration(told.ExpiresIn * float64(time.Second)), nil
	case status == 200 && told.AccessToken2 != "":
		until, err := time.Parse(time.RFC3339, told.ExpireTime)
		if err != nil {
			until = time.Now().Add(tokenLasts)
		}
		return told.AccessToken2, time.Until(until), nil
	}
	words := redact(fmt.Sprintf("no access token: %s answered %d: %v %s", request.URL.Host, status, cmp.Or(fmt.Sprint(told.Error), "(no words)"), told.Description), nil, maxWords)
	if status == 408 || status == 429 || status >= 500 || status == 200 {
		return "", 0, worker.Retry("%s", words).WithCode("provider_unavailable")
	}
	return "", 0, worker.Permanent("%s", words).WithCode("provider_auth")
}
