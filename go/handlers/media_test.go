package handlers

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/taskgate/taskgate/go/worker"
)

// vectors is conformance/media/vectors.json, which every other worker's tests read as well; `about` there explains it.
type vectors struct {
	Addresses struct {
		Public         []string
		Refused        []struct{ Address string }
		AllowAddresses [][3]any `json:"allow_addresses"`
		AllowHosts     [][3]any `json:"allow_hosts"`
	}
	Types []struct {
		Name, Mime string
		Base64     []byte
		Size       []int
	}
	Downloads []download
}

type download struct {
	Name, URL, Allow, Kinds string
	Own                     []string
	Hosts                   map[string][][]string
	Headers                 map[string]string
	MaxBytes                int     `json:"max_bytes"`
	MaxPixels               int     `json:"max_pixels"`
	Deadline                float64 `json:"deadline_seconds"`
	Routes                  map[string]route
	Expect                  struct {
		Outcome, Code, Mime, Says, Host string
		Connected                       []string
		Asked                           map[string]int
		Closed                          bool
	}
}

type route struct {
	Status                 int
	Headers                map[string]string
	Base64                 []byte
	Pad                    int
	Chunked, Endless, Drip bool
}

func readVectors(t *testing.T) (out vectors) {
	text, err := os.ReadFile(filepath.Join("..", "..", "conformance", "media", "vectors.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	if len(out.Addresses.Public) == 0 || len(out.Addresses.Refused) == 0 || len(out.Types) == 0 || len(out.Downloads) == 0 {
		t.Fatal("the file of vectors lacks some")
	}
	return out
}

func TestMediaAddresses(t *testing.T) {
	cases := readVectors(t).Addresses
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
	if _, err := parseAllowed("10.0.0.0/99"); err == nil {
		t.Error("a network that is none was taken")
	}
}

func TestMediaTypes(t *testing.T) {
	for _, each := range readVectors(t).Types {
		kind := sniff(each.Base64)
		if kind == "" {
			kind = sniffVideo(each.Base64)
		}
		if kind != each.Mime {
			t.Errorf("%s: have type %q, want %q", each.Name, kind, each.Mime)
		}
		if !strings.HasPrefix(kind, "image/") {
			continue
		}
		width, height, ok := imageSize(each.Base64, kind)
		if ok != (each.Size != nil) || ok && !slices.Equal([]int{width, height}, each.Size) {
			t.Errorf("%s: have %d x %d (%t), want %v", each.Name, width, height, ok, each.Size)
		}
		for at := range each.Base64 { // every beginning, and each byte changed, is no trouble
			imageSize(each.Base64[:at], kind)
			for _, value := range []byte{0, 0x7f, 0xff} {
				changed := bytes.Clone(each.Base64)
				changed[at] = value
				imageSize(changed, kind)
			}
		}
	}
}

// hosts plays the servers and the name service of a case.
type hosts struct {
	port      string
	routes    map[string]route
	names     map[string][][]string
	mu        sync.Mutex
	connected []string
	host      string
	asked     map[string]int
	closed    chan struct{}
	once      sync.Once
}

func startHosts(t *testing.T, each download) *hosts {
	h := &hosts{routes: each.Routes, names: each.Hosts, asked: map[string]int{}, closed: make(chan struct{})}
	h.port = "0"
	for _, address := range []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"} {
		listener, err := net.Listen("tcp", net.JoinHostPort(address, h.port))
		if err != nil {
			t.Skipf("NOT TESTED: this machine cannot listen on %s (%v)", address, err)
		}
		_, h.port, _ = net.SplitHostPort(listener.Addr().String())
		server := &http.Server{Handler: h, ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			arrived, _, _ := net.SplitHostPort(conn.LocalAddr().String())
			h.mu.Lock()
			defer h.mu.Unlock()
			h.connected = append(h.connected, arrived)
			return ctx
		}}
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(func() { _ = server.Close() })
	}
	return h
}

func (h *hosts) filled(text string) string { return strings.ReplaceAll(text, "${port}", h.port) }

