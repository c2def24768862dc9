package handlers

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/taskgate/taskgate/go/worker"
)

// tokens is a server that gives access tokens, numbered, and keeps the requests.
type tokens struct {
	*httptest.Server
	asked  atomic.Int64
	lasts  int
	status int
	mu     sync.Mutex
	forms  []url.Values
	bodies []string
}

func newTokens(t *testing.T) *tokens {
	s := &tokens{lasts: 3600, status: 200}
	s.Server = httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
		text, _ := io.ReadAll(request.Body)
		form, _ := url.ParseQuery(string(text))
		s.mu.Lock()
		s.forms, s.bodies = append(s.forms, form), append(s.bodies, request.Method+" "+request.URL.Path+" "+request.Header.Get("Authorization")+request.Header.Get("Metadata-Flavor"))
		s.mu.Unlock()
		out.WriteHeader(s.status)
		if strings.HasSuffix(request.URL.Path, ":generateAccessToken") {
			fmt.Fprintf(out, `{"accessToken":"impersonated","expireTime":%q}`, time.Now().Add(time.Hour).Format(time.RFC3339))
			return
		}
		fmt.Fprintf(out, `{"access_token":"token-%d","expires_in":%d,"error":"invalid_grant"}`, s.asked.Add(1), s.lasts)
	}))
	t.Cleanup(s.Close)
	return s
}

func credentialsOf(t *testing.T, content any) *googleCredentials {
	t.Helper()
	path := filepath.Join(t.TempDir(), "credentials.json")
	text, _ := json.Marshal(content)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return &googleCredentials{file: path, client: http.DefaultClient}
}

func serviceAccount(t *testing.T, address string) (*googleCredentials, *rsa.PublicKey) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, _ := x509.MarshalPKCS8PrivateKey(key)
	text := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	return credentialsOf(t, map[string]string{
		"type": "service_account", "client_email": "robot@p.iam", "private_key": string(text), "private_key_id": "k1", "token_uri": address,
	}), &key.PublicKey
}

func TestServiceAccountSignsAndOneRenewalServesAll(t *testing.T) {
	server := newTokens(t)
	credentials, key := serviceAccount(t, server.URL+"/token")
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			if token, err := credentials.get(context.Background()); token != "token-1" || err != nil {
				t.Errorf("%s %v", token, err)
			}
		})
	}
	group.Wait()
	if server.asked.Load() != 1 {
		t.Errorf("asked %d times", server.asked.Load())
	}
	parts := strings.Split(server.forms[0].Get("assertion"), ".")
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	signature, _ := base64.RawURLEncoding.DecodeString(parts[2])
	if err := rsa.VerifyPKCS1v15(key, crypto.SHA256, sum[:], signature); err != nil {
		t.Error(err)
	}
	var claims struct {
		Iss, Scope, Aud string
		Iat, Exp        int64
	}
	text, _ := base64.RawURLEncoding.DecodeString(parts[1])
	if json.Unmarshal(text, &claims) != nil || claims.Iss != "robot@p.iam" || claims.Aud != server.URL+"/token" || claims.Scope != googleScope || claims.Exp-claims.Iat != 3600 {
		t.Errorf("%s", text)
	}
	if server.forms[0].Get("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer" {
		t.Errorf("%v", server.forms[0])
	}
}

func TestTokensAreRenewedBeforeTheirEnd(t *testing.T) {
	server := newTokens(t)
	credentials, _ := serviceAccount(t, server.URL)
	if _, err := credentials.get(context.Background()); err != nil {
		t.Fatal(err)
	}
	credentials.renewAt = time.Now() // as an hour later, less some minutes
	server.status = 500
	if token, err := credentials.get(context.Background()); token != "token-1" || err != nil {
		t.Errorf("while a renewal fails, the old token counts: %s %v", token, err)
	}
	server.status = 200
	if token, _ := credentials.get(context.Background()); token != "token-3" {
		t.Errorf("not renewed: %s", token)
	}
	credentials.forget("token-3")
	if token, _ := credentials.get(context.Background()); token != "token-4" {
		t.Errorf("a refused token is kept: %s", token)
	}
	credentials.forget("token-4")
	server.status = 400
	_, err := credentials.get(context.Background())
	var steer *worker.TaskError
	if !errors.As(err, &steer) || steer.Code != "provider_auth" || steer.Outcome() != "permanent" || !strings.Contains(steer.Message, "invalid_grant") {
		t.Errorf("%v", err)
	}
}

func TestWorkloadIdentityFederation(t *testing.T) {
	server := newTokens(t)
	subject := filepath.Join(t.TempDir(), "subject.json")
	_ = os.WriteFile(subject, []byte(`{"id_token":"from-the-platform"}`), 0o600)
	file := map[string]any{
		"type": "external_account", "audience": "//iam/pool", "subject_token_type": "urn:ietf:params:oauth:token-type:jwt", "token_url": server.URL + "/v1/token",
		"credential_source": map[string]any{"file": subject, "format": map[string]string{"type": "json", "subject_token_field_name": "id_token"}},
	}
	if token, err := credentialsOf(t, file).get(context.Background()); token != "token-1" || err != nil {
		t.Fatalf("%s %v", token, err)
	}
	form := server.forms[0]
	if form.Get("subject_token") != "from-the-platform" || form.Get("audience") != "//iam/pool" || form.Get("scope") != googleScope || form.Get("grant_type") != "urn:ietf:params:oauth:grant-type:token-exchange" {
		t.Errorf("%v", form)
	}
	file["service_account_impersonation_url"] = server.URL + "/v1/projects/-/serviceAccounts/robot:generateAccessToken"
	if token, err := credentialsOf(t, file).get(context.Background()); token != "impersonated" || err != nil {
		t.Fatalf("%s %v", token, err)
	}
	if last := server.bodies[len(server.bodies)-1]; last != "POST /v1/projects/-/serviceAccounts/robot:generateAccessToken Bearer token-2" {
		t.Error(last)
	}
}

func TestMetadataServer(t *testing.T) {
	server := newTokens(t)
	t.Setenv("GCE_METADATA_HOST", strings.TrimPrefix(server.URL, "http://"))
	if token, err := (&googleCredentials{client: http.DefaultClient}).get(context.Background()); token != "token-1" || err != nil {
		t.Fatalf("%s %v", token, err)
	}
	if server.bodies[0] != "GET /computeMetadata/v1/instance/service-accounts/default/token Google" {
		t.Error(server.bodies)
	}
}

func TestWrongCredentialsAreNamed(t *testing.T) {
	for words, content := range map[string]any{
		"of type": map[string]string{"type": "gdch"}, "not PEM": map[string]string{"type": "service_account", "private_key": "x"}, "must name a file": map[string]string{"type": "external_account"},
		"not JSON": json.RawMessage(`{"type": 1}`),
	} {
		_, err := credentialsOf(t, content).get(context.Background())
		var steer *worker.TaskError
		if !errors.As(err, &steer) || steer.Code != "not_configured" || !strings.Contains(steer.Message, words) {
			t.Errorf("%v, want %q", err, words)
		}
	}
}
