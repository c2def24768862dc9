package handlers

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/taskgate/taskgate/go/worker"
)

// The vectors are shared with every other worker.
func TestMediaAddresses(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "conformance", "workers", "media_addresses.json"))
	if err != nil {
		t.Fatal(err)
	}
	var cases struct {
		Public  []string
		Refused []struct{ Address string }
		// the list, an address or host, whether the list allows it
		AllowAddresses [][3]any `json:"allow_addresses"`
		AllowHosts     [][3]any `json:"allow_hosts"`
	}
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases.Public) == 0 || len(cases.Refused) == 0 || len(cases.AllowAddresses) == 0 || len(cases.AllowHosts) == 0 {
		t.Fatal("the file of cases holds none")
	}
	for _, each := range cases.Refused {
		if refused(netip.MustParseAddr(each.Address)) == "" {
			t.Errorf("%s is taken for a public address", each.Address)
		}
	}
	for _, address := range cases.Public {
		if why := refused(netip.MustParseAddr(address)); why != "" {
			t.Errorf("%s is refused: %s", address, why)
		}
	}
	for i, each := range append(cases.AllowAddresses, cases.AllowHosts...) {
		allowed, err := parseAllowed(each[0].(string))
		if err != nil {
			t.Fatal(err)
		}
		name := each[1].(string)
		have := i >= len(cases.AllowAddresses) && allowed.host(name)
		if i < len(cases.AllowAddresses) {
			have = allowed.address(netip.MustParseAddr(name))
		}
		if have != each[2] {
			t.Errorf("%v: have %t", each, have)
		}
	}
}

func TestAllowList(t *testing.T) {
	allowed, err := parseAllowed("media.example, *.cdn.example\n10.1.0.0/16 [fd00::7]")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"media.example": true, "MEDIA.example.": true, "x.cdn.example": true, "cdn.example": false, "evilcdn.example": false} {
		if allowed.host(name) != want {
			t.Errorf("host %s: want %t", name, want)
		}
	}
	for address, want := range map[string]bool{"10.1.2.3": true, "10.2.0.1": false, "fd00::7": true, "fd00::8": false} {
		if allowed.address(netip.MustParseAddr(address)) != want {
			t.Errorf("address %s: want %t", address, want)
		}
	}
	if _, err := parseAllowed("10.0.0.0/99"); err == nil {
		t.Error("a network that is none was taken")
	}
}

func TestDownloads(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
		switch path := request.URL.Path; path {
		case "/ok":
			_, _ = out.Write(png)
		case "/text":
			_, _ = out.Write([]byte("<svg/>"))
		case "/large":
			_, _ = out.Write(append(png, make([]byte, 2000)...))
		case "/endless":
			for {
				if _, err := out.Write(make([]byte, 100)); err != nil {
					return
				}
				out.(http.Flusher).Flush()
			}
		case "/loop":
			http.Redirect(out, request, "/loop", http.StatusFound)
		case "/inner":
			http.Redirect(out, request, "http://169.254.169.254/latest", http.StatusFound)
		case "/file":
			out.Header().Set("location", "file:///etc/passwd")
			out.WriteHeader(http.StatusFound)
		case "/missing":
			out.WriteHeader(404)
		case "/broken":
			out.WriteHeader(500)
		case "/short":
			out.Header().Set("content-length", "100")
			_, _ = out.Write(png)
		}
	}))
	defer server.Close()
	here, err := newDownloader("127.0.0.1", 1000)
	if err != nil {
		t.Fatal(err)
	}
	nowhere, _ := newDownloader("", 1000)
	uri := "data:image/png;base64," + base64.StdEncoding.EncodeToString(png)
	for _, each := range []struct {
		from          *downloader
		address, want string // the outcome and code, or the data: URI
	}{
		{here, server.URL + "/ok", uri},
		{here, server.URL + "/text", "permanent media_refused"},
		{here, server.URL + "/large", "permanent media_refused"},
		{here, server.URL + "/endless", "permanent media_refused"},
		{here, server.URL + "/loop", "permanent media_refused"},
		{here, server.URL + "/inner", "permanent media_refused"},
		{here, server.URL + "/file", "permanent media_refused"},
		{here, server.URL + "/missing", "permanent media_unavailable"},
		{here, server.URL + "/broken", "retry media_unavailable"},
		{here, server.URL + "/short", "retry media_unavailable"},
		{here, "http://127.0.0.1:1/x", "retry media_unavailable"},
		{nowhere, server.URL + "/ok", "permanent media_refused"},
		{nowhere, strings.Replace(server.URL, "127.0.0.1", "localhost", 1) + "/ok", "permanent media_refused"},
		{nowhere, "http://[::ffff:127.0.0.1]/ok", "permanent media_refused"},
		{here, strings.Replace(server.URL, "http://", "http://u:p@", 1), "permanent media_refused"},
		{here, uri, uri},
		{here, strings.Replace(uri, "png", "jpeg", 1), uri},
		{here, "data:image/png;base64,!!!", "permanent media_refused"},
		{here, "data:image/png;base64,aGVsbG8=", "permanent media_refused"},
		{here, "data:image/png,raw", "permanent media_refused"},
		{here, "data:image/png;base64," + strings.Repeat("A", 2000), "permanent media_refused"},
	} {
		have, err := each.from.inline(context.Background(), each.address, "image 1")
		var steer *worker.TaskError
		if errors.As(err, &steer) {
			have = steer.Outcome() + " " + steer.Code
			if !strings.Contains(steer.Message, "image 1") {
				t.Errorf("%q does not name the image", steer.Message)
			}
		}
		if have != each.want {
			t.Errorf("%.60s: have %.80s (%v), want %s", each.address, have, err, each.want)
		}
	}
}