func (h *hosts) lookup(ctx context.Context, network, host string) (out []netip.Addr, err error) {
	h.mu.Lock()
	h.asked[host]++
	n := h.asked[host]
	h.mu.Unlock()
	answers, known := h.names[host]
	if !known {
		return net.DefaultResolver.LookupNetIP(ctx, network, host)
	}
	for _, each := range answers[min(n, len(answers))-1] {
		out = append(out, netip.MustParseAddr(each))
	}
	return out, nil
}

func (h *hosts) ServeHTTP(out http.ResponseWriter, request *http.Request) {
	h.mu.Lock()
	h.host = request.Host
	h.mu.Unlock()
	to := h.routes[request.URL.Path]
	body := append(bytes.Clone(to.Base64), make([]byte, to.Pad)...)
	if !to.Chunked && !to.Endless {
		out.Header().Set("content-length", strconv.Itoa(len(body)))
	}
	if to.Drip {
		out.Header().Set("content-length", "5000")
	}
	for name, value := range to.Headers {
		out.Header().Set(name, h.filled(value))
	}
	out.WriteHeader(cmp.Or(to.Status, http.StatusOK))
	_, err := out.Write(body)
	for (to.Endless || to.Drip) && err == nil {
		more := make([]byte, 4096)
		if to.Drip { // faster than any read timeout
			more = more[:1]
			select {
			case <-time.After(10 * time.Millisecond):
			case <-request.Context().Done():
			}
		}
		if _, err = out.Write(more); err == nil {
			err = http.NewResponseController(out).Flush()
		}
		if request.Context().Err() != nil {
			err = request.Context().Err()
		}
	}
	if err != nil {
		h.once.Do(func() { close(h.closed) })
	}
}

func TestDownloads(t *testing.T) {
	for _, each := range readVectors(t).Downloads {
		t.Run(each.Name, func(t *testing.T) {
			if each.Headers != nil {
				t.Skip("this downloader sends no headers of the caller's; the one of videos has its own tests")
			}
			checkDownload(t, each)
		})
	}
}

func checkDownload(t *testing.T, each download) {
	h := startHosts(t, each)
	from, err := newDownloader(each.Allow, cmp.Or(each.MaxBytes, 10_000), cmp.Or(each.MaxPixels, 50_000_000))
	if err != nil {
		t.Fatal(err)
	}
	from.lookup = h.lookup
	if each.Deadline > 0 {
		from.deadline = time.Duration(each.Deadline * float64(time.Second))
	}
	from = from.with(h.filled(strings.Join(each.Own, "")))
	inline := from.inline
	if each.Kinds == "videos" {
		inline = from.inlineVideo
	}
	uri, err := inline(context.Background(), h.filled(each.URL), "image 1")
	have, want := "", fmt.Sprint(each.Expect.Outcome, " ", each.Expect.Code, each.Expect.Mime)
	if err == nil {
		kind, data, _ := strings.Cut(strings.TrimPrefix(uri, "data:"), ";base64,")
		have = "ok " + kind
		content, _ := base64.StdEncoding.DecodeString(data)
		if to, known := each.Routes["/a.png"]; known && !bytes.HasPrefix(content, to.Base64) {
			t.Error("the content is another one")
		}
	}
	var steer *worker.TaskError
	if errors.As(err, &steer) {
		have = steer.Outcome() + " " + steer.Code
		if !strings.Contains(steer.Message, "image 1") || !regexp.MustCompile(each.Expect.Says).MatchString(steer.Message) {
			t.Errorf("%q does not say %q", steer.Message, each.Expect.Says)
		}
	}
	if have != want {
		t.Errorf("have %s (%v), want %s", have, err, want)
	}
	if each.Expect.Closed {
		select {
		case <-h.closed:
		case <-time.After(30 * time.Second):
			t.Error("the connection was not closed")
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.Equal(h.connected, each.Expect.Connected) {
		t.Errorf("connected to %v, want %v", h.connected, each.Expect.Connected)
	}
	if each.Expect.Host != "" && h.host != h.filled(each.Expect.Host) {
		t.Errorf("asked for the host %s", h.host)
	}
	for host, times := range each.Expect.Asked {
		if h.asked[host] != times {
			t.Errorf("asked for %s %d times", host, h.asked[host])
		}
	}
}
