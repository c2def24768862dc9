package worker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/taskgate/taskgate/go/internal/testdb"
)

// The vector is of Amazon's documentation: "Signature Calculations for the Authorization Header", GET Bucket Lifecycle.
func TestSignature(t *testing.T) {
	request, _ := http.NewRequest(http.MethodGet, "https://examplebucket.s3.amazonaws.com/?lifecycle=", nil)
	signer := awsSigner{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "", "us-east-1"}
	signer.sign(request, nil, time.Date(2013, 5, 24, 0, 0, 0, 0, time.UTC))
	const want = "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,SignedHeaders=host;x-amz-content-sha256;x-amz-date,Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"
	if found := request.Header.Get("Authorization"); found != want {
		t.Errorf("%s, want\n%s", found, want)
	}
}

// bucket is a server shaped like S3, with one bucket.
type bucket struct {
	mu      sync.Mutex
	objects map[string][]byte
	parts   map[string][][]byte
	broken  int // so many answers are 503
}

func (b *bucket) ServeHTTP(out http.ResponseWriter, request *http.Request) {
	body, _ := io.ReadAll(request.Body)
	b.mu.Lock()
	defer b.mu.Unlock()
	sum := sha256.Sum256(body)
	if request.Header.Get("X-Amz-Content-Sha256") != hex.EncodeToString(sum[:]) || !strings.Contains(request.Header.Get("Authorization"), "Credential=id/") {
		http.Error(out, "SignatureDoesNotMatch", http.StatusForbidden)
		return
	}
	if b.broken > 0 {
		b.broken--
		http.Error(out, "SlowDown", http.StatusServiceUnavailable)
		return
	}
	key, query := request.URL.Path, request.URL.Query()
	switch id := query.Get("uploadId"); {
	case request.Method == http.MethodPost && query.Has("uploads"):
		fmt.Fprintf(out, "<InitiateMultipartUploadResult><UploadId>u+1/%s</UploadId></InitiateMultipartUploadResult>", key)
	case request.Method == http.MethodPut && id != "":
		b.parts[id] = append(b.parts[id], body)
		out.Header().Set("ETag", fmt.Sprintf(`"%d"`, len(b.parts[id])))
	case request.Method == http.MethodPost && id != "":
		for i, part := range b.parts[id] {
			if !strings.Contains(string(body), fmt.Sprintf("<Part><PartNumber>%d</PartNumber><ETag>&quot;%d&quot;</ETag></Part>", i+1, i+1)) {
				http.Error(out, "InvalidPart", http.StatusBadRequest)
				return
			}
			b.objects[key] = append(b.objects[key], part...)
		}
		delete(b.parts, id)
		fmt.Fprint(out, "<CompleteMultipartUploadResult/>")
	case request.Method == http.MethodDelete && id != "":
		delete(b.parts, id)
	case request.Method == http.MethodPut:
		b.objects[key] = body
	case request.Method == http.MethodDelete:
		delete(b.objects, key)
		out.WriteHeader(http.StatusNoContent)
	}
}

func TestMediaInABucket(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	here := &bucket{objects: map[string][]byte{}, parts: map[string][][]byte{}, broken: 1}
	server := httptest.NewServer(here)
	defer server.Close()
	sizes := map[string]int64{"empty": 0, "small": 100, "part": partBytes, "large": 2*partBytes + 7}
	r := start(t, testdb.New(t), func(cfg *Config) {
		cfg.MediaStore = "s3://b/deep/prefix/?endpoint=" + url.QueryEscape(server.URL) + "&region=eu-west-1"
	}, map[string]Func{
		"store": func(ctx context.Context, task *Task) (any, error) {
			return task.StoreMedia(ctx, "a", noise(sizes[task.ID]), "video/mp4")
		},
	})
	for id, size := range sizes {
		r.submit(id, "store", "{}")
		if row := r.ended(id); row.Status != "completed" || !strings.Contains(row.Result, sumOf(noise(size))) {
			t.Fatalf("%+v", row)
		}
		key := value[string](r, `SELECT b.object FROM taskgate.task_media m JOIN taskgate.media_blobs b ON b.id = m.blob WHERE m.task_id = $1 AND b.store = 's3://b/deep/prefix'`, id)
		here.mu.Lock()
		if content := here.objects["/b/deep/prefix/"+key]; int64(len(content)) != size || sumOf(strings.NewReader(string(content))) != sumOf(noise(size)) {
			t.Errorf("%s: %d bytes at %s", id, len(content), key)
		}
		here.mu.Unlock()
	}
	r.submit("again", "store", "{}") // empty, as one that is there: the new object goes
	r.ended("again")
	testdb.Until(t, "the deletion of the object that is not needed", func() bool {
		here.mu.Lock()
		defer here.mu.Unlock()
		return len(here.objects) == len(sizes) && len(here.parts) == 0
	})
}
