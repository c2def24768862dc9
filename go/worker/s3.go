package worker

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// bucketPlace is an S3-compatible bucket. Source: Amazon S3 API reference, PutObject and the multipart calls; the
// keys come from the AWS_* variables.
type bucketPlace struct {
	stored string // its name in the database
	base   string // the URL of the bucket and prefix, without a slash at the end
	signer awsSigner
	client *http.Client
}

const (
	partBytes   = 8 << 20 // of a multipart upload: 10,000 parts at most, so 80 GB
	s3Tries     = 5
	s3Patience  = 2 * time.Minute // one call
	maxS3Answer = 1 << 20
)

func newBucketPlace(address *url.URL) (mediaPlace, error) {
	options := address.Query()
	prefix := strings.Trim(address.Path, "/")
	for name := range options {
		if name != "endpoint" && name != "region" {
			return nil, &ConfigError{fmt.Sprintf("TASKGATE_MEDIA_STORE knows no option %q: use s3://bucket/prefix?endpoint=URL&region=REGION", name)}
		}
	}
	bucket := address.Host
	if bucket == "" || address.User != nil || strings.Contains(bucket, ":") {
		return nil, &ConfigError{"TASKGATE_MEDIA_STORE names no bucket: use s3://bucket/prefix?endpoint=URL&region=REGION; keys come from AWS_*"}
	}
	signer := awsSigner{os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY"), os.Getenv("AWS_SESSION_TOKEN"), options.Get("region")}
	if signer.region == "" {
		signer.region = cmp.Or(os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"), "us-east-1")
	}
	if signer.id == "" || signer.secret == "" {
		return nil, &ConfigError{"TASKGATE_MEDIA_STORE is a bucket: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"}
	}
	base := "https://s3." + signer.region + ".amazonaws.com/" + bucket
	if endpoint := options.Get("endpoint"); endpoint != "" {
		if !strings.HasPrefix(endpoint, "http://") && !strings.HasPrefix(endpoint, "https://") {
			return nil, &ConfigError{"TASKGATE_MEDIA_STORE: the endpoint begins with http:// or https://"}
		}
		base = strings.TrimRight(endpoint, "/") + "/" + bucket
	}
	if prefix != "" {
		base += "/" + awsPath(prefix)
	}
	return &bucketPlace{strings.TrimRight("s3://"+bucket+"/"+prefix, "/"), base, signer, &http.Client{Timeout: s3Patience}}, nil
}

func (p *bucketPlace) name() string    { return p.stored }
func (p *bucketPlace) pieceBytes() int { return partBytes }

func (p *bucketPlace) begin(context.Context) (upload, error) {
	return &bucketUpload{place: p, key: randomKey()}, nil
}

func (p *bucketPlace) remove(ctx context.Context, object string) error {
	_, _, err := p.call(ctx, http.MethodDelete, object, nil, nil)
	return err
}

// call makes one call, and repeats it while the bucket is out of order.
func (p *bucketPlace) call(ctx context.Context, method, key string, query url.Values, body []byte) (http.Header, []byte, error) {
	var wait backoff
	for try := 1; ; try++ {
		header, content, status, err := p.once(ctx, method, key, query, body)
		if err == nil && (status < 300 || status == http.StatusNotFound && method == http.MethodDelete) {
			return header, content, nil
		}
		if err == nil {
			err = fmt.Errorf("%s answered %d: %s", p.stored, status, strings.ToValidUTF8(string(content[:min(len(content), 300)]), "?"))
		}
		if ctx.Err() != nil || try == s3Tries || status >= 400 && status < 500 && status != 429 && status != 408 {
			return nil, nil, err
		}
		rest(ctx, wait.pause(5*time.Second))
	}
}

func (p *bucketPlace) once(ctx context.Context, method, key string, query url.Values, body []byte) (http.Header, []byte, int, error) {
	address := p.base + "/" + awsPath(key)
	if len(query) > 0 {
		address += "?" + strings.ReplaceAll(query.Encode(), "+", "%20")
	}
	request, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
	if err != nil {
		return nil, nil, 0, errors.New("the endpoint of TASKGATE_MEDIA_STORE is no URL")
	}
	p.signer.sign(request, body, time.Now())
	response, err := p.client.Do(request)
	if err != nil {
		return nil, nil, 0, err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(io.LimitReader(response.Body, maxS3Answer))
	return response.Header, content, response.StatusCode, err
}

// bucketUpload is one object: put in one call if it is a single piece, else in parts.
type bucketUpload struct {
	place *bucketPlace
	key   string
	id    string // of the multipart upload
	tags  []string
	put   bool
}

func (u *bucketUpload) object() string { return u.key }

func (u *bucketUpload) write(ctx context.Context, _ int64, piece []byte) error {
	if u.id == "" && len(piece) < partBytes { // the first, and the last
		u.put = true
		_, _, err := u.place.call(ctx, http.MethodPut, u.key, nil, piece)
		return err
	}
	if u.id == "" {
		_, content, err := u.place.call(ctx, http.MethodPost, u.key, url.Values{"uploads": {""}}, nil)
		if err != nil {
			return err
		}
		if u.id = between(string(content), "<UploadId>", "</UploadId>"); u.id == "" {
			return fmt.Errorf("%s gave no upload id", u.place.stored)
		}
	}
	header, _, err := u.place.call(ctx, http.MethodPut, u.key, url.Values{"partNumber": {fmt.Sprint(len(u.tags) + 1)}, "uploadId": {u.id}}, piece)
	if err == nil {
		u.tags = append(u.tags, header.Get("ETag"))
	}
	return err
}

func (u *bucketUpload) finish(ctx context.Context) error {
	if u.id == "" {
		if u.put {
			return nil
		}
		_, _, err := u.place.call(ctx, http.MethodPut, u.key, nil, nil)
		return err
	}
	var list strings.Builder
	list.WriteString("<CompleteMultipartUpload>")
	for i, tag := range u.tags {
		fmt.Fprintf(&list, "<Part><PartNumber>%d</PartNumber><ETag>%s</ETag></Part>", i+1, strings.ReplaceAll(tag, `"`, "&quot;"))
	}
	list.WriteString("</CompleteMultipartUpload>")
	_, content, err := u.place.call(ctx, http.MethodPost, u.key, url.Values{"uploadId": {u.id}}, []byte(list.String()))
	if err == nil && !bytes.Contains(content, []byte("<CompleteMultipartUploadResult")) { // an error comes with status 200
		return fmt.Errorf("%s did not complete the upload: %s", u.place.stored, content[:min(len(content), 300)])
	}
	if err == nil {
		u.id = ""
	}
	return err
}

func (u *bucketUpload) abort() {
	if u.id == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), hurry)
	defer cancel()
	_, _, _, _ = u.place.once(ctx, http.MethodDelete, u.key, url.Values{"uploadId": {u.id}}, nil)
}

func between(text, from, to string) string {
	_, rest, _ := strings.Cut(text, from)
	found, _, whole := strings.Cut(rest, to)
	if !whole {
		return ""
	}
	return found
}
